import os
import uuid

import pytest

pytest.importorskip("sqlalchemy", reason="needs the extra annotate")

from sqlalchemy import create_engine, make_url

from posttrain.annotation.store.database import open_store

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
