"""Plackett-Luce with annotator reliabilities, from whole rankings.

Plackett 1975 (https://doi.org/10.2307/2346567), Luce 1959, with a weight for each annotator (`strengths`). A ranking is
made from the top: each place is given to one of those that are left, in proportion to e^(a_w s).

    P(c_1 > c_2 > ... > c_K) = prod_k e^(a_w s_(c_k)) / sum_(l >= k) e^(a_w s_(c_l))

Completions that are tied are each chosen from all that were left before any of them (Breslow's approximation). The
model itself has no ties: two completions come out equal only where nothing tells them apart.

Letters: R rankings, K completions of the longest.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from posttrain.annotation.aggregation.strengths import Array, Fitted, Likelihood, fit
from posttrain.annotation.consensus import Belief, Odds
from posttrain.annotation.rankings import by_item, votes_of
from posttrain.types import Ranking


def beliefs(rankings: Sequence[Ranking]) -> Mapping[str | int, Belief]:
    """The probability that the average annotator puts one before the other, and strengths with their errors."""
    votes = list(votes_of(rankings))
    odds: dict[str | int, dict[tuple[int, int], Odds]] = {item: {} for item in by_item(rankings)}
    if not votes:
        return {item: Belief({}) for item in odds}
    found = fitted(rankings)
    for item, i, j in dict.fromkeys((vote.item, vote.first, vote.second) for vote in votes):
        first = float(1 / (1 + np.exp(found.strengths[item][j] - found.strengths[item][i])))
        odds[item][i, j] = Odds(first, 0.0, 1 - first)
    return {
        item: Belief(mine, found.strengths.get(item, {}), found.errors.get(item, {})) for item, mine in odds.items()
    }


class _Drawn(NamedTuple):
    """Rankings as what was drawn, place by place."""

    who: Array  # [R, K] the completion at each place, -1 where the ranking is over
    since: Array  # [R, K] the place of the first of its tier: it was drawn from what was left there


def fitted(rankings: Sequence[Ranking]) -> Fitted:
    """Strengths and weights."""
    completions = list(dict.fromkeys((r.item, one) for r in rankings for tier in r.tiers for one in tier))
    annotators = list(dict.fromkeys(ranking.annotator for ranking in rankings))
    drawn = _drawn(rankings, {key: i for i, key in enumerate(completions)})
    person = np.array([annotators.index(ranking.annotator) for ranking in rankings])

    def likelihood(s: Array, a: Array, extra: Array) -> Likelihood:
        value, by_x, raw = _log_likelihood(drawn, s, a[person])
        there = drawn.who >= 0
        by_strength = np.bincount(drawn.who[there], (by_x * a[person][:, None])[there], len(s))
        return Likelihood(value, by_strength, np.bincount(person, (by_x * raw).sum(axis=1), len(a)), np.empty(0))

    return fit(completions, annotators, likelihood)


def _drawn(rankings: Sequence[Ranking], number: Mapping[tuple[str | int, int], int]) -> _Drawn:
    longest = max(sum(map(len, ranking.tiers)) for ranking in rankings)
    who = np.full((len(rankings), longest), -1)
    since = np.zeros((len(rankings), longest), dtype=int)
    for row, ranking in enumerate(rankings):
        place = 0
        for tier in ranking.tiers:
            who[row, place : place + len(tier)] = [number[ranking.item, one] for one in tier]
            since[row, place : place + len(tier)] = place
            place += len(tier)
    return _Drawn(who, since)


def _log_likelihood(drawn: _Drawn, s: Array, weight: Array) -> tuple[float, Array, Array]:
    """The sum over all draws; its gradient by x = a s, [R, K]; and s itself by place, [R, K]."""
    there = drawn.who >= 0
    raw = np.where(there, s[drawn.who], 0.0)
    x = np.where(there, weight[:, None] * raw, -np.inf)
    top = x.max(axis=1, keepdims=True)
    mass = np.exp(x - top)
    left = np.cumsum(mass[:, ::-1], axis=1)[:, ::-1]  # what all from this place on sum to
    drawn_from = np.take_along_axis(left, drawn.since, axis=1)
    log_from = np.log(np.where(there, drawn_from, 1.0)) + top
    value = float((x - log_from)[there].sum())
    # each draw takes from all that were left, in proportion: every place at or after its tier's first
    shares = np.zeros_like(mass)
    np.add.at(shares, (np.arange(len(mass))[:, None], drawn.since), np.where(there, 1 / drawn_from, 0.0))
    by_x = np.where(there, 1.0 - mass * np.cumsum(shares, axis=1), 0.0)
    return value, by_x, raw
