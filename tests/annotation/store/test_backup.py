"""A backup has all that was acknowledged before it began, under load and after a crash; a failed one leaves nothing."""

import errno
import os
import shutil
import sqlite3
import stat
import threading

import pytest

from posttrain.annotation.store import database
from posttrain.annotation.store.database import back_up, open_store, record
from posttrain.errors import UserError
from tests.annotation.worlds import add_project


@pytest.fixture
def office(tmp_path):
    path = tmp_path / "store" / "annotation.db"
    path.parent.mkdir()
    store = open_store(str(path))
    add_project(store)
    yield store, path
    store.close()


def ticks(path):
    """What `write` has kept, read from a file by itself."""
    found = sqlite3.connect(f"file:{path}?immutable=1", uri=True)
    return {int(subject) for (subject,) in found.execute("SELECT subject FROM audit WHERE action = 'tick'")}


def write(store, numbers, kept):
    for number in numbers:
        with store.write() as connection:
            record(connection, None, "tick", str(number))
        kept.add(number)


def test_a_backup_under_load_has_all_that_was_acknowledged_and_a_copy_of_the_file_has_not(office, tmp_path):
    store, path = office
    kept, going = set(), threading.Event()

    def work(first):
        for number in range(first, 10**6, 4):
            if going.is_set():
                return
            write(store, [number], kept)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(3):
            while len(kept) < 20 * (turn + 1):
                pass
            before = set(kept)
            shutil.copy(path, tmp_path / f"file-{turn}.db")
            back_up(str(path), tmp_path / f"backup-{turn}.db")
            assert before <= ticks(tmp_path / f"backup-{turn}.db")
            if not turn:  # later ones may follow a checkpoint
                assert not before <= ticks_or_none(tmp_path / "file-0.db")
    finally:
        going.set()
        for thread in threads:
            thread.join()


def ticks_or_none(path):
    try:
        return ticks(path)
    except sqlite3.DatabaseError:  # not even the tables are there
        return set()


def test_a_backup_is_one_private_file_that_opens_as_a_store(office, tmp_path):
    store, path = office
    write(store, range(5), set())
    place = tmp_path / "backups" / "one.db"
    place.parent.mkdir()
    assert back_up(f"sqlite:///{path}", place) == 0
    assert list(place.parent.iterdir()) == [place] and stat.S_IMODE(place.stat().st_mode) == 0o600
    again = open_store(str(place))
    again.close()
    assert ticks(place) == set(range(5))


def test_after_a_crash_the_log_is_read_too(office, tmp_path):
    """The files as a killed server leaves them: the newest rows are in the log only."""
    store, path = office
    write(store, range(5), set())
    image = tmp_path / "crashed.db"
    for end in ("", "-wal"):
        shutil.copy(f"{path}{end}", f"{image}{end}")
    assert back_up(str(image), tmp_path / "backup.db") == 0
    assert ticks(tmp_path / "backup.db") == set(range(5))


@pytest.mark.parametrize("fault", ["full", "damaged", "other", "text"])
def test_a_backup_that_fails_leaves_nothing_and_says_why(office, tmp_path, monkeypatch, fault):
    store, path = office
    place = tmp_path / "backups"
    place.mkdir()
    message = {
        "full": "No space left",
        "damaged": "damaged",
        "other": "no store of posttrain",
        "text": "not a database",
    }
    if fault == "full":

        def full(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(database.os, "replace", full)
    elif fault == "damaged":
        write(store, range(300), set())
        store.close()
        data = bytearray(path.read_bytes())
        data[-4096 * 3 :] = os.urandom(4096 * 3)
        path.write_bytes(data)
    elif fault == "other":
        path = tmp_path / "other.db"
        sqlite3.connect(path).executescript("CREATE TABLE a (b); INSERT INTO a VALUES (1)")
    else:
        path = tmp_path / "notes.txt"
        path.write_text("something else " * 500)
    with pytest.raises(UserError, match=message[fault]) as found:
        back_up(str(path), place / "backup.db")
    assert "\n" not in str(found.value) and not list(place.iterdir())


def test_what_cannot_be_backed_up_and_where_to(office, tmp_path):
    _, path = office
    there = tmp_path / "there.db"
    there.write_text("kept")
    for source, place, words in (
        (str(path), there, "is there already"),
        (str(path), tmp_path / "no" / "backup.db", "there is no folder"),
        (str(tmp_path / "none.db"), tmp_path / "a.db", "there is no database"),
        ("sqlite:///:memory:", tmp_path / "a.db", "is no file"),
        (
            "postgresql+psycopg://ann:secret@host/name",
            tmp_path / "a.db",
            "pg_dump --format=custom --file=.* postgresql://ann@host/name$",
        ),
        ("://", tmp_path / "a.db", "cannot read the database URL"),
    ):
        with pytest.raises(UserError, match=words) as found:
            back_up(source, place)
        assert "secret" not in str(found.value) and "\n" not in str(found.value)
    assert there.read_text() == "kept" and not (tmp_path / "none.db").exists()
