"""Dataset sources: files, globs, folders, `datasets` folders, the hub, memory. The one file that knows `datasets`."""

import glob
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, cast

from posttrain.data.files import (
    GIVEN,
    READABLE,
    Source,
    encoding_of,
    exists,
    kind_of,
    path_of,
    read_file,
    row_of,
    rows_given,
)
from posttrain.data.meaning import is_empty
from posttrain.data.records import Record
from posttrain.errors import DataError, UserError, first_line
from posttrain.types import Frame

_HUB = re.compile(r"(?P<name>[\w.-]+(?:/[\w.-]+)?)(?::(?P<config>[^:@]+))?(?:@(?P<revision>[^\s@]+))?")
_SAVED = ("dataset_dict.json", "state.json")  # what `save_to_disk` leaves in a folder of splits, and of one data set
_NO_DATA = (*_SAVED, "dataset_info.json", "dataset_infos.json")
_MEMORY = "memory:"
_memory: dict[str, list[dict[str, Any]]] = {}


class UnknownColumn(DataError):
    """A mapping that names a column of which no row has a value."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field  # the name that the column was to be mapped to


def load_rows(
    source: Source, *, split: str | None = None, columns: Mapping[str, str] | None = None, limit: int | None = None
) -> list[dict[str, Any]]:
    """The rows of a data set as dictionaries. `read_rows` says the same with the place of each row.

    Args:
        source: a file (.jsonl, .json, .csv, .tsv, .parquet, .arrow; text also with .gz, .bz2, .xz or .zst); a folder of
            such files; a glob such as `data/*.jsonl`; a folder written by `save_to_disk`; a hub id,
            `OWNER/NAME[:CONFIG][@REVISION]`; what `in_memory` returned; or the rows themselves: a list or generator of
            dictionaries, a `datasets.Dataset`, a DataFrame of pandas or polars, or a table of pyarrow.
        split: which part of a folder or hub data set; "train" if there is one, unless said otherwise.
        columns: new name -> name in the data, where `a.b` is the field `b` inside the field `a`.
        limit: the most rows to read, from the first.

    Raises:
        DataError: nothing there, nothing in it, a row that cannot be read (by file and line), an unknown column (with
            the nearest one), or a hub data set that cannot be loaded.
    """
    return [dict(row.fields) for row in read_rows(source, split=split, columns=columns, limit=limit)]


def read_rows(
    source: Source, *, split: str | None = None, columns: Mapping[str, str] | None = None, limit: int | None = None
) -> list[Record]:
    """As `load_rows`, but each row knows its place. There is at least one."""
    if limit is not None and limit < 1:
        raise UserError(f"the limit of rows must be 1 or more; got {limit}")
    if isinstance(source, str) and source.startswith("gym:"):
        raise DataError(
            f"'{source}' makes tasks, not rows; it can be a `dataset` of rl and evaluate, not of this command"
        )
    rows = list(islice(_found(source, split), limit))
    if not rows:
        what = f"'{source}' has no rows" if isinstance(source, str) else "no rows were given"
        raise DataError(f'{what}; expected at least one, such as {{"prompt": ..., "answer": ...}} in jsonl')
    return map_columns(rows, columns) if columns else rows


def in_memory(rows: Iterable[Mapping[str, Any]]) -> str:
    """A name for rows that are in memory, where a source must be text; raises as `load_rows` of the rows.

    What it returns stands wherever a data set is named, also in a mixture. It is made of the rows' content: a run is
    resumed by a process that made the same rows, and a run directory does not hold them.
    """
    kept = list(rows_given(rows))
    if not kept:
        raise UserError("in_memory got no rows; expected at least one")
    digest = hashlib.blake2b(digest_size=8)
    for row in kept:
        digest.update(json.dumps(row, default=repr).encode() + b"\n")
    source = _MEMORY + digest.hexdigest()
    _memory[source] = kept
    return source


def parse_columns(flags: str | Sequence[str]) -> dict[str, str]:
    """Column mapping by the name that posttrain uses, as typed: `prompt=question answer=reward_model.ground_truth`."""
    columns: dict[str, str] = {}
    for flag in flags.split() if isinstance(flags, str) else flags:
        target, equals, source = flag.partition("=")
        if not (target and equals and source):
            raise UserError(f"cannot read the column mapping '{flag}'; write FIELD=COLUMN, such as prompt=question")
        if target in columns:
            raise UserError(f"the field '{target}' is mapped twice: to '{columns[target]}' and to '{source}'; keep one")
        columns[target] = source
    return columns


def reading_of(options: Any) -> dict[str, Any]:
    """What `split`, `columns` and `limit` of a command's options say, as loaders and `read_rows` take it."""
    return {"split": options.split or None, "columns": parse_columns(options.columns), "limit": options.limit}


