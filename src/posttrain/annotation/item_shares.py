"""Agreement within one item: each annotator against the consensus, and leave-one-out.

Every function here depends on one item only, so that a new judgement changes the shares of its own item alone.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import NamedTuple

from posttrain.annotation.rankings import votes_of
from posttrain.types import Ranking

Order = dict[tuple[int, int], int]
"""Of two completions, the lower number first: 1 where the first is preferred, -1 where the second is, 0 neither."""


class ItemShares(NamedTuple):
    """Agreement of each annotator of one item with the consensus."""

    with_all: Mapping[str | int, Sequence[float]]
    """By annotator, for each comparison on which there is a consensus: 1 where they say the same, 0, or 1/2 if tied."""
    with_others: Mapping[str | int, float]
    """By annotator, the mean of the same with the consensus of the others; absent where the others have none."""


def majority_shares(rankings: Sequence[Ranking], decided: Ranking | None = None) -> ItemShares:
    """The shares of one item's annotators where the consensus is the majority's, or what was decided in its place.

    The numbers are those of `agree` on `aggregation.majority`, from counted votes: of every two completions there is
    one count, from which an annotator's vote is taken to find the consensus of the others.
    """
    votes = [{(one.first, one.second): one.outcome for one in votes_of([ranking])} for ranking in rankings]
    counts: dict[tuple[int, int], list[int]] = {}  # how many say neither, the first, the second: by outcome 0, 1, -1
    judged: Counter[int] = Counter()
    failed: Counter[int] = Counter()
    for ranking, mine in zip(rankings, votes, strict=True):
        judged.update(one for tier in ranking.tiers for one in tier)
        failed.update(ranking.failed)
        for pair, outcome in mine.items():
            counts.setdefault(pair, [0, 0, 0])[outcome] += 1
    fixed = None if decided is None else _decided_order(decided)
    together = fixed if fixed is not None else _majority_order(counts, judged, failed)
    with_all: dict[str | int, list[float]] = {}
    with_others: dict[str | int, float] = {}
    for ranking, mine in zip(rankings, votes, strict=True):
        with_all[ranking.annotator] = _agreeing(mine, together)
        if len(rankings) < 2:
            continue
        others = fixed if fixed is not None else _without(ranking, mine, counts, judged, failed)
        if found := _agreeing(mine, others):
            with_others[ranking.annotator] = fmean(found)
    return ItemShares(with_all, with_others)


def _agreeing(votes: Order, order: Order) -> list[float]:
    return [(1 + outcome * order[pair]) / 2 for pair, outcome in votes.items() if pair in order]


def _decided_order(decided: Ranking) -> Order:
    place = {one: level for level, tier in enumerate(decided.tiers) for one in tier}
    pairs = combinations(sorted(place), 2)
    return {(a, b): 1 if place[a] < place[b] else -1 for a, b in pairs if place[a] != place[b]}


def _without(
    ranking: Ranking,
    mine: Order,
    counts: Mapping[tuple[int, int], list[int]],
    judged: Counter[int],
    failed: Counter[int],
) -> Order:
    """The majority's order without one of the rankings."""
    fewer = {pair: list(votes) for pair, votes in counts.items()}
    for pair, outcome in mine.items():
        fewer[pair][outcome] -= 1
    named = Counter(one for tier in ranking.tiers for one in tier)
    return _majority_order(fewer, judged - named, failed - Counter(ranking.failed))


def _majority_order(
    counts: Mapping[tuple[int, int], list[int]], judged: Mapping[int, int], failed: Mapping[int, int]
) -> Order:
    """The pairs that the votes and the order by Copeland scores both tell apart."""
    verdicts: Order = {}
    wins = dict.fromkeys(judged, 0)
    for pair, (neither, first, second) in counts.items():
        if first != second and neither <= max(first, second):
            verdict = verdicts[pair] = 1 if first > second else -1
            wins[pair[0]] += verdict
            wins[pair[1]] -= verdict
    level = {one: (2 * failed.get(one, 0) > judged[one], -wins[one]) for one in judged}
    return {
        (a, b): verdict
        for (a, b), verdict in verdicts.items()
        if (level[a] < level[b] if verdict > 0 else level[b] < level[a])
    }


def verdict_shares(verdicts: Mapping[str | int, Hashable], *decided: Hashable) -> ItemShares:
    """The shares of one item's annotators: 1 where theirs is the verdict that was decided or has the most votes."""
    votes = Counter(verdicts.values())
    with_all: dict[str | int, list[float]] = {}
    with_others: dict[str | int, float] = {}
    for who, value in verdicts.items():
        with_all[who] = [float(verdict == value) for verdict in decided or _most(votes)]
        if len(verdicts) > 1:
            for verdict in decided or _most(votes - Counter([value])):
                with_others[who] = float(verdict == value)
    return ItemShares(with_all, with_others)


def _most(votes: Counter[Hashable]) -> list[Hashable]:
    """The verdict with the most votes, if one has more than any other."""
    (first, most), *others = votes.most_common(2)
    return [] if others and others[0][1] == most else [first]
