"""Consensus of several annotators: pairwise preferences, then a ranking.

A method of `aggregation/` estimates from all rankings, for every pair of completions of an item, the probabilities that
the first is better, the second is, or neither. The rest is common to all methods.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from types import MappingProxyType
from typing import NamedTuple

from posttrain.annotation.rankings import by_item
from posttrain.types import Ranking

SAME = 1e-6  # smaller differences are rounding


class Odds(NamedTuple):
    """How likely the first of two completions is the better one, neither is, or the second is. They sum to 1."""

    first: float
    neither: float
    second: float

    @property
    def verdict(self) -> int:
        """1, 0 or -1 for the likeliest of the three; 0 where the first and the second are as likely.

        Where one of them is as likely as neither, it is that one: who finds two equal leaves it to others to tell them
        apart.
        """
        if abs(self.first - self.second) <= SAME or self.neither > max(self.first, self.second) + SAME:
            return 0
        return 1 if self.first > self.second else -1


@dataclass(frozen=True)
class Belief:
    """A method's estimate for one item."""

    odds: Mapping[tuple[int, int], Odds]  # for every compared pair of completions; the first has the lower number
    strengths: Mapping[int, float] = field(default_factory=dict[int, float])
    """Of each completion, where the method has them: log-odds, 0 on average."""
    errors: Mapping[int, float] = field(default_factory=dict[int, float])  # their standard errors


@dataclass(frozen=True)
class Agreed:
    """The consensus on one item."""

    item: str | int
    order: tuple[tuple[int, ...], ...]  # groups of completions that are equally good, best group first
    failed: tuple[int, ...]  # those that more than half of their annotators failed; they are also in the order
    pairs: tuple[tuple[int, int], ...]  # (chosen, rejected): every two that the method tells apart, and the order too
    belief: Belief


def agree(
    rankings: Sequence[Ranking],
    beliefs: Mapping[str | int, Belief],
    decided: Mapping[str, Ranking] = MappingProxyType({}),
) -> list[Agreed]:
    """The consensus on each item, in the order in which items first appear.

    A completion's place is its Copeland score: of how many others it is found better, and half of those that are found
    equal. Where some completion beats every other that one is first, and where the verdicts make an order at all it is
    this one; three that beat each other in a circle come out equal. Where a manager has decided an item, that ruling is
    the consensus: its pairs are all that its groups tell apart; those that it failed are the last group.
    """
    found: list[Agreed] = []
    for item, said in by_item(rankings).items():
        if (ruling := decided.get(str(item))) is not None:
            tiers = combinations(ruling.tiers, 2)
            told = tuple((chosen, rejected) for better, worse in tiers for chosen in better for rejected in worse)
            found.append(Agreed(item, ruling.tiers, ruling.failed, told, beliefs[item]))
            continue
        judged = Counter(one for ranking in said for tier in ranking.tiers for one in tier)
        failing = Counter(one for ranking in said for one in ranking.failed)
        completions = sorted(judged)
        verdicts = {pair: odds.verdict for pair, odds in beliefs[item].odds.items()}
        wins = dict.fromkeys(completions, 0)
        for (first, second), verdict in verdicts.items():
            wins[first] += verdict
            wins[second] -= verdict
        failed = tuple(one for one in completions if 2 * failing[one] > judged[one])
        level = {one: (one in failed, -wins[one]) for one in completions}
        order = tuple(tuple(one for one in completions if level[one] == here) for here in sorted(set(level.values())))
        pairs = [pair if verdict > 0 else pair[::-1] for pair, verdict in verdicts.items() if verdict]
        pairs = [(chosen, rejected) for chosen, rejected in pairs if level[chosen] < level[rejected]]
        pairs.sort(key=lambda pair: (level[pair[0]], level[pair[1]], pair))
        found.append(Agreed(item, order, failed, tuple(pairs), beliefs[item]))
    return found
