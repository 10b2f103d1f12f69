"""Learners on the processes of a Ray cluster.

    with RankActors(2) as actors:
        learner = LearnerGroup(actors, functools.partial(make, ...))

Each actor is one rank and builds the whole learner from `make(ranks)`; a verb runs on all of them, and rank 0 answers.
The ranks meet at a store that rank 0 opens, so that no port is chosen before it is bound.
"""

import contextlib
import gc
import itertools
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.distributed import cluster
from posttrain.distributed.broadcast import Offer, offered, open_store
from posttrain.distributed.cluster import Lost, Process
from posttrain.distributed.pool import START_S, Pool
from posttrain.distributed.process_group import WAITED, ProcessGroup, TCPStore
from posttrain.distributed.samplers import Facts, facts_of
from posttrain.distributed.sharding import ShardedRanks, check_torch
from posttrain.errors import ProcessLost, UserError
from posttrain.models.precision import default_device
from posttrain.training.learner import Learner
from posttrain.training.ranks import ALONE, Ranks
from posttrain.training.sharded_files import SHAPES, room_for_shards

SLOWER_S = 30.0  # that a call may take beyond the time after which ranks give each other up

Make = Callable[[Ranks], Learner]


class Rank(Process):
    """One rank, in the process of an actor."""

    kind = "trainer"

    def __init__(self, place: int, size: int, threads: int) -> None:
        super().__init__(place, size, threads)
        self._learners: dict[int, Any] = {}
        self._offered = contextlib.ExitStack()

    def open_store(self) -> tuple[str, int]:
        """Rank 0 opens the store at which all meet; its address."""
        self._store = open_store(host := cluster.own_address(), self.size)
        return host, self._store.port

    def join(self, host: str, port: int, timeout_s: float) -> None:
        """Join the ranks, over NCCL if they compute on GPUs."""
        cluster.use_own_interface()
        backend = "nccl" if default_device() == "cuda" else "gloo"
        store = TCPStore(host, port, self.size, False) if self.place else self._store
        self._group = ProcessGroup(store, self.place, self.size, backend=backend, timeout_s=timeout_s)

    def build(self, number: int, make: Make, shards: int, offload: bool = False) -> None:
        """Build a learner; `shards` and `offload` as in `LearnerGroup`."""
        if sharded := shards > 1 or offload:
            gc.collect()  # of learners that were dropped: FSDP's modules are in reference cycles
        # a single rank skips collectives: gloo copies in its own threads, and their OpenMP team oversubscribes the
        # processors, so that libgomp spins too briefly and an update takes 25% longer
        replicas = self._group if self.size > 1 else ALONE
        self._learners[number] = make(ShardedRanks(self._group, shards, offload=offload) if sharded else replicas)

    def device(self) -> str:
        """The kind of device that it computes on."""
        return default_device()

    def facts(self, number: int) -> Facts:
        """What is known of a learner's policy."""
        return facts_of(self._learners[number].body)

    def drop(self, number: int) -> None:
        """Free a learner."""
        self._learners.pop(number, None)

    def waited(self) -> float:
        """Seconds in which it has waited for the others."""
        return WAITED[0]

    def verb(self, number: int, verb: str, args: Sequence[Any], more: Mapping[str, Any]) -> Any:
        """Call a verb of a learner."""
        return getattr(self._learners[number], verb)(*args, **more)

    def offer(self, number: int, copied: bool) -> tuple[str, int] | None:
        """Rank 0 broadcasts the trained weights, or a copy of them, to who asks, until `withdraw`; host and port.

        All ranks call this: sharded ones gather the weights now, so that none has to take part later.
        """
        self._offered.close()  # before the next copy is made: there is memory for one
        weights = [(n, w.clone() if copied else w) for n, w in self._learners[number].weights() if not self.place]
        if self.place:
            return None
        host = cluster.own_address()
        return host, self._offered.enter_context(offered(weights, host))

    def withdraw(self) -> None:
        """Offer nothing any more."""
        self._offered.close()


