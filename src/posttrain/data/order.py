"""Stateless randomness: every draw is a function of (seed, step), so no RNG state is saved.

A run that resumes at step 40 asks for step 40 and gets what an uninterrupted run got.
"""

import hashlib
import random
from functools import lru_cache


def seed_for(*parts: int | str) -> int:
    """A 63-bit seed that depends on all parts and their order, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1


def batch_indices(count: int, batch: int, step: int, seed: int) -> list[int]:
    """Which of `count` items make up the batch of `step` (from 0): every epoch is a new permutation, used in full.

    A batch may span the end of an epoch, so a batch larger than `count` repeats items.
    """
    chosen: list[int] = []
    place = step * batch
    while len(chosen) < batch:
        epoch, offset = divmod(place + len(chosen), count)
        order = _order(count, seed_for(seed, "epoch", epoch))
        chosen += order[offset : offset + batch - len(chosen)]
    return chosen


@lru_cache(maxsize=4)  # a large data set is shuffled once an epoch, not once a step
def _order(count: int, seed: int) -> tuple[int, ...]:
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return tuple(order)
