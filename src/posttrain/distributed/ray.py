"""Learners on the processes of a Ray cluster.

    with RankActors(2) as actors:
        learner = LearnerGroup(actors, functools.partial(make, ...))

Each actor is one rank and builds the whole learner from `make(ranks)`; a verb runs on all of them, and rank 0 answers.
The ranks meet at a store that rank 0 opens, so that no port is chosen before it is bound.
"""

import importlib
import itertools
import os
import socket
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from posttrain.data.packing import Example
from posttrain.distributed.process_group import ProcessGroup, TCPStore
from posttrain.errors import TrainingError, UserError
from posttrain.training.learner import POLICY, Batch, Learner, Loss
from posttrain.training.ranks import Ranks

try:
    ray: Any = importlib.import_module("ray")
except ImportError:  # an extra: one process needs none
    ray = None

INSTALL = "several trainers need Ray; type: pip install 'posttrain[cluster]'"

PLACED_S = 60.0  # that a cluster may take to find room for the ranks

Make = Callable[[Ranks], Learner]


class Rank:
    """One rank, in the process of an actor."""

    def __init__(self, rank: int, size: int, threads: int) -> None:
        torch.set_num_threads(threads)
        self._rank, self._size = rank, size
        self._learners: dict[int, Learner] = {}

    def open_store(self) -> tuple[str, int]:
        """Rank 0 opens the store at which all meet; its address."""
        host = ray.util.get_node_ip_address() if self._size > 1 else socket.gethostname()
        self._store = TCPStore(host, 0, self._size, True, wait_for_workers=False)
        return host, self._store.port

    def join(self, host: str, port: int, backend: str, timeout_s: float) -> None:
        """Join the ranks."""
        store = self._store if not self._rank else TCPStore(host, port, self._size, False)
        self._group = ProcessGroup(store, self._rank, self._size, backend=backend, timeout_s=timeout_s)

    def build(self, number: int, make: Make) -> None:
        """Build a learner."""
        self._learners[number] = make(self._group)

    def drop(self, number: int) -> None:
        """Free a learner."""
        self._learners.pop(number, None)

    def learners(self) -> int:
        """How many learners it has."""
        return len(self._learners)

    def call(self, number: int, verb: str, args: Sequence[Any], more: Mapping[str, Any]) -> tuple[Any, Any]:
        """What a verb returns, and what it raises, which Ray would wrap in an error of its own."""
        try:
            return getattr(self._learners[number], verb)(*args, **more), None
        except BaseException as error:
            return None, error


class RankActors:
    """Ray actors that are the ranks of learners; a context manager, at whose end they are gone.

    Args:
        size: how many.
        cpus: logical CPUs of each, for Ray's placement.
        threads: threads that torch uses in each.
        backend: gloo, or nccl with one GPU for each.
        timeout_s: how long a rank waits for the others before it raises.

    Raises:
        UserError: Ray is not installed, or the cluster has no room for them.
    """

    def __init__(
        self, size: int, *, cpus: float = 1.0, threads: int = 1, backend: str = "gloo", timeout_s: float = 1800.0
    ) -> None:
        if ray is None:
            raise UserError(INSTALL)
        start()
        self.size, self._dead = size, ""
        bundle = {"CPU": cpus} | ({"GPU": 1} if backend == "nccl" else {})
        self._group = ray.util.placement_group([bundle] * size, strategy="PACK")
        if not ray.wait([self._group.ready()], timeout=PLACED_S)[0]:
            ray.util.remove_placement_group(self._group)
            has = {name: ray.cluster_resources().get(name, 0) for name in bundle}
            raise UserError(f"{size} trainers of {bundle} each do not fit; the cluster has {has}, maybe in use")
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        placed = strategies.PlacementGroupSchedulingStrategy(self._group)
        # a rank that is started again would have no group and no weights: the whole group is replaced instead
        made = ray.remote(Rank).options(
            num_cpus=cpus,
            num_gpus=bundle.get("GPU", 0),
            scheduling_strategy=placed,
            max_restarts=0,
            max_task_retries=0,
        )
        self._actors = [made.remote(rank, size, threads) for rank in range(size)]
        try:
            host, port = ray.get(self._actors[0].open_store.remote())
            self.all("join", host, port, backend, timeout_s)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        """These actors."""
        return self

    def __exit__(self, *of_error: object) -> None:
        """Stop them."""
        self.stop()

    def all(self, method: str, *args: Any) -> list[Any]:
        """Call a method of all ranks; what each returns.

        Raises:
            TrainingError: a rank has lost its process. All are stopped then.
        """
        if self._dead:
            raise TrainingError(self._dead)
        calls = [getattr(actor, method).remote(*args) for actor in self._actors]
        try:
            return ray.get(calls)
        except ray.exceptions.RayActorError as error:
            self._dead = f"a trainer has lost its process: {str(error).splitlines()[0]}"
            self.stop()
            raise TrainingError(self._dead) from error

    def drop(self, number: int) -> None:
        """Free a learner in all ranks that are still there; nobody waits for it."""
        for actor in self._actors:
            actor.drop.remote(number)

    def stop(self) -> None:
        """Stop all processes."""
        for actor in self._actors:
            ray.kill(actor)
        ray.util.remove_placement_group(self._group)
        self._actors = []
        self._dead = self._dead or "the trainers have been stopped"


