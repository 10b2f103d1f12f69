"""Inter-annotator agreement, and each annotator's agreement with the consensus of the others."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import krippendorff
import numpy as np

from posttrain.annotation.rankings import Agreed, Belief, agree, by_item, midranks, votes_of
from posttrain.statistics import mean_interval
from posttrain.types import Ranking


def alpha(rankings: Sequence[Ranking]) -> float | None:
    """Krippendorff's alpha of the ranks, as ordinal data: 1 where all agree, 0 where they agree as chance would.

        alpha = 1 - D_o / D_e

    Krippendorff 2011, "Computing Krippendorff's alpha-reliability", by the package krippendorff. The unit is a
    completion of an item, its value the rank that an annotator gave it (midranks where some are tied). None where no
    completion has two ranks, or all ranks are the same.
    """
    return alpha_of((unit for said in by_item(rankings).values() for unit in unit_ranks(said)), "ordinal")


def unit_ranks(rankings: Sequence[Ranking]) -> list[tuple[float, ...]]:
    """Of each completion of one item, the ranks that its annotators gave it, in ascending order."""
    found: defaultdict[int, list[float]] = defaultdict(list)
    for ranking in rankings:
        for completion, rank in midranks(ranking).items():
            found[completion].append(rank)
    return [tuple(sorted(ranks)) for ranks in found.values()]


def alpha_of(units: Iterable[tuple[Any, ...]], level: Literal["nominal", "ordinal"]) -> float | None:
    """`alpha` of units, each with its annotators' values: ranks, or nominal data, such as which step is wrong."""
    shared = {values: times for values, times in Counter(units).items() if len(values) > 1}
    every = list(dict.fromkeys(value for values in shared for value in values))
    if len(every) < 2:
        return None
    if level == "ordinal":
        every.sort()
    counts = np.array([[values.count(value) for value in every] for values in shared], dtype=float)
    rows = np.repeat(counts, list(shared.values()), axis=0)
    domain = every if level == "ordinal" else list(range(len(every)))
    return float(krippendorff.alpha(value_counts=rows, value_domain=domain, level_of_measurement=level))


def kendall_w(rankings: Sequence[Ranking]) -> float | None:
    """Kendall's W of one item: 1 if all rankings are equal, 0 if their ranks cancel.

        W = 12 S / ( m^2 (n^3 - n) - m sum_j T_j ),   T_j = sum over tied groups of j of (t^3 - t)

    Kendall and Babington Smith 1939 (https://doi.org/10.1214/aoms/1177732186), with the correction for ties. S is the
    sum of squared deviations of the n completions' rank sums from their mean, over m annotators. None for fewer than
    two annotators or completions, where they ranked different completions, or where everything is tied.
    """
    ranks = [midranks(ranking) for ranking in rankings]
    if len(ranks) < 2 or any(one.keys() != ranks[0].keys() for one in ranks) or len(ranks[0]) < 2:
        return None
    m, n = len(ranks), len(ranks[0])
    sums = [sum(one[completion] for one in ranks) for completion in ranks[0]]
    s = sum((total - m * (n + 1) / 2) ** 2 for total in sums)
    tied = sum(len(tier) ** 3 - len(tier) for ranking in rankings for tier in ranking.tiers)
    most = m * m * (n**3 - n) - m * tied
    return 12 * s / most if most else None


def mean_kendall_w(rankings: Sequence[Ranking]) -> float | None:
    """The mean of W over the items that have one."""
    found = [w for said in by_item(rankings).values() if (w := kendall_w(said)) is not None]
    return fmean(found) if found else None


@dataclass(frozen=True)
class Annotator:
    """An annotator's agreement with the others."""

    annotator: str | int
    items: int  # that they judged
    comparisons: int  # of theirs on which there is a consensus
    agreement: float | None  # rate of agreement with the consensus; a tie counts half
    with_others: float | None
    """Leave-one-out: agreement with the consensus of the others, as the mean over items that others judged."""
    interval: tuple[float, float] | None  # 95% interval of `with_others`, over items
    noisy: bool
    """Whether the whole interval lies nearer to a coin's 0.5 than to the annotators' median, or below it."""

    @property
    def evidence(self) -> str:
        """Why, in words."""
        if self.with_others is None or self.interval is None:
            return "there is no consensus of others to compare with"
        low, high = self.interval
        share = f"{self.with_others:.2f} ({low:.2f} to {high:.2f})"
        return f"with the others in {share}, over {self.items} item{'s' if self.items > 1 else ''}"


