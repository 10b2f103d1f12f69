"""One start of Ray for all tests of processes."""

from collections.abc import Iterator

import pytest

ray = pytest.importorskip("ray")

from posttrain.distributed.cluster import connect  # noqa: E402


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    connect(cpus=8)
    yield
    ray.shutdown()
