"""Readers of files (jsonl, json, csv, tsv, parquet and arrow, also compressed), and of rows given as objects.

`pyarrow` is imported when a parquet, arrow or zst file is read. No library is imported for a `datasets.Dataset`, a
DataFrame or a table of pyarrow: an object is known by what it can do.
"""

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import os
import re
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

from posttrain.data.records import Record
from posttrain.errors import DataError, UserError, first_line
from posttrain.types import Frame

Source = str | Path | Iterable[Mapping[str, Any]] | Frame
"""A data set: its source as text (see `load_rows`), or its rows themselves."""
GIVEN = "the rows given"

TEXT = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
TABLES = (".parquet", ".arrow")
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
READABLE = f"{', '.join(TEXT + TABLES)} (also with {', '.join(COMPRESSED)})"
_LONGEST_CELL = 2**31 - 1  # characters of a csv cell


def is_gym(source: object) -> bool:
    """Whether a data set is generated: a gym: source."""
    return isinstance(source, str) and source.startswith("gym:")


def exists(source: str) -> bool:
    """Whether a source is a path that is there; `Path.exists` raises OSError for one that is too long to be a name."""
    return os.path.exists(os.path.expanduser(path_of(source)))


def path_of(source: str) -> str:
    """A source without `?encoding=NAME`."""
    return _ENCODED.sub("", source)


_ENCODED = re.compile(r"\?encoding=([\w.-]+)$")


def encoding_of(source: str) -> str:
    """The encoding that a source names, such as `rows.csv?encoding=cp1252`; "" for UTF-8."""
    if (found := _ENCODED.search(source)) is None:
        return ""
    try:
        return codecs.lookup(found[1]).name
    except LookupError:
        raise UserError(
            f"there is no encoding '{found[1]}'; expected one of Python's, such as cp1252 or utf-16"
        ) from None


def kind_of(name: str) -> str:
    """The format that a file's name says, such as .jsonl of `a.JSONL.gz`; "" for a name that cannot be read."""
    name = name.lower()
    while name.endswith(COMPRESSED):
        name = name.rpartition(".")[0]
    return next((kind for kind in TEXT + TABLES if name.endswith(kind)), "")


def read_file(path: Path, name: str, encoding: str = "") -> Iterator[Record]:
    """The rows of one file; `name` is what errors and ids call it, `encoding` that of its text, unless it is UTF-8."""
    kind = kind_of(name)
    if not kind:
        raise DataError(f"cannot read '{path}'; expected a file that ends with {READABLE}")
    if encoding and kind in TABLES:
        raise DataError(f"'{path}' is not text, so it has no encoding '{encoding}'; leave it out")
    return _table(path, name, kind[1:]) if kind in TABLES else _TEXTS[kind](path, name, encoding or "utf-8-sig")


def row_of(value: Any, place: str, id: str) -> Record:
    """A value that must be a JSON object."""
    if not isinstance(value, Mapping):
        raise DataError(f"{place}: expected an object with named fields; got {type(value).__name__}")
    return Record(cast(Mapping[str, Any], value), place, id)


def _zst(file: IO[bytes]) -> IO[bytes]:
    import pyarrow

    return cast(IO[bytes], pyarrow.CompressedInputStream(file, "zstd"))


