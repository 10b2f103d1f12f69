"""Digests of data: what a run was trained on, so that a copy can be told from another version."""

import glob
import hashlib
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.data.files import exists

SOURCES = ("dataset", "eval_dataset", "pretraining_dataset", "ratings")
"""The options that name data."""


def digests(options: Mapping[str, Any]) -> dict[str, str]:
    """Of each local file that a recipe's options name its SHA-256, by the name under which it was found.

    A folder has one digest for each of its files. What is no file here (a hub id, a gym: source) is not in the result.
    """
    found: dict[str, str] = {}
    for option in SOURCES:
        for source in _sources(options.get(option)):
            for path in _files(source):
                found[str(path)] = _sha256(path)
    return found


def _sources(text: object) -> list[str]:
    """The sources of an option, which may be several with weights: "a.jsonl=0.7 b.parquet=0.3"."""
    if not isinstance(text, str) or not text:
        return []
    if exists(text):
        return [text]
    try:
        parts = shlex.split(text)
    except ValueError:  # an open quote: somebody else refuses it
        return []
    return [part if exists(part) else part.rpartition("=")[0] or part for part in parts]


def _files(source: str) -> list[Path]:
    path = Path(source).expanduser()
    roots = [path] if exists(source) else [Path(one) for one in sorted(glob.glob(str(path), recursive=True))]
    return [file for root in roots for file in (sorted(root.rglob("*")) if root.is_dir() else [root]) if file.is_file()]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
