"""The cost model: seconds of decoding, of an update and of a weight transfer, in a few coefficients.

A step is sampling, scoring, update, weight sync and wait. The coefficients are measured on a machine
(benchmarks/cluster.py) or follow from a GPU's figures (gpus.py); the equations are the same. Seconds throughout.
"""

import math
from dataclasses import dataclass

from posttrain.planning.cluster.workload import Lengths, Workload, computed


@dataclass(frozen=True, slots=True)
class Decoding:
    """One sampler.

    A decoding step of n sequences with c cached tokens takes

        t(n, c) = step + n sequence + c cached

    that is the weights' pass through memory, the arithmetic of a token, and the pass of keys and values. They are
    added: what a processor overlaps of them, the model does not.

    Attributes:
        step: of each step, whatever is decoded.
        sequence: for each sequence of a step.
        cached: for each cached token of a step.
        prompt: for each token of a prompt, which is computed once for the sequences of its group on a sampler.
        begin: for each batch that is submitted to it.
        slots: sequences that are decoded together at most.
    """

    step: float
    sequence: float
    cached: float = 0.0
    prompt: float = 0.0
    begin: float = 0.0
    slots: int = 128

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
    """The trainers together.

    An update on a batch of N tokens in R packed rows takes

        ceil(R / trainers) (N / R token + Q / R square + row) + begin,   R = ceil(N / microbatch_tokens)

    where Q are the squares of `workload.computed`: the slowest rank has ceil(R / trainers) rows.

    Attributes:
        trainers: ranks; each computes every n-th row.
        token: forward and backward of a token.
        square: attention, for each of the squares.
        row: communication of a row that is not hidden behind its computation, if that takes no time.
        hidden: whether communication of a row is hidden behind computation: max instead of sum.
        begin: of an update, whatever it trains: the optimiser and the sum of the gradients.
    """

    trainers: int
    token: float
    square: float = 0.0
    row: float = 0.0
    hidden: bool = False
    begin: float = 0.0

    def seconds(self, tokens: int, squares: float, microbatch_tokens: int) -> float:
        """Seconds of an update."""
        rows = math.ceil(tokens / microbatch_tokens)
        compute = (tokens * self.token + squares * self.square) / rows
        one = max(compute, self.row) if self.hidden else compute + self.row
        return math.ceil(rows / self.trainers) * one + self.begin


@dataclass(frozen=True, slots=True)
class Costs:
    """A cluster.

    Attributes:
        samplers: number of samplers, each of one or more GPUs.
        decoding: of one sampler.
        updating: of all trainers.
        sync: until all samplers have new weights; trainers and samplers wait for that. Samplers then compute the cache
            of unfinished sequences again.
    """

    samplers: int
    decoding: Decoding
    updating: Updating
    sync: float = 0.0

    def update(self, work: Workload, groups: list[Lengths]) -> float:
        """Seconds of the update on these groups."""
        return self.updating.seconds(*computed(groups, work.prompt_tokens), work.microbatch_tokens)
