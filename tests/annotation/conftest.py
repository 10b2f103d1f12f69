import os
import uuid

import pytest

pytest.importorskip("sqlalchemy", reason="needs the extra annotate")

from sqlalchemy import create_engine, event, make_url
from sqlalchemy.orm import Session as Connection

from posttrain.annotation.store import project_statistics
from posttrain.annotation.store.database import open_store
from posttrain.annotation.store.tables import (
    Assignment,
    Event,
    Invite,
    Item,
    Judgement,
    Member,
    Project,
    Ruling,
    Session,
    Turn,
    User,
)

RECORDED = {
    User: {"accept"},
    Member: {"join"},
    Invite: {"invite"},
    Session: {"enter"},
    Project: {"create project"},
    Item: {"add items"},
    Assignment: {"give"},
    Turn: {"say"},
    Judgement: {"judge"},
    Ruling: {"rule"},
}
"""What the audit must say where a row of a table is new."""


@pytest.fixture(autouse=True)
def audited():
    """Of every transaction of every test: what is new in it is in the audit, too."""

    forgotten = set()  # told at the end: what is raised within a page would be no more than its error

    def flushed(connection, _):
        new, told = connection.info.setdefault("new", (set(), set()))
        new.update(type(one) for one in connection.new if type(one) in RECORDED)
        told.update(one.action for one in connection.new if isinstance(one, Event))

    def committed(connection):
        new, told = connection.info.pop("new", (set(), set()))
        forgotten.update(one.__name__ for one in new if not RECORDED[one] & told)

    def undone(connection):
        connection.info.pop("new", None)

    heard = {"after_flush": flushed, "after_commit": committed, "after_rollback": undone}
    for name, listener in heard.items():
        event.listen(Connection, name, listener)
    yield
    for name, listener in heard.items():
        event.remove(Connection, name, listener)
    assert not forgotten, "new, and not in the audit"


SERVER = os.environ.get("POSTTRAIN_POSTGRES")
"""A PostgreSQL server to test with instead of SQLite, such as postgresql+psycopg://postgres@localhost/postgres."""


@pytest.fixture
def store(tmp_path):
    """A store of its own: a file, or a database that is made for this test and dropped after it."""
    if not SERVER:
        found = open_store(str(tmp_path / "annotation.db"))
        yield found
        found.close()
        return
    server = create_engine(SERVER, isolation_level="AUTOCOMMIT")
    name = f"posttrain_{uuid.uuid4().hex}"
    with server.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    found = open_store(make_url(SERVER).set(database=name).render_as_string(hide_password=False))
    yield found
    found.close()
    with server.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name}")
    server.dispose()


@pytest.fixture(autouse=True)
def statistics_are_read_each_time(monkeypatch):
    """However long a reading took on a busy machine."""
    monkeypatch.setattr(project_statistics, "FREE", 1e9)
