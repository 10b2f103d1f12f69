"""Majority vote per pair of completions."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from posttrain.annotation.consensus import Belief, Odds
from posttrain.annotation.rankings import by_item, votes_of
from posttrain.types import Ranking


def beliefs(rankings: Sequence[Ranking]) -> Mapping[str | int, Belief]:
    """The shares of the votes.

        P(i > j) = votes for i / votes on i and j

    Example:
        >>> said = [Ranking("x", name, order) for name, order in (("a", ((0,), (1,))), ("b", ((0,), (1,))))]
        >>> beliefs([*said, Ranking("x", "c", ((1,), (0,)))])["x"].odds[0, 1].first
        0.6666666666666666
    """
    found: dict[str | int, Belief] = {}
    for item, said in by_item(rankings).items():
        votes: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)
        for vote in votes_of(said):
            votes[vote.first, vote.second][vote.outcome] += 1
        found[item] = Belief({pair: Odds(*(n[o] / n.total() for o in (1, 0, -1))) for pair, n in votes.items()})
    return found
