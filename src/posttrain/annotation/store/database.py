"""Database connections by URL (SQLite or PostgreSQL), with migrations on open, and backups of SQLite in use."""

import contextlib
import os
import sqlite3
import stat
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from alembic import command
from alembic.config import Config
from sqlalchemy import URL, Engine, create_engine, event, make_url, update
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.orm import Session as Connection
from sqlalchemy.orm import sessionmaker

from posttrain.annotation.store.tables import Event, Project
from posttrain.durable import sync
from posttrain.errors import UserError

PATIENCE = 30  # seconds that a write waits for another one
PRIVATE = 0o600  # who can read the file has what people said, and passwords to guess at
LOGS = ("-wal", "-shm")  # SQLite's files besides the database


@dataclass(frozen=True)
class Store:
    """An open database."""

    name: str  # where it is, without the password
    engine: Engine
    reading: sessionmaker[Connection]
    writing: sessionmaker[Connection]
    turn: contextlib.AbstractContextManager[Any]
    """Held while SQLite is written: threads of this process wait here, where the next one starts at once. SQLite's own
    lock, at which other processes wait, is asked again after up to 0.1 s. A server has locks by row."""

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """One view of the data; nothing is written."""
        with self.reading() as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """All that is written within is there afterwards, on the disk, or none of it if something is raised."""
        with self.turn, self.writing.begin() as connection:
            yield connection

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def open_store(url: str) -> Store:
    """The database at `url`: a SQLAlchemy URL, or the path of an SQLite file, which is made if it is not there."""
    parsed = _parsed(url)
    if "://" not in url and not (folder := Path(str(parsed.database)).parent).is_dir():
        raise UserError(f"there is no folder {folder}; make it first, or name another file with `store`")
    shown = parsed.difference_update_query(["password"]).render_as_string(hide_password=True)
    sqlite = parsed.get_backend_name() == "sqlite"
    name = parsed.database if sqlite else shown
    file = _sqlite_file(parsed)
    if file is not None and not file.exists():
        with contextlib.suppress(OSError):  # SQLite's own error is clearer
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE))
    try:
        engine = create_engine(
            parsed,
            pool_size=20,
            max_overflow=60,
            pool_pre_ping=True,
            connect_args={"timeout": PATIENCE, "check_same_thread": False} if sqlite else {},
        )
        if sqlite:
            event.listen(engine, "connect", _prepare)
            event.listen(engine, "begin", _begin)
        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
        config.attributes["engine"] = engine
        command.upgrade(config, "head")
    except (ArgumentError, NoSuchModuleError) as problem:
        raise UserError(f"cannot read the database URL '{name}': {problem}") from problem
    except ModuleNotFoundError as problem:
        raise UserError(f"the database '{name}' needs its driver; type: pip install {problem.name}") from problem
    except DBAPIError as problem:
        raise UserError(f"cannot open the database '{name}': {problem.orig}") from problem
    if file is not None:  # take it and its log from all but their owner; SQLite makes new logs with the file's mode
        for path in (file, *(file.with_name(file.name + end) for end in LOGS)):
            with contextlib.suppress(FileNotFoundError, PermissionError):  # another's file is for them to close
                if stat.S_IMODE(path.stat().st_mode) & 0o077:
                    path.chmod(PRIVATE)
    writer = engine.execution_options(begin="IMMEDIATE")
    turn = threading.Lock() if sqlite else contextlib.nullcontext()
    return Store(name or url, engine, sessionmaker(engine), sessionmaker(writer, expire_on_commit=False), turn)


def _parsed(url: str) -> URL:
    try:
        return make_url(url if "://" in url else f"sqlite:///{Path(url).expanduser()}")
    except ArgumentError as problem:
        raise UserError(f"cannot read the database URL: {problem}") from problem


def _sqlite_file(url: URL) -> Path | None:
    """The file of an SQLite database; None for one in memory, or on a server."""
    named = url.get_backend_name() == "sqlite" and url.database and not url.database.startswith((":memory:", "file:"))
    return Path(str(url.database)) if named else None


def _prepare(connection: sqlite3.Connection, record: object) -> None:
    """Transactions are begun by us, readers do not wait for the writer, and commits survive a power failure."""
    connection.isolation_level = None
    connection.create_function(
        "lower", 1, lambda text: text and text.lower(), deterministic=True
    )  # SQLite's knows ASCII
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Any) -> None:
    """A transaction that will write takes the lock first: two that read and then write would lock each other out."""
    mode = connection.get_execution_options().get("begin", "DEFERRED")
    connection.exec_driver_sql(f"BEGIN {mode}")


def back_up(url: str, output: Path) -> int:
    """Write a copy of the store at `url`, an SQLite file in use, to `output`, and return how many judgements it has.

    It has everything that was acknowledged before this began, is one file, and is there whole or not at all. The
    database file alone lacks what is still in the log beside it (WAL); SQLite's online backup reads both, in one
    transaction, and neither waits for writers nor makes them wait.
    """
    parsed = _parsed(url)
    if parsed.get_backend_name() != "sqlite":
        shown = parsed._replace(drivername=parsed.get_backend_name(), password=None)
        name = shown.difference_update_query(["password"]).render_as_string()
        raise UserError(
            f"a backup of a database server is its own tool's: pg_dump --format=custom --file={output} {name}"
        )
    if (source := _sqlite_file(parsed)) is None:
        raise UserError(f"'{url}' is no file, so that there is nothing to back up")
    if not source.is_file():
        raise UserError(f"there is no database {source}; name it with `store`")
    if output.exists():
        raise UserError(f"{output} is there already; name another file with `output`")
    if not output.parent.is_dir():
        raise UserError(f"there is no folder {output.parent}; make it first, or name another file with `output`")
    try:
        with tempfile.TemporaryDirectory(prefix=f".{output.name}.", suffix=".new", dir=output.parent) as folder:
            new = Path(folder) / "copy"
            new.touch(PRIVATE)
            count = _copy(source, new)
            sync(new)
            os.replace(new, output)
            with contextlib.suppress(PermissionError):  # put the name on the disk, where folders can be opened
                sync(output.parent)
    except OSError as problem:
        raise UserError(f"cannot write {output}: {problem.strerror}") from problem
    except sqlite3.Error as problem:
        raise UserError(f"cannot back up {source}: {problem}") from problem
    return count


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


def one_by_one(connection: Connection, project: int) -> None:
    """Take the project's lock for assigning work, until the end of the transaction."""
    connection.execute(update(Project).where(Project.id == project).values(turn=Project.turn + 1))


def record(connection: Connection, user: int | None, action: str, subject: str, **details: Any) -> None:
    """Write to the audit log, as every write does."""
    connection.add(Event(user_id=user, action=action, subject=subject, details=details))