class LearnerGroup:
    """A learner on several ranks. Conforms to `training.learner.Learner`.

    Args:
        actors: the ranks.
        make: builds the learner of one rank, alike on all; it is pickled.
    """

    _numbers = itertools.count()

    def __init__(self, actors: RankActors, make: Make) -> None:
        self._actors, self._number = actors, next(self._numbers)
        actors.all("build", self._number, make)
        self._dropped = weakref.finalize(self, actors.drop, self._number)

    def forward(self, batch: Batch, loss: Loss[Any]) -> dict[str, float]:
        """See `Learner`."""
        return self._call("forward", batch, loss)

    def logprobs(
        self, examples: Sequence[Example], model: str = POLICY, *, temperature: float = 1.0, together: int = 1
    ) -> list[tuple[float, ...]]:
        """See `Learner`."""
        return self._call("logprobs", examples, model, temperature=temperature, together=together)

    def values(self, examples: Sequence[Example]) -> list[tuple[float, ...]]:
        """See `Learner`."""
        return self._call("values", examples)

    def scores(self, examples: Sequence[Example], *, seed: int | None = None) -> list[tuple[float, ...]]:
        """See `Learner`."""
        return self._call("scores", examples, seed=seed)

    def forward_backward(self, batch: Batch, loss: Loss[Any]) -> dict[str, float]:
        """See `Learner`."""
        return self._call("forward_backward", batch, loss)

    def optim_step(self, rates: Mapping[str, float]) -> dict[str, float]:
        """See `Learner`."""
        return self._call("optim_step", dict(rates))

    def copy(self, source: str, target: str) -> None:
        """See `Learner`."""
        self._call("copy", source, target)

    def save(self, folder: Path) -> None:
        """See `Learner`; rank 0 writes, to a folder that this machine sees too."""
        self._call("save", folder.resolve())

    def restore(self, folder: Path) -> None:
        """See `Learner`; every rank reads the folder."""
        self._call("restore", folder.resolve())

    def _call(self, verb: str, *args: Any, **more: Any) -> Any:
        answers = self._actors.all("call", self._number, verb, args, more)
        errors = [error for _, error in answers if error is not None]
        own = [error for error in errors if not str(error).startswith("rank ")]
        if errors:  # of the rank that failed, not those that heard of it
            raise (own or errors)[0]
        return answers[0][0]


def start() -> None:
    """Start Ray on this machine, unless this process is connected to a cluster. Nothing is reported to its makers."""
    if ray.is_initialized():
        return
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(address="local", include_dashboard=False, log_to_driver=False, configure_logging=False)
