"""Rankings: file format, and the pairwise preferences and labels they imply."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from posttrain.data import Record, read_rows
from posttrain.types import Ranking


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
    for field in ("item", "annotator", "ranking"):
        if field not in row:
            raise row.missing(field)
    item, annotator = (_name(row, field) for field in ("item", "annotator"))
    ranking = row.fields["ranking"] or []
    if not isinstance(ranking, Sequence) or isinstance(ranking, str):
        raise row.fail(f"field 'ranking' must be a list; got {ranking!r}")
    groups = tuple(_completions(row, group, "each group of 'ranking'") for group in ranking)
    failed = _completions(row, row.fields.get("failed") or [], "'failed'")
    named = [completion for group in (*groups, failed) for completion in group]
    if not named:
        raise row.fail("field 'ranking' names no completion")
    if len(set(named)) < len(named):
        twice = next(one for one in named if named.count(one) > 1)
        raise row.fail(f"completion {twice} stands twice in 'ranking' and 'failed'")
    return Ranking(item, annotator, tuple(group for group in groups if group), failed, source=row.place)


def _name(row: Record, field: str) -> str:
    """A name as text, so that 1 in one file and "1" in another, or in a csv, is the same item."""
    value = row.fields[field]
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise row.fail(f"field '{field}' must be a name or a number; got {value!r}")
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
