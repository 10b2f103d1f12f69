"""What a step of a run samples and trains, with lengths that vary."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

Lengths = tuple[int, ...]
"""Tokens of the completions of one group."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A step of a run.

    Attributes:
        prompts: groups of a step.
        completions: of a group.
        prompt_tokens: of each prompt.
        mean_tokens: mean of a completion, before it is cut.
        spread: standard deviation of the logarithm of a completion's length; 0: all have the mean.
        max_tokens: at which completions are cut.
        microbatch_tokens: of a forward and backward pass.
        passes: forward passes over the batch before the update (reference, critic, teacher).
        scoring_seconds: from a group's last completion to its rewards; groups are scored at the same time.
    """

    prompts: int
    completions: int
    prompt_tokens: int
    mean_tokens: float
    spread: float
    max_tokens: int
    microbatch_tokens: int
    passes: float = 0.0
    scoring_seconds: float = 0.0

    @property
    def sequences(self) -> int:
        """Completions of a step."""
        return self.prompts * self.completions

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return self.prompt_tokens + self.max_tokens

    def groups(self, seed: int = 0) -> Iterator[Lengths]:
        r"""The lengths of group after group, without end: log-normal, of mean `mean_tokens`, cut at `max_tokens`.

        ln T ~ N(mu, s^2) has the mean exp(mu + s^2 / 2), so that mu = ln(mean) - s^2 / 2. Lengths of a group are drawn
        independently of each other.
        """
        draw = random.Random(seed)
        middle = math.log(self.mean_tokens) - self.spread**2 / 2
        while True:
            drawn = [round(draw.lognormvariate(middle, self.spread)) for _ in range(self.completions)]
            yield tuple(max(1, min(self.max_tokens, length)) for length in drawn)

    def resident(self) -> float:
        """Mean tokens in the cache of a sequence that is decoded at a random moment: prompt + E[T^2] / (2 E[T]).

        A long completion is met more often, in proportion to its length, and at its middle. For uncut lengths
        E[T^2] / E[T] = mean exp(s^2).
        """
        biased = min(self.mean_tokens * math.exp(self.spread**2), self.max_tokens)
        return self.prompt_tokens + biased / 2


def computed(groups: list[Lengths], prompt_tokens: int) -> tuple[int, float]:
    """What an update on these groups computes.

    Returns:
        Tokens; a prompt is computed once for its group. And squares, for attention: twice the pairs of tokens of which
        one attends to the other, p^2 + sum(l^2 + 2 p l) for a group with a prompt of p tokens and completions of l.

    Example:
        >>> computed([(2, 3)], prompt_tokens=10)
        (15, 213)
    """
    tokens = sum(map(sum, groups)) + prompt_tokens * len(groups)
    return tokens, sum(prompt_tokens**2 + sum(n * n + 2 * prompt_tokens * n for n in lengths) for lengths in groups)
