"""What readers make of rows, with what they left out and which columns they did not read."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypedDict, TypeVar, Unpack

from posttrain.data.given import Source
from posttrain.data.layouts import own_rows
from posttrain.data.mixtures import mix
from posttrain.data.records import Record
from posttrain.data.sources import read_rows
from posttrain.errors import DataError, described

T = TypeVar("T")
U = TypeVar("U")


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

    def usable(
        self,
        rows: Iterable[Record],  # in posttrain's layouts or public ones
        read: Callable[[Record], Sequence[U]],  # what a row in posttrain's layout becomes; raises `Unusable`
        named: Collection[str] = (),  # columns that are read later, such as by a reward
        own: Callable[[Record], Sequence[Record]] = own_rows,  # a row in posttrain's columns
    ) -> list[U]:
        """What `read` makes of every row, without those of which nothing can be learned; it notes what was not read.

        Raises:
            DataError: of `read`; a column that nobody reads changes what a row means; or no row can be used.
        """
        kept: list[U] = []
        left_out: list[str] = []
        for row in rows:
            if not (ones := own(row)):
                left_out.append(f"{row.place}: it has no annotations")
            for one in ones:
                try:
                    found = read(one)
                except Unusable as problem:
                    left_out.append(f"{row.place}: {problem}")
                    continue
                except (AttributeError, KeyError, TypeError, OverflowError, RecursionError) as error:
                    raise row.fail(f"it does not match its layout ({described(error)})") from error
                self.unread |= dict.fromkeys(one.others(named))
                kept += found
        if not kept:
            raise DataError(f"{left_out[0]}, and no other row can be used for training")
        self.left_out += tuple(left_out)
        return kept


class Reading(TypedDict, total=False):
    """Which rows of a source are read."""

    split: str | None  # which part; "train" unless said otherwise
    columns: Mapping[str, str] | None  # new name -> name in the data
    limit: int | None  # the most rows, from the first
    seed: int  # which rows of a mixture are repeated


def read_all(
    source: Source,
    read: Callable[[Record], Sequence[T]],
    *,
    gather: Callable[[Sequence[Record]], Sequence[Record]] = list,  # joins rows of a part before they are read
    own: Callable[[Record], Sequence[Record]] = own_rows,
    # the items of a part that stay together in a mixture, and count once
    together: Callable[[list[T]], Sequence[Sequence[T]]] = lambda items: [[item] for item in items],
    **reading: Unpack[Reading],
) -> Loaded[T]:
    """What `Loaded.usable` makes of the rows of a source, or of each part of a mixture.

    A source is a file, folder, hub id, the rows themselves (see `load_rows`), or a mixture of them (see `mixtures`).
    """
    found, split = Loaded[T](), reading.get("split")

    def load(part: Source, columns: Mapping[str, str] | None, limit: int | None) -> Sequence[Sequence[T]]:
        rows = gather(read_rows(part, split=split, columns=columns, limit=limit))
        return together(found.usable(rows, read, own=own))

    columns, limit, seed = reading.get("columns"), reading.get("limit"), reading.get("seed", 0)
    for items in mix(source, load, columns=columns, limit=limit, seed=seed):
        found += items
    return found


def load_texts(source: Source, **reading: Unpack[Reading]) -> Loaded[str]:
    """The texts of a data set, for losses of pretraining: the field `text` of each row. Arguments as of `read_all`.

    Raises:
        DataError: as `load_rows`, or a row without text, by file, line and field.
    """
    return read_all(source, lambda row: [row.text("text")], **reading)
