"""Plackett-Luce with annotator reliabilities, from whole rankings.

Plackett 1975 (https://doi.org/10.2307/2346567), Luce 1959, with a weight for each annotator (`strengths`). A ranking is
made from the top: each place is given to one of those that are left, in proportion to e^(a_w s).

    P(c_1 > c_2 > ... > c_K) = prod_k e^(a_w s_(c_k)) / sum_(l >= k) e^(a_w s_(c_l))

Completions that are tied are each chosen from all that were left before any of them (Breslow's approximation). The
model itself has no ties: two completions come out equal only where nothing tells them apart.

Letters: R rankings, K completions of the longest.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from posttrain.annotation.aggregation.strengths import Array, Fitted, Likelihood, beliefs_of, fit
from posttrain.annotation.consensus import Belief, Odds
from posttrain.types import Ranking


def beliefs(rankings: Sequence[Ranking]) -> Mapping[str | int, Belief]:
    """The probability that the average annotator puts one before the other, and strengths with their errors."""
    return beliefs_of(rankings, lambda votes: fitted(rankings), _odds)


def _odds(gap: float, found: Fitted) -> Odds:
    first = float(1 / (1 + np.exp(-gap)))
    return Odds(first, 0.0, 1 - first)


def fitted(rankings: Sequence[Ranking]) -> Fitted:
    """Strengths and weights."""
    completions = list(dict.fromkeys((r.item, one) for r in rankings for tier in r.tiers for one in tier))
    annotators = list(dict.fromkeys(ranking.annotator for ranking in rankings))
    number = {key: i for i, key in enumerate(completions)}
    longest = max(sum(map(len, ranking.tiers)) for ranking in rankings)
    who = np.full((len(rankings), longest), -1)  # [R, K] the completion at each place, -1 where the ranking is over
    since = np.zeros_like(who)  # [R, K] the place of the first of its tier: it was drawn from what was left there
    for row, ranking in enumerate(rankings):
        place = 0
        for tier in ranking.tiers:
            who[row, place : place + len(tier)] = [number[ranking.item, one] for one in tier]
            since[row, place : place + len(tier)] = place
            place += len(tier)
    there = who >= 0
    person = np.array([annotators.index(ranking.annotator) for ranking in rankings])

    def likelihood(s: Array, a: Array, extra: Array) -> Likelihood:
        raw = np.where(there, s[who], 0.0)
        value, by_x = _log_likelihood(np.where(there, a[person][:, None] * raw, -np.inf), since)
        by_strength = np.bincount(who[there], (by_x * a[person][:, None])[there], len(s))
        return Likelihood(value, by_strength, np.bincount(person, (by_x * raw).sum(axis=1), len(a)), np.empty(0))

    return fit(completions, annotators, likelihood)


def _log_likelihood(x: Array, since: Array) -> tuple[float, Array]:
    """The sum over all draws, and its gradient by x = a s, [R, K], which is minus infinity where a ranking is over."""
    there = np.isfinite(x)
    top = x.max(axis=1, keepdims=True)
    mass = np.exp(x - top)
    left = np.cumsum(mass[:, ::-1], axis=1)[:, ::-1]  # what all from this place on sum to
    drawn_from = np.take_along_axis(left, since, axis=1)
    log_from = np.log(np.where(there, drawn_from, 1.0)) + top
    value = float((x - log_from)[there].sum())
    # each draw takes from all that were left, in proportion: every place at or after its tier's first
    shares = np.zeros_like(mass)
    np.add.at(shares, (np.arange(len(mass))[:, None], since), np.where(there, 1 / drawn_from, 0.0))
    by_x = np.where(there, 1.0 - mass * np.cumsum(shares, axis=1), 0.0)
    return value, by_x
