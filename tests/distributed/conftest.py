"""One start of Ray for all tests of processes."""

import os
from collections.abc import Iterator

import pytest

ray = pytest.importorskip("ray")


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(address="local", include_dashboard=False, log_to_driver=False, num_cpus=8)
    yield
    ray.shutdown()
