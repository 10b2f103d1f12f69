"""Compute load of one step, for `planning`."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """What one step computes. Lengths are the longest for memory and the expected ones for time."""

    prompts: int  # different prompts; of supervised fine-tuning, examples
    group: int  # completions of each; 1 in supervised fine-tuning
    prompt_tokens: int  # of one prompt; 0 where nothing is shared
    completion_tokens: int  # of one completion, or of one whole example
    microbatch_tokens: int

    @property
    def sequences(self) -> int:
        """The batch: prompts x completions of each."""
        return self.prompts * self.group

    @property
    def tokens(self) -> int:
        """Tokens of a step, a shared prompt once."""
        return self.prompts * (self.prompt_tokens + self.group * self.completion_tokens)

    @property
    def microbatches(self) -> int:
        """Forward and backward passes of an update."""
        return math.ceil(self.tokens / self.microbatch_tokens)

    def share(self, trainers: int) -> float:
        """The part of the tokens that the busiest of several trainers computes, whose micro-batches are full."""
        return min(1.0, math.ceil(self.microbatches / trainers) * self.microbatch_tokens / self.tokens)
