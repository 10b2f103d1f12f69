"""Rankings by several annotators: file format, the pairwise votes that they imply, and the consensus.

A method of `aggregation` estimates from all rankings, for every pair of completions of an item, the probabilities that
the first is better, the second is, or neither. The rest is common to all methods.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from types import MappingProxyType
from typing import Any, NamedTuple

from posttrain.data import Record, read_rows
from posttrain.types import Ranking

SAME = 1e-6  # smaller differences are rounding


class Vote(NamedTuple):
    """A pairwise comparison implied by a ranking; `first` has the lower number."""

    item: str | int
    first: int
    second: int
    annotator: str | int
    outcome: int  # 1: the first is better; -1: the second is; 0: neither


def load_rankings(source: str) -> list[Ranking]:
    """The rankings of a data set: `item`, `annotator`, `ranking`, and `failed` where there are any.

    `ranking` is a list of groups of completions, best group first, each completion by its number from 0. Completions in
    one group are equally good; those in `failed` are worse than all others. One row says what one annotator thinks of
    one item (1 and "1" are the same); annotators need not have ranked the same completions. A row whose `check` is true
    is left out: its answer was known, and it was there to see who pays attention.

    Raises:
        DataError: as `load_rows`; a row that is no ranking, by file, line and field; an annotator judged an item twice.
    """
    rankings: list[Ranking] = []
    seen: dict[tuple[str | int, str | int], str] = {}
    for row in read_rows(source):
        if row.fields.get("check") is True:
            continue
        rankings.append(said := _ranking(row))
        if (before := seen.setdefault((said.item, said.annotator), row.place)) != row.place:
            raise row.fail(
                f"{said.annotator!r} has judged item {said.item!r} already, in {before}; keep one of the two"
            )
    return rankings


def _ranking(row: Record) -> Ranking:
    for needed in ("item", "annotator", "ranking"):
        if needed not in row:
            raise row.missing(needed)
    item, annotator = _name(row, "item"), _name(row, "annotator")
    ranking = row.fields["ranking"] or []
    if not isinstance(ranking, Sequence) or isinstance(ranking, str):
        raise row.fail(f"field 'ranking' must be a list; got {ranking!r}")
    groups = tuple(_completions(row, group, "each group of 'ranking'") for group in ranking)
    failed = _completions(row, row.fields.get("failed") or [], "'failed'")
    named = Counter(completion for group in (*groups, failed) for completion in group)
    if not named:
        raise row.fail("field 'ranking' names no completion")
    if twice := [one for one, times in named.items() if times > 1]:
        raise row.fail(f"completion {twice[0]} stands twice in 'ranking' and 'failed'")
    return Ranking(item, annotator, tuple(group for group in groups if group), failed, source=row.place)


def _name(row: Record, column: str) -> str:
    """A name as text, so that 1 in one file and "1" in another, or in a csv, is the same item."""
    value = row.fields[column]
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise row.fail(f"field '{column}' must be a name or a number; got {value!r}")
    return str(value)


def _completions(row: Record, value: Any, what: str) -> tuple[int, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise row.fail(f"{what} must be a list of completions, such as [0, 2]; got {value!r}")
    for one in value:
        if isinstance(one, bool) or not isinstance(one, int) or one < 0:
            raise row.fail(f"{what} has completions by their number, 0 or more; got {one!r}")
    return tuple(value)


def votes_of(rankings: Iterable[Ranking]) -> Iterator[Vote]:
    """Pairwise comparisons of rankings; two completions that both failed are not compared."""
    for ranking in rankings:
        place = {one: level for level, tier in enumerate(ranking.tiers) for one in tier}
        for first, second in combinations(sorted(place), 2):
            if not {first, second} <= set(ranking.failed):
                better = (place[first] < place[second]) - (place[first] > place[second])
                yield Vote(ranking.item, first, second, ranking.annotator, better)


def midranks(ranking: Ranking) -> dict[int, float]:
    """Each completion's rank from 1; those that are tied share the mean of the ranks that they take up.

    Example:
        >>> midranks(Ranking("a", "b", ((2,), (0, 1))))
        {2: 1.0, 0: 2.5, 1: 2.5}
    """
    found: dict[int, float] = {}
    for tier in ranking.tiers:
        found |= dict.fromkeys(tier, len(found) + (len(tier) + 1) / 2)
    return found


def by_item(rankings: Iterable[Ranking]) -> Mapping[str | int, list[Ranking]]:
    """Rankings of each item, in the order in which items first appear."""
    found: defaultdict[str | int, list[Ranking]] = defaultdict(list)
    for ranking in rankings:
        found[ranking.item].append(ranking)
    return found


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
