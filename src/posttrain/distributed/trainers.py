"""Learners on the processes of a Ray cluster.

    with RankActors(2) as actors:
        learner = LearnerGroup(actors, functools.partial(make, ...))

Each actor is one rank and builds the whole learner from `make(ranks)`; a verb runs on all of them, and rank 0 answers.
The ranks meet at a store that rank 0 opens, so that no port is chosen before it is bound.
"""

import contextlib
import gc
import itertools
import os
import secrets
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from posttrain.data.packing import Example
from posttrain.distributed import cluster, connection
from posttrain.distributed.group import Group
from posttrain.distributed.process_group import ProcessGroup, TCPStore, waited
from posttrain.distributed.sampler import Facts, Offer, facts_of
from posttrain.distributed.sharding import ShardedRanks, check_torch
from posttrain.engine.weight_channel import offered
from posttrain.errors import ProcessLost, UserError
from posttrain.models.precision import default_device
from posttrain.training.learner import POLICY, Batch, Learner, Loss
from posttrain.training.ranks import ALONE, Ranks
from posttrain.training.sharded_files import SHAPES, room_for_shards

SLOWER_S = 30.0  # that a call may take beyond the time after which ranks give each other up

Make = Callable[[Ranks], Learner]


class Rank(cluster.Process):
    """One rank, in the process of an actor."""

    def __init__(self, rank: int, size: int, threads: int) -> None:
        torch.set_num_threads(threads)
        self._rank, self._size = rank, size
        self._learners: dict[int, Any] = {}
        self._offers, self._published = contextlib.ExitStack(), contextlib.ExitStack()

    def open_store(self) -> tuple[str, int]:
        """Rank 0 opens the store at which all meet; its address."""
        host = connection.own_address()
        with socket.create_server((host, 0)) as listening:
            port = listening.getsockname()[1]  # the store itself would listen on all addresses
            self._store = TCPStore(
                host, port, self._size, True, wait_for_workers=False, master_listen_fd=listening.detach()
            )
        return host, port

    def join(self, host: str, port: int, timeout_s: float) -> None:
        """Join the ranks, over NCCL if they compute on GPUs."""
        if name := connection.interface_of(connection.own_address()):
            # gloo would take that of the host's name, maybe the loopback's
            os.environ |= {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}
        backend = "nccl" if default_device() == "cuda" else "gloo"
        store = self._store if not self._rank else TCPStore(host, port, self._size, False)
        self._group = ProcessGroup(store, self._rank, self._size, backend=backend, timeout_s=timeout_s)

    def build(self, number: int, make: Make, shards: int, offload: bool = False) -> None:
        """Build a learner; `shards` and `offload` as in `LearnerGroup`."""
        if sharded := shards > 1 or offload:
            gc.collect()  # of learners that were dropped: FSDP's modules are in reference cycles
        # a single rank skips collectives: gloo copies in its own threads, and their OpenMP team oversubscribes the
        # processors, so that libgomp spins too briefly and an update takes 25% longer
        replicas = self._group if self._size > 1 else ALONE
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

    def learners(self) -> int:
        """How many learners it has."""
        return len(self._learners)

    def waited(self) -> float:
        """Seconds in which it has waited for the others."""
        return waited()

    def verb(self, number: int, verb: str, args: Sequence[Any], more: Mapping[str, Any]) -> Any:
        """Call a verb of a learner."""
        return getattr(self._learners[number], verb)(*args, **more)

    def offer(self, number: int) -> tuple[str, int, str] | None:
        """Rank 0 serves the trained weights until `withdraw`; returns the host, the port and the key that clients need.

        All ranks call this: sharded ones gather the weights now, so that none has to take part later.
        """
        weights = self._learners[number].weights()
        if self._rank:
            return None
        host = connection.own_address()
        port, key = self._offers.enter_context(offered(lambda: weights, host))
        return host, port, key

    def withdraw(self) -> None:
        """Offer nothing any more."""
        self._offers.close()

    def publish(self, number: int) -> tuple[str, int, str] | None:
        """As `offer`, for a copy of the weights, which is served until the next one while the learner goes on."""
        self._published.close()  # before the next copy is made: there is memory for one
        copies = [(name, weight.clone()) for name, weight in self._learners[number].weights() if not self._rank]
        if self._rank:
            return None
        host = connection.own_address()
        port, key = self._published.enter_context(offered(lambda: copies, host))
        return host, port, key


