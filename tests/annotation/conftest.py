import pytest

pytest.importorskip("sqlalchemy", reason="needs the extra annotate")

from posttrain.annotation.store.database import open_store


@pytest.fixture
def store(tmp_path):
    found = open_store(str(tmp_path / "annotation.db"))
    yield found
    found.close()