def map_columns(rows: Sequence[Record], columns: Mapping[str, str]) -> list[Record]:
    """Rows with columns renamed; `a.b` is the field `b` inside the field `a`."""
    known = {name for row in rows for name in row.fields}
    for field, source in columns.items():
        outer = source if source in known else source.split(".")[0]
        if outer not in known:
            near = get_close_matches(outer, known, n=1, cutoff=0.4)
            hint = f"did you mean '{near[0]}'? " if near else ""
            has = ", ".join(sorted(known))
            raise UnknownColumn(f"unknown column '{source}'; {hint}The data has: {has}", field)
    found: list[Record] = []
    for row in rows:
        mapped = {name: value for name, value in row.fields.items() if name not in columns.values()}
        if over := [name for name in columns if not is_empty(mapped.get(name))]:
            raise row.fail(
                f"the data have a column '{over[0]}' of their own, beside '{columns[over[0]]}', which is mapped to it; "
                f'rename it, too: `columns="other={over[0]}"`'
            )
        for target, source in columns.items():
            value: Any = row.fields
            for name in (source,) if source in row.fields else source.split("."):
                if not isinstance(value, Mapping) or name not in value:
                    has = ", ".join(row.fields)
                    raise row.fail(f"column '{source}', mapped to '{target}', is missing; it has: {has}")
                value = cast(Any, value[name])
            mapped[target] = value
        found.append(Record(mapped, row.place, row.id))
    return found


def has_splits(source: Source) -> bool:
    """Whether a source may be divided into splits: a folder or hub data set, not a file, a glob or rows in memory."""
    if not isinstance(source, str):
        return False
    if exists(source):
        path = Path(path_of(source)).expanduser()
        return path.is_dir() and not (path / _SAVED[1]).is_file()
    return not (source.startswith(_MEMORY) or _is_glob(source))


def _found(source: Source, split: str | None) -> Iterator[Record]:
    source = str(source) if isinstance(source, Path) else source
    if not isinstance(source, str):
        if split not in (None, "train"):
            raise UserError(f"{GIVEN} are not divided into splits; got split '{split}'; give the rows of that split")
        return numbered(source)
    encoding, named = encoding_of(source), source
    source = path_of(source)
    path = Path(source).expanduser()
    if os.path.isfile(path):  # of a name that is too long, `Path.is_file` raises
        if split not in (None, "train") and not _names(path.name, split):
            raise DataError(
                f"the file '{path}' is not divided into splits; got split '{split}'; name the file that holds it"
            )
        return read_file(path, path.name, encoding)
    if encoding:
        raise DataError(f"'{named}' is no file; an encoding is named for one file alone")
    if os.path.isdir(path):
        if any((path / name).is_file() for name in _SAVED):
            return _saved(path, split)
        return _files(f"the folder '{path}'", sorted(path.rglob("*")), path, split or "train", asked=split is not None)
    if source.startswith(_MEMORY):
        if source not in _memory:
            raise DataError(
                f"'{source}' names rows that were in the memory of another process; write them to a file, or make the "
                "same rows here with in_memory"
            )
        return numbered(_memory[source], source)
    if _is_glob(source):
        plain = path.parts[: next(i for i, part in enumerate(path.parts) if glob.has_magic(part))]
        found = [Path(one) for one in sorted(glob.glob(str(path), recursive=True))]
        return _files(f"'{source}'", found, Path(*plain), split or "", asked=split is not None)
    hub = _HUB.fullmatch(source)
    if hub is None or source.startswith(".") or kind_of(source) or ("/" not in hub["name"] and "." in hub["name"]):
        raise DataError(
            f"there is no file or folder '{source}'; expected {READABLE}, a folder of them, a glob such as "
            "'data/*.jsonl', or a hub id, OWNER/NAME:CONFIG@REVISION"
        )
    return _hub(source, hub, split or "train")


