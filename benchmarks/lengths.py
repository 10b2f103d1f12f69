"""Replies whose maximum lengths are log-normal by their seeds, so that what is compared samples the same lengths."""

import math
import random
from dataclasses import dataclass, replace

from posttrain.types import Completion, Decoding, Request

MEAN, SPREAD, LONGEST = 40.0, 1.0, 256  # of lengths in tokens: mean, standard deviation of the logarithm, the largest


def length(seed: int) -> int:
    """The maximum length of a reply."""
    drawn = random.Random(seed).lognormvariate(math.log(MEAN) - SPREAD**2 / 2, SPREAD)
    return max(1, min(LONGEST, round(drawn)))


@dataclass
class Varied:
    """A decoding that ends each reply at its own length."""

    decoding: Decoding

    def add(self, number: int, request: Request) -> None:
        sampling = replace(request.sampling, max_new_tokens=length(request.seed))
        self.decoding.add(number, replace(request, sampling=sampling))

    def cancel(self, number: int) -> None:
        self.decoding.cancel(number)

    def step(self) -> dict[int, Completion]:
        return self.decoding.step()