_OPENERS: dict[str, Callable[[IO[bytes]], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _zst}


@contextmanager
def _opened(path: Path) -> Generator[IO[bytes], None, None]:
    try:
        with path.open("rb") as raw:
            opened: IO[bytes] = raw
            name = path.name.lower()
            while name.endswith(COMPRESSED):
                name, _, suffix = name.rpartition(".")
                opened = _OPENERS[f".{suffix}"](opened)
            yield opened
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(
            f"cannot read {path.name}: {first_line(error)}; the file is damaged or incomplete; download it again"
        ) from error


def _lines(path: Path, encoding: str, newline: str | None = None) -> Iterator[str]:
    try:
        with _opened(path) as opened:
            yield from io.TextIOWrapper(opened, encoding=encoding, newline=newline)
    except UnicodeError as error:
        what = f"{error.reason} at byte {error.start}" if isinstance(error, UnicodeDecodeError) else str(error)
        raise DataError(
            f"{path.name} is not {'UTF-8' if encoding == 'utf-8-sig' else encoding} text ({what}); save it as UTF-8, "
            f"or name its encoding: '{path.name}?encoding=cp1252', or utf-16"
        ) from error


def _jsonl(path: Path, name: str, encoding: str) -> Iterator[Record]:
    for number, line in enumerate(_lines(path, encoding), 1):
        if line.strip():
            try:
                value = json.loads(line.strip())
            except json.JSONDecodeError as error:
                raise DataError(
                    f"{name} line {number}: not JSON ({error.msg}, column {error.colno}); "
                    'expected one object a line, such as {"prompt": ..., "answer": ...}'
                ) from error
            yield row_of(value, f"{name} line {number}", f"{name}:{number}")


def _json(path: Path, name: str, encoding: str) -> Iterator[Record]:
    try:
        values = json.loads("".join(_lines(path, encoding)) or "[]")
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":  # one object a line, whatever the file is called
            yield from _jsonl(path, name, encoding)
            return
        raise DataError(f"{name} line {error.lineno}: not JSON ({error.msg}, column {error.colno})") from error
    if isinstance(values, dict):
        found = cast(dict[str, Any], values)
        lists = [value for value in found.values() if isinstance(value, list)]
        is_row = any(name in found for name in _OF_A_ROW)
        values = [found] if is_row else lists[0] if len(lists) == 1 else values
    if not isinstance(values, list):
        raise DataError(
            f"{name}: expected a list of objects, or an object that holds one list; got {type(values).__name__}"
        )
    for number, value in enumerate(cast(list[Any], values), 1):
        yield row_of(value, f"{name} row {number}", f"{name}:{number}")


# what a row has, and no object that holds the rows
_OF_A_ROW = ("prompt", "messages", "conversations", "conversation", "instruction", "question", "chosen", "completion")


def _csv(path: Path, name: str, encoding: str) -> Iterator[Record]:
    """A table with a header. Cells are text; an empty one is no value."""
    csv.field_size_limit(_LONGEST_CELL)
    lines = _lines(path, encoding, newline="")
    first = next(lines, "")
    # a comma, or what the header has instead of one: spreadsheets with a decimal comma write semicolons
    delimiter = "\t" if kind_of(name) == ".tsv" else next((mark for mark in ",;\t" if mark in first), ",")
    table = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
    try:
        header = [cell.strip() or f"unnamed_{i}" for i, cell in enumerate(next(table, ()), 1)]
        if twice := sorted({cell for cell in header if header.count(cell) > 1}):
            raise DataError(f"{name} line 1: two columns are called '{twice[0]}'; rename one of them")
        line = table.line_num + 1
        for cells in table:
            if cells and len(cells) != len(header):
                raise DataError(
                    f"{name} line {line}: {len(cells)} cells under a header of {len(header)} columns; put cells that "
                    "hold the delimiter or a line break in quotes"
                )
            if cells:
                fields = dict(zip(header, (cell or None for cell in cells), strict=True))
                yield Record(fields, f"{name} line {line}", f"{name}:{line}")
            line = table.line_num + 1
    except csv.Error as error:
        raise DataError(f"{name} line {table.line_num}: not csv ({error}); save it again as csv") from error


def _table(path: Path, name: str, kind: str) -> Iterator[Record]:
    """Parquet, and both of arrow's formats: the stream, as `datasets` writes it, and the file."""
    import pyarrow
    import pyarrow.ipc
    import pyarrow.parquet

    number = 0
    try:
        if path.name.lower().endswith(COMPRESSED):  # they jump about in it, so it is decompressed into memory
            with _opened(path) as opened:
                source: Any = pyarrow.BufferReader(opened.read())
        else:
            source = pyarrow.memory_map(str(path))
        batches: Iterable[Any]
        if kind == "parquet":
            batches = pyarrow.parquet.ParquetFile(source).iter_batches(batch_size=1024)
        elif source.read(6) == b"ARROW1":
            reader = pyarrow.ipc.open_file(source)
            batches = map(reader.get_batch, range(reader.num_record_batches))
        else:
            source.seek(0)
            batches = pyarrow.ipc.open_stream(source)
        for value in (value for batch in batches for value in batch.to_pylist()):
            number += 1
            yield row_of(value, f"{name} row {number}", f"{name}:{number}")
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"cannot read {name} as {kind}: {first_line(error)}; the file is damaged or not {kind}"
        ) from error


_TEXTS: dict[str, Callable[[Path, str, str], Iterator[Record]]] = {
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _csv,
}


def rows_given(rows: Iterable[Mapping[str, Any]] | Frame) -> Iterator[dict[str, Any]]:
    """Rows as JSON would have them: lists for tuples and arrays, Python's numbers for numpy's; what else is as it is.

    A missing cell of a DataFrame is None; a NaN stays in a column of floats, where a number may be meant. `rows` are
    read once.
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
