"""Ties: whether score differences separate tied from decided pairs.

Equal scores are rare, so a predicted tie is a margin within some epsilon.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean
from typing import NamedTuple

from posttrain.evaluation.pairs import ScoredPair
from posttrain.statistics import Interval, mean_interval


class Ties(NamedTuple):
    """Results on ties."""

    told: float
    """The chance that its margin is smaller over a pair that people found equal than over one that they decided: 0.5
    where the size of a margin says nothing of it, 1 where it tells all."""
    accuracy: float
    """How often it says what people say, with a third answer, neither; the prompt is the unit, as it is of pairs."""
    ci95: Interval
    never: float
    """The same if it never says so."""
    epsilon: float
    """Up to which margin it would say so: the best one for all pairs."""
    pairs: int  # that people decided
    ties: int


def ties_of(pairs: Sequence[ScoredPair], ties: Sequence[ScoredPair]) -> Ties:
    """Pairs that people decided, and pairs that they found equal, of which it says nothing which one is called chosen.

        accuracy = 1/P sum_p 1/n_p ( sum over its pairs [m > eps] + sum over its ties [|m| <= eps] )

    The pairwise accuracy with ties of Deutsch, Foster and Freitag 2023, "Ties Matter"
    (https://arxiv.org/abs/2305.14324), with their tie calibration: eps is the one that is best. Here it is found on one
    half of the prompts and used on the other, so that a model gains nothing by chance.

    Raises:
        ValueError: one of the two is empty.
    """
    if not pairs or not ties:
        raise ValueError("ties are measured beside pairs that were decided; one of the two is empty")
    order = {prompt: place for place, prompt in enumerate(dict.fromkeys(one.prompt for one in (*pairs, *ties)))}
    halves = [
        (
            [one for one in pairs if order[one.prompt] % 2 == half],
            [one for one in ties if order[one.prompt] % 2 == half],
        )
        for half in (0, 1)
    ]
    if not all(some for half in halves for some in half):
        halves = [(pairs, ties)]
    right: dict[int, list[float]] = {}
    never: dict[int, list[float]] = {}
    for (some, equal), others in zip(halves, halves[::-1], strict=True):
        epsilon = best_epsilon(*others)
        for pair in some:
            right.setdefault(pair.prompt, []).append(float(pair.margin > epsilon))
            never.setdefault(pair.prompt, []).append(float(pair.margin > 0))
        for tie in equal:
            right.setdefault(tie.prompt, []).append(float(abs(tie.margin) <= epsilon))
            never.setdefault(tie.prompt, []).append(float(tie.margin == 0))
    rates = [fmean(one) for one in right.values()]
    without = fmean(fmean(one) for one in never.values())
    sizes = sorted(abs(pair.margin) for pair in pairs)
    wins = sum(2 * len(sizes) - bisect_left(sizes, m) - bisect_right(sizes, m) for m in (abs(t.margin) for t in ties))
    told, best = wins / (2 * len(sizes) * len(ties)), best_epsilon(pairs, ties)
    return Ties(told, fmean(rates), mean_interval(rates), without, best, len(pairs), len(ties))


def best_epsilon(pairs: Sequence[ScoredPair], ties: Sequence[ScoredPair]) -> float:
    """The smallest epsilon of highest accuracy, with equal weight for each prompt."""
    of_prompt = Counter(one.prompt for one in (*pairs, *ties))
    margins = sorted((pair.margin, 1 / of_prompt[pair.prompt]) for pair in pairs)
    sizes = sorted((abs(tie.margin), 1 / of_prompt[tie.prompt]) for tie in ties)
    missed, met = ([0.0, *accumulate(weight for _, weight in one)] for one in (margins, sizes))

    def right(epsilon: float) -> float:
        up_to = (epsilon, math.inf)
        return round(met[bisect_right(sizes, up_to)] - missed[bisect_right(margins, up_to)], 9)

    candidates = sorted({0.0, *(size for size, _ in sizes)})  # between two of them nothing is gained
    return max(candidates, key=right)
