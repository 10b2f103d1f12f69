"""Consensus of several annotators: pairwise preferences, then a ranking.

A method of `aggregation/` estimates from all rankings, for every pair of completions of an item, the probabilities that
the first is better, the second is, or neither. The rest is common to all methods.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
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

    odds: Mapping[tuple[int, int], Odds]
    """For every compared pair of completions; the first has the lower number."""
    strengths: Mapping[int, float] = field(default_factory=dict[int, float])
    """Of each completion, where the method has them: log-odds, 0 on average."""
    errors: Mapping[int, float] = field(default_factory=dict[int, float])
    """Their standard errors."""


@dataclass(frozen=True)
class Agreed:
    """The consensus on one item."""

    item: str | int
    order: tuple[tuple[int, ...], ...]
    """Groups of completions that are equally good, best group first."""
    failed: tuple[int, ...]
    """Those that more than half of their annotators failed; they are also in the order."""
    pairs: tuple[tuple[int, int], ...]
    """(chosen, rejected): every two that the method tells apart, and the order too."""
    belief: Belief


def agree(rankings: Sequence[Ranking], beliefs: Mapping[str | int, Belief]) -> list[Agreed]:
    """The consensus on each item, in the order in which items first appear.

    A completion's place is its Copeland score: of how many others it is found better, and half of those that are found
    equal. Where some completion beats every other that one is first, and where the verdicts make an order at all it is
    this one; three that beat each other in a circle come out equal.
    """
    found: list[Agreed] = []
    for item, said in by_item(rankings).items():
        completions = sorted({one for ranking in said for tier in ranking.tiers for one in tier})
        verdicts = {pair: odds.verdict for pair, odds in beliefs[item].odds.items()}
        wins = dict.fromkeys(completions, 0)
        for (first, second), verdict in verdicts.items():
            wins[first] += verdict
            wins[second] -= verdict
        failed = tuple(one for one in completions if _failed(one, said))
        level = {one: (one in failed, -wins[one]) for one in completions}
        order = tuple(tuple(one for one in completions if level[one] == here) for here in sorted(set(level.values())))
        pairs = [pair if verdict > 0 else pair[::-1] for pair, verdict in verdicts.items() if verdict]
        pairs = [(chosen, rejected) for chosen, rejected in pairs if level[chosen] < level[rejected]]
        pairs.sort(key=lambda pair: (level[pair[0]], level[pair[1]], pair))
        found.append(Agreed(item, order, failed, tuple(pairs), beliefs[item]))
    return found


def settle(found: Sequence[Agreed], decided: Mapping[str, Ranking]) -> list[Agreed]:
    """The consensus, replaced by rulings for decided items."""
    return [_settled(one, decided[str(one.item)]) if one.item in decided else one for one in found]


def _settled(one: Agreed, decided: Ranking) -> Agreed:
    """A decision's pairs are all that its groups tell apart; those that it failed are the last group."""
    tiers = list(combinations(decided.tiers, 2))
    pairs = tuple((chosen, rejected) for better, worse in tiers for chosen in better for rejected in worse)
    return Agreed(one.item, decided.tiers, decided.failed, pairs, one.belief)


def _failed(completion: int, rankings: Sequence[Ranking]) -> bool:
    judged = [ranking for ranking in rankings if any(completion in tier for tier in ranking.tiers)]
    return 2 * sum(completion in ranking.failed for ranking in judged) > len(judged)
