"""One start of Ray for all tests, and processes that tests share: to start one takes five seconds of a CPU."""

import contextlib
from collections.abc import Iterator

import pytest

pytest.importorskip("ray")

from posttrain.distributed.cluster import Actors
from posttrain.distributed.connection import connect, disconnect
from posttrain.distributed.trainers import RankActors


class Kept(Actors):
    """Processes that are still there when an engine has ended, for the next one."""

    def stop(self) -> None:
        """Stop nothing."""


class Shared:
    """Trainers and samplers by their number, started when a test first asks for them.

    Tests that end processes start their own, unless samplers are replaced.
    """

    def __init__(self) -> None:
        self._ranks: dict[int, RankActors] = {}
        self._samplers: dict[int, Kept] = {}

    def ranks(self, size: int) -> RankActors:
        """So many trainers."""
        if size not in self._ranks:
            self._ranks[size] = RankActors(size, timeout_s=60)
        return self._ranks[size]

    def actors(self, kind, made, arguments, *settings) -> Actors:
        """In place of `Actors`: samplers are shared."""
        if kind != "sampler":
            return Actors(kind, made, arguments, *settings)
        if len(arguments) not in self._samplers:
            self._samplers[len(arguments)] = Kept(kind, made, arguments, *settings)
        return self._samplers[len(arguments)]

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Engines and runs that begin in the block have these processes."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("posttrain.distributed.cluster.Actors", self.actors)
            patch.setattr(
                "posttrain.distributed.trainers.RankActors",
                lambda size, **settings: contextlib.nullcontext(self.ranks(size)),
            )
            yield

    def stop(self) -> None:
        """Stop all."""
        for ranks in self._ranks.values():
            ranks.stop()
        for samplers in self._samplers.values():
            Actors.stop(samplers)


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
