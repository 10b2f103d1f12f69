"""The database is what the tables say, keeps what is committed, and gives out one lock at a time."""

import contextlib
import os
import sqlite3
import stat
import threading

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import func, select, text

from posttrain.annotation.store.database import one_by_one, open_store, record
from posttrain.annotation.store.tables import Base, Event, Invite, Project
from posttrain.errors import UserError
from tests.annotation.worlds import add_project, add_user


def of_the_tables(store):
    with store.engine.connect() as connection:
        return compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_the_steps_make_the_tables(store):
    """Those of a new store, and of one that was made before there were steps after the first."""
    assert of_the_tables(store)
    add_project(store, "kept")
    add_user(store, "boss", role="manager")
    later = ("DROP TABLE turns", "DROP TABLE rulings", "ALTER TABLE invites DROP COLUMN bootstrap")
    with store.engine.begin() as connection:
        for words in (*later, "UPDATE alembic_version SET version_num = '0001'"):
            connection.execute(text(words))
    assert not of_the_tables(store)
    again = open_store(store.engine.url.render_as_string(hide_password=False))
    assert of_the_tables(again)
    with again.read() as connection:
        assert connection.scalars(select(Invite.bootstrap)).all() == [False]
        assert connection.scalar(select(Project.name)) == "kept"
    again.close()


def test_another_programs_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE users (id INTEGER)")
    with pytest.raises(UserError, match="table users already exists"):
        open_store(str(path))
    with contextlib.closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("users",)]


def test_a_store_that_is_there_is_opened_again(store):
    add_project(store, "kept")
    again = open_store(store.engine.url.render_as_string(hide_password=False))
    with again.read() as connection:
        assert connection.scalar(select(Project.name)) == "kept"
    again.close()


def test_what_fails_leaves_nothing(store):
    with pytest.raises(RuntimeError), store.write() as connection:
        record(connection, None, "try", "nothing")
        connection.flush()
        raise RuntimeError
    with store.read() as connection:
        assert connection.scalar(select(func.count()).select_from(Event)) == 0


def test_sqlite_keeps_what_is_committed_through_a_power_cut_and_checks_references(store):
    if store.engine.dialect.name != "sqlite":
        pytest.skip("PostgreSQL does so by itself")
    with store.engine.connect() as connection:
        values = [connection.execute(text(f"PRAGMA {name}")).scalar() for name in ("journal_mode", "synchronous")]
        assert values == ["wal", 2]
        assert connection.execute(text("PRAGMA foreign_keys")).scalar() == 1


def test_those_who_give_out_work_come_one_by_one(store):
    project = add_project(store)
    inside, most = [], []

    def work():
        for _ in range(20):
            with store.write() as connection:
                one_by_one(connection, project.id)
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.read() as connection:
        assert connection.get_one(Project, project.id).turn == 160
    assert max(most) == 1


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nowhere/at/all.db", "there is no folder"),
        ("://", "cannot read the database URL"),
        ("nosuch://host/name", "cannot read the database URL"),
    ],
)
def test_what_cannot_be_opened_says_why(url, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        open_store(url)


def test_no_password_is_in_what_is_told_of_a_database(tmp_path):
    with pytest.raises(UserError, match=r"nosuch://user:\*\*\*@host/name") as found:
        open_store("nosuch://user:secret@host/name")
    assert "secret" not in str(found.value)
    with pytest.raises(UserError, match="nosuch://host/name") as found:
        open_store("nosuch://host/name?password=secret")
    assert "secret" not in str(found.value)
    store = open_store(str(tmp_path / "a.db"))
    assert store.name == str(tmp_path / "a.db")
    store.close()


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("something else " * 100)
    with pytest.raises(UserError, match="cannot open the database"):
        open_store(str(path))
    assert path.read_text() == "something else " * 100


def test_reading_does_not_wait_for_a_writer(store, tmp_path):
    add_project(store, "first")
    with store.write() as writer:
        record(writer, None, "hold", "the lock")
        writer.flush()
        with store.read() as reader:
            assert reader.scalar(select(Project.name)) == "first"
        if store.engine.dialect.name != "sqlite":
            return  # there writers wait for each other's rows alone
        with pytest.raises(sqlite3.OperationalError):
            sqlite3.connect(tmp_path / "annotation.db", timeout=0.05).execute("DELETE FROM audit")


@contextlib.contextmanager
def umask(mask):
    before = os.umask(mask)
    yield
    os.umask(before)


def modes(path):
    return {one.name.removeprefix(path.name): stat.S_IMODE(one.stat().st_mode) for one in path.parent.iterdir()}


def test_a_new_database_and_its_log_are_for_their_owner_only(tmp_path):
    path = tmp_path / "new.db"
    with umask(0o022):
        store = open_store(str(path))
        add_project(store)
        assert modes(path) == {"": 0o600, "-wal": 0o600, "-shm": 0o600}
        store.close()
    again = open_store(f"sqlite:///{path}")
    assert modes(path)[""] == 0o600
    again.close()


def test_one_that_others_could_read_is_closed_to_them_when_it_is_opened(tmp_path):
    path = tmp_path / "old.db"
    with umask(0o022):
        first = open_store(str(path))
        add_project(first)
        for one in tmp_path.iterdir():
            one.chmod(0o644)
        second = open_store(str(path))  # while the first one has it, so that the log is there
        assert modes(path) == {"": 0o600, "-wal": 0o600, "-shm": 0o600}
        add_project(second, "another")
        second.close()
        first.close()


def test_a_file_that_is_no_database_keeps_its_mode(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("something else " * 100)
    path.chmod(0o644)
    with pytest.raises(UserError, match="cannot open the database"):
        open_store(str(path))
    assert modes(path) == {"": 0o644}
