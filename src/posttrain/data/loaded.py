"""What readers make of rows, with what they left out and which columns they did not read."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypedDict, TypeVar, Unpack

from posttrain.data.given import Source
from posttrain.data.mixtures import mix
from posttrain.data.public_layouts import own_rows
from posttrain.data.records import Record
from posttrain.data.sources import read_rows
from posttrain.errors import DataError, described

T = TypeVar("T")
U = TypeVar("U")


class Unusable(Exception):
    """A well-formed row without a training signal."""


class Loaded(list[T]):
    """Loaded items.

    Attributes:
        left_out: the dropped rows: where each is, and why.
        unread: the columns that were not read, and keys of messages as `messages.KEY`.
    """

    def __init__(self, items: Iterable[T] = (), left_out: Iterable[str] = (), unread: Iterable[str] = ()) -> None:
        super().__init__(items)
        self.left_out = tuple(left_out)
        self.unread = dict.fromkeys(unread)

    @property
    def items(self) -> list[T]:
        """The items alone."""
        return list(self)

    def usable(
        self,
        rows: Iterable[Record],
        read: Callable[[Record], Sequence[U]],
        named: Collection[str] = (),
        own: Callable[[Record], Sequence[Record]] = own_rows,
    ) -> list[U]:
        """What `read` makes of every row, without those of which nothing can be learned; it notes what was not read.

        Args:
            rows: in posttrain's layouts or public ones.
            read: what a row in posttrain's layout becomes; raises `Unusable`.
            named: columns that are read later, such as by a reward.
            own: a row in posttrain's columns.

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

    @property
    def notes(self) -> list[str]:
        """What to tell the user of columns that were not read."""
        return [f"not read: {', '.join(self.unread)}"] if self.unread else []


class Reading(TypedDict, total=False):
    """Which rows of a source are read.

    Attributes:
        split: which part; "train" unless said otherwise.
        columns: new name -> name in the data.
        limit: the most rows, from the first.
        seed: which rows of a mixture are repeated.
    """

    split: str | None
    columns: Mapping[str, str] | None
    limit: int | None
    seed: int


def read_all(
    source: Source,
    read: Callable[[Record], Sequence[T]],
    *,
    gather: Callable[[Sequence[Record]], Sequence[Record]] = list,
    together: Callable[[list[T]], Sequence[Sequence[T]]] = lambda items: [[item] for item in items],
    **reading: Unpack[Reading],
) -> Loaded[T]:
    """What `Loaded.usable` makes of the rows of a source, or of each part of a mixture.

    Args:
        source: a file, folder, hub id, the rows themselves (see `load_rows`), or a mixture of them (see `mixtures`).
        read: what a row becomes; raises `Unusable`.
        gather: joins rows of a part before they are read.
        together: the items of a part that stay together in a mixture, and count once.
        **reading: which rows.
    """
    found, split = Loaded[T](), reading.get("split")

    def load(part: Source, columns: Mapping[str, str] | None, limit: int | None) -> Sequence[Sequence[T]]:
        return together(found.usable(gather(read_rows(part, split=split, columns=columns, limit=limit)), read))

    columns, limit, seed = reading.get("columns"), reading.get("limit"), reading.get("seed", 0)
    for items in mix(source, load, columns=columns, limit=limit, seed=seed):
        found += items
    return found
