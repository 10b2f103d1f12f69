"""One start of Ray for all tests of processes."""

from collections.abc import Iterator

import pytest

pytest.importorskip("ray")

from posttrain.distributed.cluster import connect, disconnect


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    connect(cpus=8)
    yield
    disconnect()
