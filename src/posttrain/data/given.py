"""Rows given as objects: dictionaries in a list or generator, a `datasets.Dataset`, a DataFrame, a table of pyarrow.

No library is imported for them: an object is known by what it can do.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from posttrain.errors import DataError, UserError
from posttrain.types import Frame

Source = str | Path | Iterable[Mapping[str, Any]] | Frame
"""A data set: its source as text (see `load_rows`), or its rows themselves."""
GIVEN = "the rows given"


def is_gym(source: object) -> bool:
    """Whether a data set is generated: a gym: source."""
    return isinstance(source, str) and source.startswith("gym:")


def rows_given(rows: Iterable[Mapping[str, Any]] | Frame) -> Iterator[dict[str, Any]]:
    """Rows as JSON would have them: lists for tuples and arrays, Python's numbers for numpy's; what else is as it is.

    A missing cell of a DataFrame is None; a NaN stays in a column of floats, where a number may be meant. `rows` are
    read once.

    Raises:
        UserError: not rows, several splits, or a streaming data set.
        DataError: a row that is no mapping, or a column whose name is no text.
    """
    for number, row in enumerate(_listed(rows), 1):
        if not isinstance(cast(object, row), Mapping):
            raise DataError(f"row {number} of {GIVEN}: expected a dictionary of named fields; got {type(row).__name__}")
        if other := [name for name in row if not isinstance(cast(object, name), str)]:
            raise DataError(f"row {number} of {GIVEN}: the name of a column must be text; got {other[0]!r}")
        yield {name: _plain(value) for name, value in row.items()}


def _listed(rows: Any) -> Iterable[Mapping[str, Any]]:
    kind = type(rows).__name__
    if any(base.__name__ == "IterableDataset" for base in type(rows).__mro__):
        raise UserError("streaming data sets are not read; take rows: list(dataset.take(N))")
    if isinstance(rows, Mapping):
        first = next(iter(cast(Mapping[Any, Any], rows)), "train")
        raise UserError(f"a data set is a list of rows; got {kind}; choose one of its splits, such as data[{first!r}]")
    for to_list in ("to_pylist", "to_dicts"):  # of pyarrow and of polars
        if hasattr(rows, to_list):
            return getattr(rows, to_list)()
    if hasattr(rows, "to_dict") and hasattr(rows, "columns"):  # a DataFrame of pandas
        if twice := [name for name in rows.columns if list(rows.columns).count(name) > 1]:
            raise DataError(f"the DataFrame has two columns called {twice[0]!r}; rename one of them")
        floats = [str(kind).startswith("float") for kind in rows.dtypes]  # others have a missing value of their own
        return rows.astype(object).where(rows.notna() | floats, None).to_dict("records")
    if hasattr(rows, "with_format"):
        return rows.with_format(None)
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        raise UserError(
            f"a data set is a list of rows, a `datasets.Dataset`, a DataFrame, or the name of a source; got {kind}"
        )
    return cast(Iterable[Mapping[str, Any]], rows)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast(Sequence[Any], value)]
    if hasattr(value, "tolist"):  # arrays and scalars of numpy
        return _plain(value.tolist())
    return value