class Shares(NamedTuple):
    """How often annotators say what is agreed on, of one item or of several."""

    judged: Counter[str | int]  # how many items each of them judged
    with_all: dict[str | int, list[float]]
    """For each comparison on which there is a consensus: 1 where they say the same, 0, or 1/2 if tied."""
    with_others: dict[str | int, list[float]]
    """For each item on which the others have a consensus, the mean of the same with that."""


def shares(
    rankings: Sequence[Ranking],
    agreed: Sequence[Agreed],
    method: Callable[[Sequence[Ranking]], Mapping[str | int, Belief]],
    decided: Mapping[str, Ranking] = MappingProxyType({}),
) -> Shares:
    """The shares of those who ranked, in the order in which they first appear.

    The consensus `method` runs again for each annotator, without their answers. What is `decided`, by item, holds in
    place of the consensus, also of the others.
    """
    found = Shares(Counter(ranking.annotator for ranking in rankings), {}, {})
    for who in found.judged:
        said = [ranking for ranking in rankings if ranking.annotator == who]
        others = [ranking for ranking in rankings if ranking.annotator != who]
        without = agree(others, method(others), decided)
        found.with_all[who] = [share for item in _agreeing(said, agreed) for share in item]
        found.with_others[who] = [fmean(item) for item in _agreeing(said, without)]
    return found


def _agreeing(rankings: Sequence[Ranking], agreed: Sequence[Agreed]) -> Iterable[list[float]]:
    """Of each item, by pair of the consensus that a ranking compares: 1 where it says the same, 0, or 1/2 if tied."""
    pairs = {one.item: set(one.pairs) for one in agreed}
    found: defaultdict[str | int, list[float]] = defaultdict(list)
    for vote in votes_of(rankings):
        for chosen, rejected in ((vote.first, vote.second), (vote.second, vote.first)):
            if (chosen, rejected) in pairs.get(vote.item, ()):
                found[vote.item].append((1 + vote.outcome * (1 if chosen == vote.first else -1)) / 2)
    return found.values()


def verdict_shares(verdicts: Mapping[str | int, Hashable], *decided: Hashable) -> Shares:
    """The shares of one item's annotators: 1 where theirs is the verdict that was decided or has the most votes."""
    votes, found = Counter(verdicts.values()), Shares(Counter(verdicts.keys()), {}, {})
    for who, value in verdicts.items():
        others = (decided or _most(votes - Counter([value]))) if len(verdicts) > 1 else ()
        found.with_all[who] = [float(verdict == value) for verdict in decided or _most(votes)]
        found.with_others[who] = [float(verdict == value) for verdict in others]
    return found


def _most(votes: Counter[Hashable]) -> list[Hashable]:
    """The verdict with the most votes, if one has more than any other."""
    (first, most), *others = votes.most_common(2)
    return [] if others and others[0][1] == most else [first]


def annotators(found: Iterable[Shares], *, name_noisy: bool = True) -> list[Annotator]:
    """Everybody, from their shares of all items; `noisy` needs a consensus of comparisons.

    Chance agreement of verdicts depends on how many an item allows.
    """
    total = Shares(Counter(), defaultdict(list), defaultdict(list))
    for one in found:
        total.judged.update(one.judged)
        for who in one.judged:
            total.with_all[who] += one.with_all[who]
            total.with_others[who] += one.with_others[who]
    means = {who: fmean(mine) for who, mine in total.with_others.items() if mine}
    level = median(means.values()) if means else 0.5
    rows: list[Annotator] = []
    for who, items in total.judged.items():
        mine = total.with_all[who]
        interval = mean_interval(total.with_others[who]) if who in means else None
        # without a consensus annotators cannot be compared
        noisy = name_noisy and interval is not None and level > 0.5 and interval[1] < (0.5 + level) / 2
        rows.append(Annotator(who, items, len(mine), fmean(mine) if mine else None, means.get(who), interval, noisy))
    return rows