class RankActors(Group):
    """Ray actors that are the ranks of learners; a context manager, at whose end they are gone.

    Args:
        size: how many.
        share: what each gets of a machine.
        timeout_s: how long a rank waits for the others before it raises.
        environment: variables of their processes.

    Raises:
        UserError: Ray is not installed, the cluster has no room for them, or only some of them have a GPU to use.
    """

    def __init__(
        self,
        size: int,
        *,
        share: cluster.Share = cluster.ONE_CPU,
        timeout_s: float = 1800.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        connection.connect(cpus=size * share.cpus)
        self.size, self._timeout_s, self._dead = size, timeout_s, ""
        self._waited = [0.0] * size
        each = [(rank, size, cluster.threads_of(share.threads, size)) for rank in range(size)]
        self.actors = cluster.Actors("trainer", Rank, each, share.bundle(), environment or {})
        try:
            if len(set(devices := self.all("device", timeout_s=cluster.START_S))) > 1:
                raise UserError(f"trainers compute on different devices, and cannot add up gradients: {devices}")
            host, port = self.first("open_store", timeout_s=cluster.START_S)
            self.all("join", host, port, timeout_s, timeout_s=cluster.START_S)
        except BaseException:
            self.stop()
            raise

    def all(self, method: str, *args: Any, timeout_s: float = 0.0) -> list[Any]:
        """Call a method of all ranks; what each returns. They may take `timeout_s`; 0: as long as ranks wait.

        Raises:
            ProcessLost: a rank has lost its process, or does not answer. All are stopped then.
            BaseException: what the method raises, of a rank that failed by itself.
        """
        return self._call(range(self.size), method, args, timeout_s)

    def first(self, method: str, *args: Any, timeout_s: float = 0.0) -> Any:
        """Call a method of rank 0 alone; as `all`."""
        return self._call([0], method, args, timeout_s)[0]

    def _call(self, ranks: Sequence[int], method: str, args: Sequence[Any], timeout_s: float) -> list[Any]:
        if self._dead:
            raise ProcessLost(self._dead)
        calls = {rank: self.actors.call(rank, method, *args) for rank in ranks}
        answers = self.actors.collect(calls, timeout_s or self._timeout_s + SLOWER_S).values()
        errors = [answer.error for answer in answers if answer.error is not None]
        gone = [error for error in errors if isinstance(error, cluster.Lost)]
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
        for rank in range(len(self.actors)):
            self.actors.call(rank, "drop", number)

    def stop(self) -> None:
        """Stop all processes."""
        super().stop()
        self._dead = self._dead or "the trainers have been stopped"


class LearnerGroup:
    """A learner on several ranks. Conforms to `training.learner.Learner`.

    Args:
        actors: the ranks.
        make: builds the learner of one rank, alike on all; it is pickled.
        shards: into how many shards weights, gradients and optimiser state are divided, of neighbouring ranks (FSDP2).
            1: each rank holds all. A divisor of the ranks, which hold several replicas if there are more (HSDP).
        offload: whether the shards of weights, gradients and optimiser stay in the host's memory.
    """

    _numbers = itertools.count()

    def __init__(self, actors: RankActors, make: Make, *, shards: int = 1, offload: bool = False) -> None:
        if shards > 1 or offload:
            check_torch()  # before weights are loaded
        self._actors, self._number, self._updates = actors, next(self._numbers), 0
        actors.all("build", self._number, make, shards, offload, timeout_s=cluster.START_S)
        self._name = secrets.token_hex(4)
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
        self._updates += 1
        return self._call("optim_step", dict(rates))

    def copy(self, source: str, target: str) -> None:
        """See `Learner`."""
        self._call("copy", source, target)

    def save(self, folder: Path) -> None:
        """See `Learner`; rank 0, or of large models all ranks write, to a folder that all and this machine see.

        Raises:
            CheckpointError: a rank has written where this machine does not see it.
        """
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
        """The version of the policy's weights; no two learners and no two updates have the same."""
        return f"{self._name}.{self._updates}"

    @contextlib.contextmanager
    def offered(self) -> Iterator[Offer]:
        """Offer the policy's trained weights of this version; no verb may be called before the block ends."""
        try:
            host, port, key = self._actors.all("offer", self._number)[0]
            yield Offer(self.version, host, port, key)
        finally:
            self._actors.first("withdraw")

    def publish(self) -> tuple[str, int, str]:
        """Serve a copy of the policy's trained weights, until the next; the host, the port and the key for clients."""
        return self._actors.all("publish", self._number)[0]

    def check(self) -> None:
        """Raise `ProcessLost` if a rank has lost its process."""
        self._actors.all("learners")

    def _call(self, verb: str, *args: Any, **more: Any) -> Any:
        return self._actors.all("verb", self._number, verb, args, more)[0]


class Published:
    """The weights with which a learner's newest step begins, to be taken while it trains on. A `samplers.Source`."""

    def __init__(self, learner: LearnerGroup) -> None:
        self._learner, self._name = learner, secrets.token_hex(4)
        self._taken = threading.Lock()
        self._offer: Offer | None = None

    def publish(self, step: int) -> None:
        """Publish the weights with which a step begins; waits for whoever takes the ones before."""
        with self._taken:
            self._offer = Offer(f"{self._name}.{step}", *self._learner.publish())

    @property
    def version(self) -> str:
        """The version of the weights that were published last."""
        assert self._offer is not None, "nothing is published"
        return self._offer.version

    def check(self) -> None:
        """See `LearnerGroup`."""
        self._learner.check()

    @contextlib.contextmanager
    def offered(self) -> Iterator[Offer]:
        """These weights, which stay published while the block runs."""
        with self._taken:
            assert self._offer is not None, "nothing is published"
            yield self._offer