def _is_glob(source: str) -> bool:
    return glob.has_magic(source) and not source.startswith("gym:")


def _files(what: str, found: Sequence[Path], root: Path, split: str, *, asked: bool) -> Iterator[Record]:
    """The rows of those files of a folder or glob that are data of a split; unless it was asked for, of all if none is.

    They must be of one format: a folder of several mostly holds other things than data, too.
    """
    there = [path for path in found if path.is_file()]
    data = [path for path in there if kind_of(path.name) and path.name not in _NO_DATA]
    names = {path: path.relative_to(root).as_posix() for path in data}
    if not names:
        has = f"it has only: {', '.join(path.name for path in there[:3])}" if there else "it has no file"
        raise DataError(f"{what} holds no data: {has}; expected files that end with {READABLE}")
    files = {path: name for path, name in names.items() if not split or _names(name, split)}
    if not files and asked:
        raise DataError(f"{what} has no file of split '{split}'; it has: {', '.join(names.values())}")
    # Without a word about splits in any name, they are one data set.
    files = files or names
    kinds = sorted({kind_of(name) for name in files.values()})
    if len(kinds) > 1:
        raise DataError(f"{what} has {' and '.join(kinds)} files; name one kind, such as '{root}/**/*{kinds[-1]}'")
    for path, name in files.items():
        yield from read_file(path, name)


def _names(name: str, split: str) -> bool:
    """True if a word of the file's name or folders is the split: train-00000-of-00001.parquet, test/part1.jsonl."""
    return split in re.split(r"[^A-Za-z0-9]+", name)


def _saved(path: Path, split: str | None) -> Iterator[Record]:
    """What `save_to_disk` of the library `datasets` has written: one data set, or several splits."""
    import datasets

    try:
        loaded = cast(Any, datasets.load_from_disk(str(path)))
    except Exception as error:  # the loaders raise some twenty kinds
        raise DataError(
            f"cannot read '{path}' as saved by datasets: {first_line(error)}; save it again with save_to_disk"
        ) from error
    name = path.name
    if isinstance(loaded, Mapping):
        splits = cast("dict[str, Any]", loaded)
        wanted = split or ("train" if "train" in splits or len(splits) > 1 else next(iter(splits), "train"))
        if wanted not in splits:
            raise DataError(f"'{path}' has no split '{wanted}'; it has: {', '.join(splits)}; name one of their folders")
        name, loaded = f"{name}/{wanted}", splits[wanted]
    elif split is not None and split not in (str(loaded.split), "train") and not _names(path.name, split):
        raise DataError(f"'{path}' is one data set, not divided into splits; got split '{split}'")
    for number, value in enumerate(loaded.with_format(None), 1):
        yield row_of(value, f"{name} row {number}", f"{name}:{number}")


def numbered(rows: Iterable[Mapping[str, Any]] | Frame, name: str = "") -> Iterator[Record]:
    """Rows given as objects, each with its number as place and id."""
    for number, row in enumerate(rows_given(rows), 1):
        yield Record(row, f"row {number} of {name or GIVEN}", f"{name or 'rows'}:{number}")


def _hub(source: str, hub: re.Match[str], split: str) -> Iterator[Record]:
    import datasets

    name, config, revision = hub["name"], hub["config"], hub["revision"]
    pinned: dict[str, Any] = {"revision": revision} if revision else {}
    try:
        rows = cast(Any, datasets.load_dataset(name, config, split=split, **pinned))
    except Exception as error:  # the network, the hub and the loaders raise some twenty kinds
        hint = (
            f"name one: {name}:CONFIG" if "Config name is missing" in str(error) else "check the name and the network"
        )
        raise DataError(
            f"cannot load '{source}' (split '{split}') from the hub: {first_line(error)}; {hint}, or give a local "
            f"file ({READABLE})"
        ) from error
    for number, value in enumerate(rows, 1):
        yield row_of(value, f"{source} {split} row {number}", f"{source}/{split}/{number}")