class RankActors(Pool):
    """Ray actors that are ranks of learners; each waits `timeout_s` for the others. `settings` are those of `Pool`."""

    def __init__(self, size: int, *, timeout_s: float = 1800.0, **settings: Any) -> None:
        super().__init__(Rank, size, timeout_s=timeout_s + SLOWER_S, **settings)
        self._dead, self._waited = "", [0.0] * size
        with self.ready():
            if len(set(devices := self.all("device", timeout_s=START_S))) > 1:
                raise UserError(f"trainers compute on different devices, and cannot add up gradients: {devices}")
            host, port = self.first("open_store", timeout_s=START_S)
            self.all("join", host, port, timeout_s, timeout_s=START_S)

    def all(self, method: str, *args: Any, timeout_s: float = 0.0) -> list[Any]:
        """Call a method of all ranks; what each returns. They may take `timeout_s`; 0: as long as ranks wait.

        All are stopped, with `ProcessLost`, if one is gone; else the error is that of a rank that failed by itself.
        """
        return self._call(range(self.size), method, args, timeout_s)

    def first(self, method: str, *args: Any, timeout_s: float = 0.0) -> Any:
        """Call a method of rank 0 alone; as `all`."""
        return self._call([0], method, args, timeout_s)[0]

    def _call(self, ranks: Sequence[int], method: str, args: Sequence[Any], timeout_s: float) -> list[Any]:
        if self._dead:
            raise ProcessLost(self._dead)
        answers = self.collect({rank: self.call(rank, method, *args) for rank in ranks}, timeout_s).values()
        errors = [answer.error for answer in answers if answer.error is not None]
        gone = [error for error in errors if isinstance(error, Lost)]
        deaf = [error for error in errors if isinstance(error, ProcessLost)]
        if lost := (*gone, *deaf):  # the one that is gone, before those that wait for it
            self._dead = str(lost[0])
            self.stop()
            raise ProcessLost(self._dead) from lost[0]
        own = [error for error in errors if not str(error).startswith("rank ")]
        if errors:  # of the rank that failed, not those that heard of it
            raise (own or errors)[0]
        return [answer.value for answer in answers]

    def metrics(self) -> dict[str, float]:
        """Since the last call: the slowest rank, and the seconds that another one has waited for it."""
        if self.size == 1:
            return {}
        before, self._waited = self._waited, self.all("waited")
        seconds = [now - then for now, then in zip(self._waited, before, strict=True)]
        slowest = float(seconds.index(min(seconds)))
        return {"cluster/slowest_trainer": slowest, "cluster/trainer_wait_seconds": max(seconds) - min(seconds)}

    def drop(self, number: int) -> None:
        """Free a learner in all ranks that are still there; nobody waits for it."""
        for rank in range(self.running):
            self.call(rank, "drop", number)

    def stop(self) -> None:
        """Stop all processes."""
        super().stop()
        self._dead = self._dead or "the trainers have been stopped"


def _on_all_ranks(verb: str) -> Callable[..., Any]:
    """A verb of `Learner`, which all ranks call, and rank 0 answers."""
    return lambda group, *args, **more: group._call(verb, *args, **more)


class LearnerGroup:
    """A learner on several ranks. Conforms to `training.learner.Learner`.

    Each rank builds its own by `make`, which is pickled. Weights, gradients and the optimiser's state are divided
    into `shards`, of neighbouring ranks (FSDP2). 1: each rank holds all; a divisor of the ranks, which hold several
    replicas if there are more (HSDP). With `offload` the shards stay in the host's memory.
    """

    _numbers = itertools.count()

    def __init__(self, actors: RankActors, make: Make, *, shards: int = 1, offload: bool = False) -> None:
        if shards > 1 or offload:
            check_torch()  # before weights are loaded
        self._actors, self._number, self._updates = actors, next(self._numbers), 0
        actors.all("build", self._number, make, shards, offload, timeout_s=START_S)
        self._name = secrets.token_hex(4)
        self._published: Offer | None = None
        self._taken = threading.Lock()
        self._dropped = weakref.finalize(self, actors.drop, self._number)

    forward = _on_all_ranks("forward")
    logprobs = _on_all_ranks("logprobs")
    values = _on_all_ranks("values")
    scores = _on_all_ranks("scores")
    forward_backward = _on_all_ranks("forward_backward")
    copy = _on_all_ranks("copy")

    def optim_step(self, rates: Mapping[str, float]) -> dict[str, float]:
        """See `Learner`."""
        self._updates += 1
        return self._call("optim_step", dict(rates))

    def save(self, folder: Path) -> None:
        """See `Learner`; to a folder that this machine sees, or `CheckpointError`. All ranks write a large model."""
        self._call("save", folder.resolve())
        for shapes in folder.glob(f"*/{SHAPES}"):
            room_for_shards(shapes.parent, {}, "meta")

    def restore(self, folder: Path) -> None:
        """See `Learner`; every rank reads the folder."""
        self._updates += 1
        self._call("restore", folder.resolve())

    def facts(self) -> Facts:
        """What is known of the policy."""
        return self._actors.first("facts", self._number)

    @property
    def version(self) -> str:
        """The version of the policy's weights, or of what is published; no two learners and no two updates share it."""
        return self._published.version if self._published else f"{self._name}.{self._updates}"

    @contextlib.contextmanager
    def offered(self) -> Iterator[Offer]:
        """Offer the weights of this version; unless they are published, no verb may be called before the block ends."""
        with self._taken:
            if self._published is not None:
                yield self._published
                return
            try:
                yield self._offer(self.version, copied=False)
            finally:
                self._actors.first("withdraw")

    def publish(self, step: int) -> None:
        """Offer a copy of the weights with which a step begins, until the next; waits for who takes the ones before."""
        with self._taken:
            self._published = self._offer(f"{self._name}.{step}", copied=True)

    def _offer(self, version: str, *, copied: bool) -> Offer:
        return Offer(version, *self._actors.all("offer", self._number, copied)[0])

    def check(self) -> None:
        """Raise `ProcessLost` if a rank has lost its process."""
        self._actors.all("waited")

    def _call(self, verb: str, *args: Any, **more: Any) -> Any:
        return self._actors.all("verb", self._number, verb, args, more)[0]
