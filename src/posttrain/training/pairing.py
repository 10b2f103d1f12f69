"""Pairs from scored completions of one prompt."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType

from posttrain.data.packing import Pair
from posttrain.training.policy_batch import example_of
from posttrain.types import Group


def best_worst(rewards: Sequence[float]) -> list[tuple[int, int]]:
    """The completions of highest and of lowest reward; ties go to the first."""
    places = range(len(rewards))
    return [(max(places, key=lambda i: rewards[i]), min(places, key=lambda i: rewards[i]))]


def every_pair(rewards: Sequence[float]) -> list[tuple[int, int]]:
    """All pairs with unequal rewards."""
    return [(i, j) if rewards[i] > rewards[j] else (j, i) for i, j in combinations(range(len(rewards)), 2)]


PAIRINGS: Mapping[str, Callable[[Sequence[float]], list[tuple[int, int]]]] = MappingProxyType(
    {"best-worst": best_worst, "all": every_pair}
)
"""By the name that a configuration gives: from the rewards of a group to (chosen, rejected)."""


def pairs_of(groups: Sequence[Group], pairing: str, *, margin: float = 0.0) -> list[Pair]:
    """The pairs of every group, with the tokens exactly as they were sampled.

    Two rows make a pair where one seat was asked the same: what it is first shown may depend on other seats.

    Args:
        groups: scored completions of one prompt each.
        pairing: a name in `PAIRINGS`.
        margin: minimum reward difference of a pair; pairs of equal rewards are always left out.
    """
    found: list[Pair] = []
    for group in groups:
        examples = [example_of(row.trajectory) for row in group.rows]
        alike: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        for place, (row, example) in enumerate(zip(group.rows, examples, strict=True)):
            alike.setdefault((row.seat, tuple(example.prefix)), []).append(place)
        for places in alike.values():
            for better, worse in PAIRINGS[pairing]([group.rows[place].reward for place in places]):
                chosen, rejected = places[better], places[worse]
                apart = group.rows[chosen].reward - group.rows[rejected].reward
                if apart > 0 and apart >= margin:
                    found.append(Pair(examples[chosen], examples[rejected]))
    return found
