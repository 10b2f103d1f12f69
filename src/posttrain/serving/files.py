"""Small files that are there whole or not at all, also after SIGKILL or a power failure."""

import json
import os
import re
import secrets
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from posttrain.durable import sync
from posttrain.errors import UserError

PRIVATE = 0o600
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file and have it on the disk, or leave what was there. Threads may write one file at the same time."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    sync(path.parent)


def tidy(folder: Path) -> None:
    """Remove what processes that were killed have left of files in a folder that only this one writes."""
    for left in folder.rglob(".*.new"):
        left.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write a file of JSON."""
    write_whole(path, json.dumps(content).encode())


def read_json(path: Path) -> Any:
    """What a file of JSON holds; None if it is not there."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def by_age(folder: Path) -> list[Path]:
    """The files of JSON in a folder, which is made if it is missing, the oldest first."""
    folder.mkdir(parents=True, exist_ok=True)
    return sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)


def locked(folder: Path, option: str) -> FileLock:
    """The lock of a folder that one server at a time has; raises `UserError` if another process has it."""
    lock = FileLock(folder / "lock", thread_local=False)  # it is released in another thread
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"another server uses '{folder}'; end that one, or give another `{option}`") from None
    return lock


def checked_name(name: str) -> str:
    """A client's name for a checkpoint, which becomes a folder; raises `UserError` for one that will not do."""
    if not NAME.fullmatch(name):
        raise UserError(f"the name of a checkpoint has 1 to 128 letters, digits and . _ -; got '{name[:80]}'")
    return name
