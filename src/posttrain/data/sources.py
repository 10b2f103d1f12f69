"""Rows from wherever data lives: local files and folders (jsonl, json, parquet), and data sets of the hub.

The one file that knows `datasets` and `pyarrow`, both imported when they are needed.
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, cast

from posttrain.data.rows import Row, map_columns
from posttrain.errors import DataError, UserError

_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")


def load_rows(
    source: str, *, split: str | None = None, columns: Mapping[str, str] | None = None, limit: int | None = None
) -> list[dict[str, Any]]:
    """The rows of a data set as dictionaries. `read_rows` says the same with the place of each row.

    Args:
        source: a file or folder (.jsonl, .json, .parquet; the first two also with .gz), or a hub id, `OWNER/NAME` or
            `OWNER/NAME:CONFIG`.
        split: which part of a folder or hub data set; "train" if there is one, unless said otherwise.
        columns: new name -> name in the data, where `a.b` is the field `b` inside the field `a`.
        limit: the most rows to read, from the first.

    Raises:
        DataError: nothing there, nothing in it, a row that cannot be read (by file and line), an unknown column (with
            the nearest one), or a hub data set that cannot be loaded.
    """
    return [dict(row.fields) for row in read_rows(source, split=split, columns=columns, limit=limit)]


def read_rows(
    source: str, *, split: str | None = None, columns: Mapping[str, str] | None = None, limit: int | None = None
) -> list[Row]:
    """As `load_rows`, but each row knows its place. There is at least one."""
    if limit is not None and limit < 1:
        raise UserError(f"the limit of rows must be 1 or more; got {limit}")
    if source.startswith("gym:"):
        raise DataError(
            f"'{source}' makes tasks, not rows; it can be a --dataset of rl and evaluate, not of this command"
        )
    path = Path(source).expanduser()
    if path.exists():
        found = _local(path, split)
    elif source.startswith((".", "/", "~")) or source.endswith(_SUFFIXES) or source.count("/") > 1:
        raise DataError(
            f"there is no file or folder '{source}'; expected {', '.join(_SUFFIXES)}, a folder of them, or a hub id"
        )
    else:
        found = _hub(source, split or "train")
    rows = list(islice(found, limit))
    if not rows:
        raise DataError(
            f'\'{source}\' has no rows; expected at least one, such as {{"prompt": ..., "answer": ...}} in jsonl'
        )
    return map_columns(rows, columns) if columns else rows


def _local(path: Path, split: str | None) -> Iterator[Row]:
    if path.is_file():
        if split not in (None, "train") and not _names(path.name, split):
            raise DataError(
                f"the file '{path}' is not divided into splits; got split '{split}'; name the file that holds it"
            )
        yield from _file(path, path.name)
        return
    files = [file for file in sorted(path.rglob("*")) if file.name.endswith(_SUFFIXES) and file.is_file()]
    if not files:
        raise DataError(f"the folder '{path}' holds no data; expected files that end with {', '.join(_SUFFIXES)}")
    names = {file: file.relative_to(path).as_posix() for file in files}
    chosen = [file for file in files if _names(names[file], split or "train")]
    if not chosen and split is not None:
        raise DataError(f"the folder '{path}' has no file of split '{split}'; it has: {', '.join(names.values())}")
    # Without a word about splits in any name, the folder is one data set.
    for file in chosen or files:
        yield from _file(file, names[file])


def _names(name: str, split: str) -> bool:
    """True if a word of the file's name or folders is the split: train-00000-of-00001.parquet, test/part1.jsonl."""
    return split in re.split(r"[^A-Za-z0-9]+", name)


def _file(path: Path, name: str) -> Iterator[Row]:
    if name.endswith(".parquet"):
        return _parquet(path, name)
    if name.endswith((".jsonl", ".jsonl.gz")):
        return _jsonl(path, name)
    if name.endswith((".json", ".json.gz")):
        return _json(path, name)
    raise DataError(f"cannot read '{path}'; expected a file that ends with {', '.join(_SUFFIXES)}")


def _lines(path: Path) -> Iterator[str]:
    opener = gzip.open if path.name.endswith(".gz") else open
    try:
        with opener(path, "rt", encoding="utf-8-sig") as file:
            yield from cast(Iterator[str], file)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path.name} is not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"cannot read {path.name}: {error}; the file is damaged or incomplete, fetch it again"
        ) from error


def _jsonl(path: Path, name: str) -> Iterator[Row]:
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            try:
                value = json.loads(line.strip())
            except json.JSONDecodeError as error:
                raise DataError(
                    f"{name} line {number}: not JSON ({error.msg}, column {error.colno}); "
                    'expected one object a line, such as {"prompt": ..., "answer": ...}'
                ) from error
            yield _row(value, f"{name} line {number}", f"{name}:{number}")


def _json(path: Path, name: str) -> Iterator[Row]:
    try:
        values = json.loads("".join(_lines(path)) or "[]")
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":  # one object a line, whatever the file is called
            yield from _jsonl(path, name)
            return
        raise DataError(f"{name} line {error.lineno}: not JSON ({error.msg}, column {error.colno})") from error
    if isinstance(values, dict):
        lists = [value for value in cast(dict[str, Any], values).values() if isinstance(value, list)]
        values = lists[0] if len(lists) == 1 else values
    if not isinstance(values, list):
        raise DataError(
            f"{name}: expected a list of objects, or an object that holds one list; got {type(values).__name__}"
        )
    for number, value in enumerate(cast(list[Any], values), 1):
        yield _row(value, f"{name} row {number}", f"{name}:{number}")


def _parquet(path: Path, name: str) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=1024):
            for value in batch.to_pylist():
                number += 1
                yield _row(value, f"{name} row {number}", f"{name}:{number}")
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"cannot read {name} as parquet: {_first_line(error)}; the file is damaged or not parquet"
        ) from error


def _row(value: Any, place: str, id: str) -> Row:
    if not isinstance(value, dict):
        raise DataError(f"{place}: expected an object with named fields; got {type(value).__name__}")
    return Row(cast(dict[str, Any], value), place, id)


def _hub(source: str, split: str) -> Iterator[Row]:
    import datasets

    name, _, config = source.partition(":")
    try:
        rows = cast(Any, datasets.load_dataset(name, config or None, split=split))
    except Exception as error:  # the network, the hub and the loaders raise some twenty kinds
        hint = (
            f"name one: {name}:CONFIG" if "Config name is missing" in str(error) else "check the name and the network"
        )
        raise DataError(
            f"cannot load '{source}' (split '{split}') from the hub: {_first_line(error)}; {hint}, or give a local "
            f"file ({', '.join(_SUFFIXES)})"
        ) from error
    for number, value in enumerate(rows, 1):
        yield _row(value, f"{source} {split} row {number}", f"{source}/{split}/{number}")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
