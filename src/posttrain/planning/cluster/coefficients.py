"""The cost model: what a step samples and trains, and the seconds of that in a few coefficients.

The coefficients are measured on a machine (benchmarks/cluster.py) or follow from a GPU's figures (gpus.py).
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

Lengths = tuple[int, ...]
"""Tokens of the completions of one group."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A step of a run."""

    prompts: int  # groups of a step
    completions: int  # of a group
    prompt_tokens: int  # of each prompt
    mean_tokens: float  # mean of a completion, before it is cut
    spread: float  # standard deviation of the logarithm of a completion's length; 0: all have the mean
    max_tokens: int  # at which completions are cut
    microbatch_tokens: int  # of a forward and backward pass
    passes: float = 0.0  # forward passes over the batch before the update (reference, critic, teacher)
    scoring_seconds: float = 0.0  # from a group's last completion to its rewards; groups are scored at the same time

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


@dataclass(frozen=True, slots=True)
class Decoding:
    """One sampler, and the seconds of a decoding step of n sequences with c cached tokens.

        t(n, c) = step + n sequence + c cached

    That is the weights' pass through memory, the arithmetic of a token, and the pass of keys and values. They are
    added: what a processor overlaps of them, the model does not.
    """

    step: float  # of each step, whatever is decoded
    sequence: float  # for each sequence of a step
    cached: float = 0.0  # for each cached token of a step
    prompt: float = 0.0  # for each token of a prompt, computed once for the sequences of its group on a sampler
    begin: float = 0.0  # for each batch that is submitted to it
    slots: int = 128  # sequences that are decoded together at most

    def seconds(self, steps: float, sequences: int, tokens: float) -> float:
        """Seconds of this many steps of `sequences`, which have `tokens` in the cache before: each adds one a step.

        The integral of t(n, c + n m) over m from 0 to `steps`.
        """
        rate = self.step + sequences * self.sequence + self.cached * tokens
        return steps * rate + self.cached * sequences * steps * steps / 2

    def steps(self, seconds: float, sequences: int, tokens: float) -> float:
        """The steps done in this time, not a whole number: the inverse of `seconds`."""
        rate = self.step + sequences * self.sequence + self.cached * tokens
        curve = self.cached * sequences
        if not curve:
            return seconds / rate
        root = math.sqrt(rate * rate + 2 * curve * seconds)
        return 2 * seconds / (rate + root)  # (root - rate) / curve, without the difference of near numbers


@dataclass(frozen=True, slots=True)
class Updating:
    """The trainers together, and the seconds of an update on a batch of N tokens in R packed rows.

        ceil(R / trainers) max(N / R token + Q / R square, row) + begin,   R = ceil(N / microbatch_tokens)

    Q are the squares of attention (`Costs.update`); the slowest rank has ceil(R / trainers) rows.
    """

    trainers: int  # ranks; each computes every n-th row
    token: float  # forward and backward of a token
    square: float = 0.0  # attention, for each of the squares
    row: float = 0.0  # communication of a row, which its computation hides
    begin: float = 0.0  # of an update, whatever it trains: the optimiser and the sum of the gradients

    def seconds(self, tokens: int, squares: float, microbatch_tokens: int) -> float:
        """Seconds of an update."""
        rows = math.ceil(tokens / microbatch_tokens)
        compute = (tokens * self.token + squares * self.square) / rows
        return math.ceil(rows / self.trainers) * max(compute, self.row) + self.begin


@dataclass(frozen=True, slots=True)
class Costs:
    """A cluster.

    While weights are sent, trainers and samplers wait; samplers then compute the cache of unfinished sequences again.
    """

    samplers: int  # each of one or more GPUs
    decoding: Decoding  # of one sampler
    updating: Updating  # of all trainers
    sync: float = 0.0  # until all samplers have new weights

    def update(self, work: Workload, groups: list[Lengths]) -> float:
        """Seconds of the update on these groups.

        A prompt of p tokens is computed once for its group. The squares of attention are twice the pairs of tokens of
        which one attends to the other: p^2 + sum(l^2 + 2 p l) for a group with completions of l tokens.
        """
        p = work.prompt_tokens
        tokens = sum(map(sum, groups)) + p * len(groups)
        squares = sum(p**2 + sum(n * n + 2 * p * n for n in lengths) for lengths in groups)
        return self.updating.seconds(tokens, squares, work.microbatch_tokens)
