"""Actors of a Ray cluster.

A run holds a placement group for each kind of process. All actors and groups belong to the process that made them: Ray
ends them with it, so that nothing is left where a run is killed.
"""

import contextlib
import importlib
import math
import os
import signal
import socket
import stat
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from posttrain.distributed.connection import PROXIES
from posttrain.errors import EngineError, PosttrainError, ProcessLost, UserError, described, first_line
from posttrain.models.precision import default_device, fastest

try:
    ray: Any = importlib.import_module("ray")
except ImportError:  # an extra: one process needs none
    ray = None

PLACED_S = 60.0  # that a cluster may take to find room
START_S = 1800.0  # that a process may take to start and to load its model
LONGER = " (`cluster_timeout`, if its work takes longer)"


class Lost(EngineError):
    """A process that is gone, or that does not answer."""


class Answer(NamedTuple):
    """What a method of an actor returned, or raised, which Ray would wrap in an error of its own."""

    value: Any = None
    error: BaseException | None = None

    def result(self) -> Any:
        """The value; raises the error, where there is one."""
        if self.error is not None:
            raise self.error
        return self.value


class Whereabouts(NamedTuple):
    """A process on a node of the cluster."""

    node: str
    pid: int
    started: str  # when, as the system counts; another process that gets the number later has another


class Process:
    """The base of what runs as an actor."""

    _logged = False  # in a file of a run

    def whereabouts(self) -> Whereabouts:
        """Where it runs."""
        return Whereabouts(ray.get_runtime_context().get_node_id(), os.getpid(), _started(os.getpid()))

    def work_in(self, folder: str) -> None:
        """Have relative paths mean here what they mean to the command; unless this machine has no such folder."""
        with contextlib.suppress(OSError):
            os.chdir(folder)

    def precision(self, asked: str) -> tuple[str, str]:
        """The number format that `auto` stands for in this process, and why it was chosen."""
        if asked != "auto":
            return asked, "`precision`"
        found = fastest(default_device())
        return str(found.dtype).removeprefix("torch."), found.reason

    def log_to(self, file: Path) -> None:
        """Append what this process writes to standard output and error to a file, with what it has written so far.

        Where the folder is not there, as on a machine that does not see it, Ray's logs keep that.
        """
        if not file.parent.is_dir():
            return
        streams, self._logged, first = (sys.stdout, sys.stderr), True, not self._logged
        with open(file, "ab") as log:
            log.write(
                f"process {os.getpid()} on {socket.gethostname()}, {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode()
            )
            for stream in streams:
                stream.flush()
                log.writelines(_written(stream.fileno()) if first else ())
            log.flush()
            for stream in streams:
                os.dup2(log.fileno(), stream.fileno())

    def call(self, method: str, args: Sequence[Any]) -> Answer:
        """Call a method."""
        try:
            return Answer(getattr(self, method)(*args))
        except (Exception, KeyboardInterrupt) as error:  # SystemExit, of a signal, ends the process
            if not isinstance(error, PosttrainError):
                error.add_note(traceback.format_exc())  # which is not sent with it
            return Answer(error=_sendable(error))


def _sendable(error: BaseException) -> BaseException:
    """The error, or a `RuntimeError` that says the same if it cannot be pickled or not be read again.

    Ray would tell the second kind as the loss of the process.
    """
    try:
        ray.cloudpickle.loads(ray.cloudpickle.dumps(error))
        return error
    except Exception:
        told = RuntimeError(described(error))
        for note in getattr(error, "__notes__", ()):
            told.add_note(note)
        return told


class Share(NamedTuple):
    """What one process gets of a machine. Ray reserves all but the threads; it binds and limits nothing.

    Attributes:
        cpus: logical CPUs.
        gpus: GPUs; None: one where the cluster has any.
        memory_gb: memory in GB (10^9 bytes); 0: none is reserved.
        threads: threads that torch uses; 0: those of this process divided among all of the kind.
    """

    cpus: float = 1.0
    gpus: float | None = None
    memory_gb: float = 0.0
    threads: int = 0

    def bundle(self) -> dict[str, float]:
        """The Ray resources, by Ray's names."""
        found = min(1.0, ray.cluster_resources().get("GPU", 0.0)) if self.gpus is None else self.gpus
        asked = {"CPU": self.cpus, "GPU": found, "memory": math.ceil(self.memory_gb * 1e9)}
        return {name: amount for name, amount in asked.items() if amount or name == "CPU"}


