"""What readers make of rows, with what they left out and which columns they did not read."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

from posttrain.data.public_layouts import own_rows
from posttrain.data.records import Record
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
                left_out.append(f"{row.place}: nobody has annotated it")
            for one in ones:
                try:
                    found = read(one)
                except Unusable as problem:
                    left_out.append(f"{row.place}: {problem}")
                    continue
                except (AttributeError, KeyError, TypeError, OverflowError, RecursionError) as error:
                    raise row.fail(f"it is not as its layout has it ({described(error)})") from error
                self.unread |= dict.fromkeys(one.others(named))
                kept += found
        if not kept:
            raise DataError(f"{left_out[0]}, and nothing can be learned from the other rows either")
        self.left_out += tuple(left_out)
        return kept

    @property
    def notes(self) -> list[str]:
        """What to tell the user of columns that were not read."""
        return [f"not read: {', '.join(self.unread)}"] if self.unread else []
