"""What readers make of rows: what they left out, which columns they did not read; and weighted mixtures of datasets.

An epoch of a mixture is the shortest list that holds every item of every source and keeps the shares,

    N = max_i n_i / p_i,   c_i = p_i N,   p_i = w_i / sum_j w_j,

where source i has n_i items and weight w_i. Its c_i items are whole passes over the source, in its order, and of one
more pass a sample without replacement that the seed draws. Sources are interleaved evenly, so that a beginning of the
list, as `limit` takes it, has the shares, too. Nothing is dropped: a source smaller than its share is repeated.
"""

import math
import random
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple, TypedDict, TypeVar, Unpack

from posttrain.data.files import Source, exists, is_gym
from posttrain.data.layouts import own_rows
from posttrain.data.order import seed_for
from posttrain.data.records import Record
from posttrain.data.sources import UnknownColumn, has_splits, read_rows
from posttrain.errors import DataError, UserError, described

T = TypeVar("T")


Load = Callable[[Source, Mapping[str, str] | None, int | None], Sequence[T]]
"""Reads one source, with these columns and at most this number of rows."""


class Unusable(Exception):
    """A well-formed row without a training signal."""


class Loaded(list[T]):
    """Loaded items, and what became of the others: `left_out` and `unread`."""

    def __init__(self, items: Iterable[T] = (), left_out: Iterable[str] = (), unread: Iterable[str] = ()) -> None:
        super().__init__(items)
        self.left_out = tuple(left_out)  # the dropped rows: where each is, and why
        self.unread = dict.fromkeys(unread)  # columns that were not read, and keys of messages as `messages.KEY`

    @property
    def items(self) -> list[T]:
        """The items alone."""
        return list(self)

    @property
    def notes(self) -> list[str]:
        """What to tell the user of columns that were not read."""
        return [f"not read: {', '.join(self.unread)}"] if self.unread else []


class Reading(TypedDict, total=False):
    """Which rows of a source are read."""

    split: str | None  # which part; "train" unless said otherwise
    columns: Mapping[str, str] | None  # new name -> name in the data
    limit: int | None  # the most rows, from the first
    seed: int  # which rows of a mixture are repeated


def read_all(
    source: Source,
    read: Callable[[Record], Sequence[T]],  # what a row in posttrain's layout becomes; raises `Unusable`
    *,
    gather: Callable[[Sequence[Record]], Sequence[Record]] = list,  # joins rows of a part before they are read
    own: Callable[[Record], Sequence[Record]] = own_rows,  # a row in posttrain's columns
    named: Collection[str] = (),  # columns that are read later, such as by a reward
    make: Load[T] | None = None,  # the items of a gym: source
    # the items of a part that stay together in a mixture, and count once
    together: Callable[[list[T]], Sequence[Sequence[T]]] = lambda items: [[item] for item in items],
    **reading: Unpack[Reading],
) -> Loaded[T]:
    """What `read` makes of every row of a source, or of each part of a mixture, that says something to learn.

    A source is a file, folder, hub id, the rows themselves (see `load_rows`), or a mixture of them. A row that cannot
    be read is a `DataError`; so is a column that nobody reads and that changes what a row means, and a part without any
    row that can be used.
    """
    found, split = Loaded[T](), reading.get("split")

    def load(part: Source, columns: Mapping[str, str] | None, limit: int | None) -> Sequence[Sequence[T]]:
        if make is not None and is_gym(part):
            return together(list(make(part, columns, limit)))
        kept: list[T] = []
        left_out: list[str] = []
        for row in gather(read_rows(part, split=split, columns=columns, limit=limit)):
            if not (ones := own(row)):
                left_out.append(f"{row.place}: it has no annotations")
            for one in ones:
                try:
                    kept += read(one)
                except Unusable as problem:
                    left_out.append(f"{row.place}: {problem}")
                    continue
                except (AttributeError, KeyError, TypeError, OverflowError, RecursionError) as error:
                    raise row.fail(f"it does not match its layout ({described(error)})") from error
                found.unread |= dict.fromkeys(one.others(named))
        if not kept:
            raise DataError(f"{left_out[0]}, and no other row can be used for training")
        found.left_out += tuple(left_out)
        return together(kept)

    columns, limit, seed = reading.get("columns"), reading.get("limit"), reading.get("seed", 0)
    for items in mix(source, load, columns=columns, limit=limit, seed=seed):
        found += items
    return found


