"""Digests of data, code and models."""

import glob
import hashlib
import json
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from posttrain.data.files import GIVEN, exists, path_of, rows_given
from posttrain.errors import DataError, first_line

SOURCES = ("dataset", "eval_dataset", "pretraining_dataset", "ratings")
"""The options that name data."""


def digests(options: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 of each local file that a recipe's options name, alone or in a folder, by its path."""
    return {str(path): sha256(path) for option in SOURCES for path in _files(options.get(option))}


def _files(text: object) -> Iterator[Path]:
    """The files of an option, which may name several sources with weights: "a.jsonl=0.7 b.parquet=0.3"."""
    if not isinstance(text, str):
        return
    try:
        words = [text] if exists(text) else shlex.split(text)
    except ValueError:  # an open quote: the parser refuses it
        return
    for source in (word if exists(word) else word.rpartition("=")[0] or word for word in words):
        path = Path(path_of(source)).expanduser()
        roots = [path] if exists(source) else [Path(one) for one in sorted(glob.glob(str(path), recursive=True))]
        for root in roots:
            yield from (file for file in sorted(root.rglob("*")) or [root] if file.is_file())


def rows_digest(items: Iterable[object]) -> str:
    """Of what rows mean: of examples as tokens with their mask, or of prompts, in order."""
    found = hashlib.blake2b(digest_size=16)
    for item in items:
        found.update(repr(item).encode("utf-8", "backslashreplace") + b"\n")
    return found.hexdigest()


def digest_of_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """SHA-256 of rows given as objects: of each row's columns that have a value, as JSON with sorted keys.

    It is the same for a list, a `datasets.Dataset` and a DataFrame of the same rows. A value that JSON does not have is
    a `DataError`.
    """
    found = hashlib.sha256()
    for number, row in enumerate(rows_given(rows), 1):
        for name, value in sorted(row.items()):
            if value is None or (isinstance(value, float) and math.isnan(value)):  # which a DataFrame has for it
                continue
            try:
                text = json.dumps([name, value], allow_nan=False, sort_keys=True)
            except (TypeError, ValueError, RecursionError) as error:
                raise DataError(
                    f"row {number} of {GIVEN}: column '{name}' has no digest: {first_line(error)}; turn its values "
                    "into text or numbers, or remove the column"
                ) from error
            found.update(text.encode())
        found.update(b"\n")
    return found.hexdigest()


def sha256(path: Path) -> str:
    """Of a file's bytes, in hexadecimal; a file that has not changed is read once."""
    about = path.stat()
    return _read(path.resolve(), about.st_size, about.st_mtime_ns)


@cache
def _read(path: Path, size: int, modified: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(sums: Mapping[str, str]) -> str:
    """One digest of several files: of their names and sums, in the order of the names."""
    return hashlib.sha256("".join(f"{name}\0{sums[name]}\n" for name in sorted(sums)).encode()).hexdigest()


def model_digest(folder: Path) -> str:
    """Of a model folder: of each file of configuration or weights its size and sixteen pieces of a MiB, spread evenly.

    Enough to tell two models apart, and fast for one of many gigabytes; no proof that every byte is the same.
    """
    files = [file for kind in ("*.json", "*.safetensors", "*.gguf") for file in folder.glob(kind)]
    about = {file: file.stat() for file in files}
    return digest_of({file.name: _sampled(file, found.st_size, found.st_mtime_ns) for file, found in about.items()})


_PIECES, _PIECE = 16, 2**20


@cache
def _sampled(path: Path, size: int, modified: int) -> str:
    found = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for number in range(_PIECES):
            file.seek(max(0, size - _PIECE) * number // (_PIECES - 1))
            found.update(file.read(_PIECE))
    return found.hexdigest()
