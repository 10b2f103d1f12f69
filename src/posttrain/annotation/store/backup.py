"""A copy of a store in use, by SQLite's online backup.

The database file alone lacks what is still in the log beside it (WAL); the backup reads both, in one transaction, and
neither waits for writers nor makes them wait.
"""

import contextlib
import os
import sqlite3
import tempfile
from pathlib import Path
from urllib.parse import quote

from posttrain.annotation.store.database import PATIENCE, PRIVATE, parsed_url, sqlite_file
from posttrain.errors import UserError


def back_up(url: str, output: Path) -> int:
    """Write a copy of the store at `url` to `output`, and return how many judgements it has.

    It has everything that was acknowledged before this began, is one file, and is there whole or not at all.

    Raises:
        UserError: the store is not an SQLite file of posttrain's, or `output` is there or cannot be written.
    """
    source = _source(url, output)
    if output.exists():
        raise UserError(f"{output} is there already; name another file with `output`")
    if not output.parent.is_dir():
        raise UserError(f"there is no folder {output.parent}; make it first, or name another file with `output`")
    try:
        with tempfile.TemporaryDirectory(prefix=f".{output.name}.", suffix=".new", dir=output.parent) as folder:
            new = Path(folder) / "copy"
            new.touch(PRIVATE)
            count = _copy(source, new)
            with new.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(new, output)
            _sync(output.parent)
    except OSError as problem:
        raise UserError(f"cannot write {output}: {problem.strerror}") from problem
    except sqlite3.Error as problem:
        raise UserError(f"cannot back up {source}: {problem}") from problem
    return count


def _source(url: str, output: Path) -> Path:
    parsed = parsed_url(url)
    if parsed.get_backend_name() != "sqlite":
        shown = parsed._replace(drivername=parsed.get_backend_name(), password=None)
        name = shown.difference_update_query(["password"]).render_as_string()
        raise UserError(
            f"a backup of a database server is its own tool's: pg_dump --format=custom --file={output} {name}"
        )
    file = sqlite_file(parsed)
    if file is None:
        raise UserError(f"'{url}' is no file, so that there is nothing to back up")
    if not file.is_file():
        raise UserError(f"there is no database {file}; name it with `store`")
    return file


def _copy(source: Path, new: Path) -> int:
    read = f"file:{quote(str(source.absolute()))}?mode=rw"  # not made if it is gone; the log of a crash is read
    with (
        contextlib.closing(sqlite3.connect(read, uri=True, timeout=PATIENCE)) as old,
        contextlib.closing(sqlite3.connect(new)) as copy,
    ):
        old.backup(copy)  # all pages in one step: a backup in several begins again with every write
        copy.execute("PRAGMA journal_mode = DELETE")  # so that it is one file
        if (found := copy.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
            raise UserError(f"{source} is damaged: {' '.join(str(found).split())}")
        tables = {name for (name,) in copy.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"alembic_version", "judgements"} <= tables:
            raise UserError(f"{source} is no store of posttrain annotate")
        return copy.execute("SELECT count(*) FROM judgements").fetchone()[0]


def _sync(folder: Path) -> None:
    """Put a folder's names on the disk, where folders can be opened."""
    with contextlib.suppress(PermissionError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
