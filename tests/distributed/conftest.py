"""One start of Ray for all tests, and processes that tests share: to start one takes five seconds of a CPU."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("ray")

from posttrain.distributed.cluster import connect, disconnect
from posttrain.distributed.pool import Pool
from posttrain.distributed.trainers import RankActors


class Shared:
    """Trainers and samplers by their number, started when a test first asks for them.

    Tests that end processes start their own, unless samplers are replaced.
    """

    def __init__(self) -> None:
        self._ranks: dict[int, RankActors] = {}
        self._samplers: dict[int, dict[str, Any]] = {}  # what a pool of so many knows of its processes
        self._begin, self._stop = Pool._begin, Pool.stop

    def ranks(self, size: int) -> RankActors:
        """So many trainers."""
        if size not in self._ranks:
            self._ranks[size] = RankActors(size, timeout_s=60)
        return self._ranks[size]

    def begin(self, pool: Pool) -> None:
        """In place of `Pool._begin`: samplers are shared."""
        if pool.kind == "sampler" and pool.size in self._samplers:
            vars(pool).update(self._samplers[pool.size])
            return
        self._begin(pool)
        if pool.kind == "sampler":
            self._samplers[pool.size] = {name: vars(pool)[name] for name in ("_group", "_bundles", "_handles")}

    def end(self, pool: Pool) -> None:
        """In place of `Pool.stop`: samplers are still there when an engine has ended, for the next one."""
        if pool.kind != "sampler":
            self._stop(pool)

    @contextlib.contextmanager
    def shared_samplers(self) -> Iterator[None]:
        """Engines and runs that begin in the block have these samplers."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Pool, "_begin", lambda pool: self.begin(pool))
            patch.setattr(Pool, "stop", lambda pool: self.end(pool))
            yield

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Engines and runs that begin in the block have these processes."""
        with self.shared_samplers(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "posttrain.distributed.trainers.RankActors",
                lambda size, **settings: contextlib.nullcontext(self.ranks(size)),
            )
            yield

    def stop(self) -> None:
        """Stop all."""
        for ranks in self._ranks.values():
            ranks.stop()
        for kept in self._samplers.values():
            pool = object.__new__(Pool)
            vars(pool).update(kept)
            pool.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    connect(cpus=16)
    yield
    disconnect()


@pytest.fixture(scope="session")
def shared(cluster) -> Iterator[Shared]:
    found = Shared()
    yield found
    found.stop()


@pytest.fixture
def shared_processes(shared) -> Iterator[None]:
    """Engines and runs of a test have shared processes."""
    with shared.used():
        yield