def load_texts(source: Source, **reading: Unpack[Reading]) -> Loaded[str]:
    """The texts of a data set, for losses of pretraining: the field `text` of each row. Arguments as of `read_all`."""
    return read_all(source, lambda row: [row.text("text")], **reading)


class Part(NamedTuple):
    """One source of a mixture, and its share: those of all parts sum to 1."""

    source: Source
    share: Fraction


def parts_of(source: Source) -> tuple[Part, ...]:
    """What a data set is mixed of: itself alone, or the parts of `a.jsonl=0.7 b.parquet=0.3`.

    Example:
        >>> [(part.source, str(part.share)) for part in parts_of("a.jsonl=3 'gym:chain_sum?max_terms=3=1'")]
        [('a.jsonl', '3/4'), ('gym:chain_sum?max_terms=3', '1/4')]
    """
    alone = (Part(source, Fraction(1)),)
    if not isinstance(source, str) or exists(source) or "=" not in source or len(source.split()) == 1:
        return alone
    form = 'expected a weight for each source, such as "a.jsonl=0.7 b.parquet=0.3"'
    try:
        words = shlex.split(source)
    except ValueError as error:
        raise UserError(f"cannot read the mixture {source!r}: {error}; {form}") from error
    if len(words) == 1:
        return alone
    weighted: list[Part] = []
    for word in words:
        name, _, text = word.rpartition("=")
        part = f"the part '{word}' of the mixture '{source}'"
        try:
            weight = float(text)
        except ValueError:
            raise UserError(f"{part} has no weight; {form}") from None
        if not 0 < weight < math.inf:
            raise UserError(f"{part} needs a weight above 0; {form}")
        weighted.append(Part(name, Fraction(text.strip().replace("_", ""))))
    return tuple(Part(name, weight / sum(part.share for part in weighted)) for name, weight in weighted)


def mix(source: Source, load: Load[T], *, columns: Mapping[str, str] | None, limit: int | None, seed: int) -> list[T]:
    """The items of a source, or one epoch of a mixture, of which at least one part must have each of the `columns`."""
    parts = parts_of(source)
    if len(parts) == 1:
        return list(load(parts[0].source, columns, limit))
    if limit is not None and limit < 1:
        raise UserError(f"the limit of rows must be 1 or more; got {limit}")
    found = [_load(part.source, load, columns or {}) for part in parts]
    for field in columns or {}:
        if all(field in problems for _, problems in found):
            raise found[0][1][field]
    return interleaved([items for items, _ in found], [part.share for part in parts], seed)[:limit]


def _load(source: Source, load: Load[T], columns: Mapping[str, str]) -> tuple[Sequence[T], Mapping[str, UnknownColumn]]:
    """The items of one part, and of each column that it does not have the error which says so."""
    wanted, problems = dict(columns), dict[str, UnknownColumn]()
    while True:
        try:
            return load(source, wanted or None, None), problems
        except UnknownColumn as problem:
            problems[problem.field] = problem
            del wanted[problem.field]
        except DataError as error:
            if not problems:
                raise
            raise DataError(f"{source}: {next(iter(problems.values()))}") from error


def interleaved(lists: Sequence[Sequence[T]], shares: Sequence[Fraction], seed: int) -> list[T]:
    """One epoch of lists that have these shares.

    Example:
        >>> "".join(interleaved(["abcdef", "xy"], [Fraction(2, 3), Fraction(1, 3)], seed=0))[:6]
        'axbcyd'
    """
    total = max(Fraction(len(items)) / share for items, share in zip(lists, shares, strict=True))
    placed: list[tuple[float, int, T]] = []
    for number, (items, share) in enumerate(zip(lists, shares, strict=True)):
        count = max(len(items), round(share * total))
        passes, rest = divmod(count, len(items))
        more = sorted(random.Random(seed_for(seed, "mixture", number)).sample(range(len(items)), rest))
        order = [*(list(range(len(items))) * passes), *more]
        placed += [((i + 0.5) / count, number, items[place]) for i, place in enumerate(order)]
    return [item for _, _, item in sorted(placed, key=lambda one: one[:2])]


def split_for(source: Source) -> str | None:
    """The split "test", where a source or a part of the mixture may be divided into splits; else None, all of it."""
    return "test" if any(has_splits(part.source) for part in parts_of(source)) else None