ONE_CPU = Share()


def _amounts(resources: Mapping[str, float]) -> str:
    """Ray resources, for people."""
    sizes = {name: f"{amount / 1e9:.1f} GB of memory" for name, amount in resources.items() if name == "memory"}
    return ", ".join(sizes.get(name, f"{amount:g} {name}") for name, amount in resources.items())


def _too_many(kind: str, count: int, bundle: Mapping[str, float]) -> str:
    """The error of processes for which a cluster has no room."""
    there = {name: ray.cluster_resources().get(name, 0) for name in bundle}
    each = f"{count} {kind}s of {_amounts(bundle)} each do" if count > 1 else f"1 {kind} of {_amounts(bundle)} does"
    share = ""
    if "GPU" in bundle:
        share = ". Two processes share a GPU with `sampler_gpus=0.5`" if there["GPU"] else f"; pass `{kind}_gpus` 0"
    return f"{each} not fit; the cluster has {_amounts(there)}, maybe in use{share}"


class Actors:
    """Actors of one class, each in a bundle of one placement group; those of one node are neighbours.

    Args:
        kind: what one of them is called in errors, such as `trainer`.
        made: the class.
        arguments: of each actor's constructor.
        bundle: Ray resources of each.
        environment: variables of their processes.

    Raises:
        UserError: the cluster has no room for them.
    """

    def __init__(
        self,
        kind: str,
        made: type[Process],
        arguments: Sequence[Sequence[Any]],
        bundle: Mapping[str, float],
        environment: Mapping[str, str],
    ) -> None:
        self.kind, self._made, self._arguments = kind, made, arguments
        own = {name: os.environ.get(name, "") for name in PROXIES}  # not those of `connection`
        hidden = {} if bundle.get("GPU") else {"CUDA_VISIBLE_DEVICES": ""}  # a process has what is reserved for it
        self._bundle, self._environment = dict(bundle), {**own, **hidden, **environment}
        self._group = ray.util.placement_group([self._bundle] * len(arguments), strategy="PACK")
        if not ray.wait([self._group.ready()], timeout=PLACED_S)[0]:
            ray.util.remove_placement_group(self._group)
            raise UserError(_too_many(kind, len(arguments), bundle))
        self._bundles = _by_node(ray.util.placement_group_table(self._group)["bundles_to_node_id"])
        self._logs: Path | None = None
        self._folder = os.getcwd()
        self._where: dict[int, Any] = {}
        self._handles = [self._start(place) for place in range(len(arguments))]

    def __len__(self) -> int:
        """How many there are; 0 once they are stopped."""
        return len(self._handles)

    def _start(self, place: int) -> Any:
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        bundle = strategies.PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=self._bundles[place]
        )
        # one that Ray started again would be blank, and would answer the calls that are repeated
        settings = ray.remote(self._made).options(
            num_cpus=self._bundle.get("CPU", 0),
            num_gpus=self._bundle.get("GPU", 0),
            memory=self._bundle.get("memory"),
            scheduling_strategy=bundle,
            max_restarts=0,
            max_task_retries=0,
            runtime_env={"env_vars": self._environment},
        )
        started = settings.remote(*self._arguments[place])
        started.call.remote("work_in", (self._folder,))  # calls to one process run in order
        self._where[place] = started.call.remote("whereabouts", ())
        if self._logs is not None:
            started.call.remote("log_to", (self._log(place).resolve(),))
        return started

    def log_in(self, folder: Path) -> None:
        """Have all, and those that replace them, append their output to files in a folder, such as `trainer-0.log`."""
        folder.mkdir(parents=True, exist_ok=True)
        self._logs = folder
        for place in range(len(self)):
            self.call(place, "log_to", self._log(place).resolve())

    def _log(self, place: int) -> Path:
        assert self._logs is not None
        return self._logs / f"{self.kind}-{place}.log"

    def call(self, place: int, method: str, *args: Any) -> Any:
        """Call a method of one; what `collect` takes. Calls to one process run in order.

        Raises:
            ProcessLost: another thread has stopped them.
        """
        handles = self._handles
        if not handles:
            raise ProcessLost(f"{self.kind} {place} has been stopped")
        return handles[place].call.remote(method, args)

    def collect(self, calls: Mapping[int, Any], timeout_s: float) -> dict[int, Answer]:
        """The answers to these calls, by place; the error of a process that is gone or does not answer is `Lost`."""
        ready, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=timeout_s)
        return {place: self._answer(place, call, call in ready, timeout_s) for place, call in calls.items()}

    def arrived(self, calls: Mapping[int, Any], timeout_s: float) -> dict[int, Answer]:
        """The answers that are there, at least one unless none comes in time."""
        ray.wait(list(calls.values()), num_returns=1, timeout=timeout_s)
        ready, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=0)
        return {place: self._answer(place, call, True, timeout_s) for place, call in calls.items() if call in ready}

    def _answer(self, place: int, call: Any, ready: bool, timeout_s: float) -> Answer:
        if not ready:
            longer = "" if timeout_s == START_S else LONGER
            return Answer(error=self.lost(place, f"has not answered within {timeout_s:g} s{longer}"))
        try:
            return ray.get(call)
        except ray.exceptions.RayTaskError:
            raise
        except ray.exceptions.RayError as error:  # the process ended, was ended for lack of memory, or its node is gone
            return Answer(error=self.lost(place, f"has lost its process: {first_line(error)}"))

    def lost(self, place: int, why: str) -> Lost:
        """The error of one that is gone or does not answer."""
        log = "" if self._logs is None else f"; its output is in {self._log(place)}"
        return Lost(f"{self.kind} {place} {why}{log}")

    def whereabouts(self) -> dict[int, Whereabouts]:
        """Where each of them runs; without those that are gone."""
        answers = self.collect(self._where, START_S)
        return {place: answer.value for place, answer in answers.items() if answer.value is not None}

    def replace(self, place: int) -> None:
        """Kill one, and start another in its place.

        Raises:
            ProcessLost: its node is gone, and no other has room.
        """
        if self._handles:
            self._kill(place, self._handles[place])
        if not self._group.wait(PLACED_S):
            raise ProcessLost(
                f"{self.kind} {place} has lost its node, and no other has room for {_amounts(self._bundle)}"
            )
        if not self._handles:
            raise ProcessLost(f"{self.kind} {place} has been stopped")
        self._handles[place] = self._start(place)

    def _kill(self, place: int, handle: Any) -> None:
        ray.kill(handle)
        known, _ = ray.wait([self._where[place]], timeout=0)
        with contextlib.suppress(ray.exceptions.RayError, OSError):
            # Ray asks a process to end, and one that is stopped (SIGSTOP) does not hear that
            where: Whereabouts | None = ray.get(known[0]).value if known else None
            if where is None:
                return
            if where.node == ray.get_runtime_context().get_node_id() and not _is_client():
                _end(where.pid, where.started)
            else:
                strategies = importlib.import_module("ray.util.scheduling_strategies")
                there = strategies.NodeAffinitySchedulingStrategy(where.node, soft=False)
                ray.remote(_end).options(num_cpus=0, scheduling_strategy=there).remote(where.pid, where.started)

    def stop(self) -> None:
        """Kill all of them."""
        handles, self._handles = self._handles, []  # at once: two threads may find a loss
        for place, handle in enumerate(handles):
            self._kill(place, handle)
        if handles:
            ray.util.remove_placement_group(self._group)


def _by_node(nodes: Mapping[int, str]) -> list[int]:
    """The bundles, those of one node after each other; nodes in the order of their first bundles."""
    met = list(dict.fromkeys(node for _, node in sorted(nodes.items())))
    return sorted(nodes, key=lambda bundle: (met.index(nodes[bundle]), bundle))


def _is_client() -> bool:
    """Whether this process speaks to a cluster from outside of it (`ray://`)."""
    return importlib.import_module("ray.util.client").ray.is_connected()


def _end(pid: int, started: str) -> None:
    """Kill a process of this machine, unless another one has its number by now."""
    if started == _started(pid):
        os.kill(pid, signal.SIGKILL)


def _written(stream: int) -> list[bytes]:
    """The lines that this process has written to a file; without those that Ray writes for itself."""
    with contextlib.suppress(OSError), open(f"/proc/self/fd/{stream}", "rb") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return [line for line in file if not line.startswith(b":")]
    return []


def _started(pid: int) -> str:
    """When a process began, in clock ticks since the machine did; "" where the system does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except OSError:
        return ""


def threads_of(asked: int, processes: int) -> int:
    """Threads of each process where `asked` is 0: all processes of one kind together have those of this one."""
    return asked or max(1, torch.get_num_threads() // processes)
