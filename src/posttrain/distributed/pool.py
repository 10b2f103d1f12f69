"""Processes of one kind in a Ray cluster: started, asked, replaced where they are lost, and stopped together.

A run holds a placement group for each kind of process. All actors and groups belong to the process that made them: Ray
ends them with it, so that nothing is left where a run is killed.
"""

import contextlib
import importlib
import math
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

from posttrain.distributed.cluster import LONGER, PROXIES, Answer, Lost, Process, connect, ray
from posttrain.errors import ProcessLost, UserError, first_line
from posttrain.runs.run import Span, joined

PLACED_S = 60.0  # that a cluster may take to find room
START_S = 1800.0  # that a process may take to start and to load its model
LOSSES = 5  # of processes in a row, without an answer in between: then something else is wrong
GAP_S = 0.05  # between two slices of time
LEAST_S = 1e-9  # by which a rate is divided


class Share(NamedTuple):
    """What one process gets of a machine. Ray reserves all but the threads; it binds and limits nothing."""

    cpus: float = 1.0  # logical ones
    gpus: float | None = None  # None: one where the cluster has any
    memory_gb: float = 0.0  # 10^9 bytes; 0: none is reserved
    threads: int = 0  # that torch uses; 0: those of this process divided among all of the kind

    def bundle(self) -> dict[str, float]:
        """The Ray resources, by Ray's names."""
        found = min(1.0, ray.cluster_resources().get("GPU", 0.0)) if self.gpus is None else self.gpus
        asked = {"CPU": self.cpus, "GPU": found, "memory": math.ceil(self.memory_gb * 1e9)}
        return {name: amount for name, amount in asked.items() if amount or name == "CPU"}


ONE_CPU = Share()


def _amounts(resources: Mapping[str, float]) -> str:
    sizes = {name: f"{amount / 1e9:.1f} GB of memory" for name, amount in resources.items() if name == "memory"}
    return ", ".join(sizes.get(name, f"{amount:g} {name}") for name, amount in resources.items())


class Ledger:
    """What `size` processes of a kind did. Threads may note and read at the same time."""

    def __init__(self, kind: str, size: int) -> None:
        self._kind = kind
        self._noting = threading.Lock()
        self._spans: list[Span] = []
        self._busy_s, self._tokens, self._asked = [0.0] * size, [0] * size, time.monotonic()

    def note(self, work: str, places: Iterable[int], seconds: float, tokens: int = 0, *, busy: bool = True) -> None:
        """Note what processes have done in the last seconds, and whether that is what they are for."""
        now = time.time()
        with self._noting:
            for place in places:
                self._spans.append(Span(f"{self._kind} {place}", work, now - seconds, now))
                self._busy_s[place] += seconds if busy else 0.0
                self._tokens[place] += tokens

    def rates(self) -> tuple[dict[str, float], dict[str, float]]:
        """Since the last call: the share of time in which each was busy; tokens per busy second, of all and of each."""
        with self._noting:
            before, self._asked = self._asked, time.monotonic()
            busy_s, self._busy_s = self._busy_s, [0.0] * len(self._busy_s)
            tokens, self._tokens = self._tokens, [0] * len(self._tokens)
        passed_s = max(self._asked - before, LEAST_S)
        shares = {f"cluster/busy/{self._kind}{place}": min(1.0, s / passed_s) for place, s in enumerate(busy_s)}
        speeds = {f"cluster/{self._kind}_tokens_per_second": sum(tokens) / max(sum(busy_s), LEAST_S)}
        for place, (count, s) in enumerate(zip(tokens, busy_s, strict=True)):
            speeds[f"cluster/tokens_per_second/{self._kind}{place}"] = count / max(s, LEAST_S)
        return shares, speeds

    def spans(self) -> list[Span]:
        """What they did since the last call; work that goes on within `GAP_S` is one span."""
        with self._noting:
            found, self._spans = self._spans, []
        return joined(found, GAP_S)


class Pool:
    """Actors of one class, each in a bundle of one placement group; those of one node are neighbours.

    A context manager, at whose end they are gone. A subclass says what they are for.
    """

    given: Sequence[tuple[Any, ...]] = ()  # the arguments of the `build` of each, which loads what it needs

    def __init__(
        self,
        made: type[Process],  # the class
        size: int,  # how many
        *,
        share: Share = ONE_CPU,  # what each gets of a machine
        timeout_s: float = 600.0,  # how long a call may take before the process counts as lost
        environment: Mapping[str, str] | None = None,  # variables of their processes
    ) -> None:
        connect(cpus=size * share.cpus)
        self.kind, self.size, self.timeout_s = made.kind, size, timeout_s
        self.replaced = 0  # those that were lost
        self.ledger = Ledger(self.kind, size)
        self._made, self._threads = made, share.threads or max(1, torch.get_num_threads() // size)
        self._bundle = share.bundle()
        own = {name: os.environ.get(name, "") for name in PROXIES}  # not those of Ray
        hidden = {} if self._bundle.get("GPU") else {"CUDA_VISIBLE_DEVICES": ""}  # it has what is reserved for it
        self._environment = {**own, **hidden, **(environment or {})}
        self._logs: Path | None = None
        self._folder = os.getcwd()
        self._handles: list[Any] = []
        self._begin()

    def _begin(self) -> None:
        self._group = ray.util.placement_group([self._bundle] * self.size, strategy="PACK")
        if not ray.wait([self._group.ready()], timeout=PLACED_S)[0]:
            ray.util.remove_placement_group(self._group)
            raise UserError(self._no_room())
        self._bundles = _by_node(ray.util.placement_group_table(self._group)["bundles_to_node_id"])
        self._handles = [self._start(place) for place in range(self.size)]

    def _no_room(self) -> str:
        there = {name: ray.cluster_resources().get(name, 0) for name in self._bundle}
        each = f"of {_amounts(self._bundle)}"
        asked = f"{self.size} {self.kind}s {each} each do" if self.size > 1 else f"1 {self.kind} {each} does"
        share = ""
        if "GPU" in self._bundle:
            two = ". Two processes share a GPU with `sampler_gpus=0.5`"
            share = two if there["GPU"] else f"; pass `{self.kind}_gpus` 0"
        return f"{asked} not fit; the cluster has {_amounts(there)} in all{share}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *of_error: object) -> None:
        self.stop()

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """Stop them if the block, in which they get ready, raises."""
        try:
            yield
        except BaseException:
            self.stop()
            raise

    @property
    def running(self) -> int:
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
        started = settings.remote(place, self.size, self._threads)
        started.call.remote("work_in", (self._folder,))  # calls to one process run in order
        if self._logs is not None:
            started.call.remote("log_to", (self._log(place).resolve(),))
        return started

    def log_in(self, folder: Path) -> None:
        """Have all, and those that replace them, append their output to files in a folder, such as `trainer-0.log`."""
        folder.mkdir(parents=True, exist_ok=True)
        self._logs = folder
        for place in range(self.running):
            self.call(place, "log_to", self._log(place).resolve())

    def _log(self, place: int) -> Path:
        assert self._logs is not None
        return self._logs / f"{self.kind}-{place}.log"

    def call(self, place: int, method: str, *args: Any) -> Any:
        """Call a method of one, unless they were stopped; what `collect` takes. Calls to one process run in order."""
        handles = self._handles
        if not handles:
            raise ProcessLost(f"{self.kind} {place} has been stopped")
        return handles[place].call.remote(method, args)

    def collect(self, calls: Mapping[int, Any], timeout_s: float = 0.0) -> dict[int, Answer]:
        """The answers to calls within `timeout_s` (0: the pool's), by place; `Lost` for a process that is gone."""
        most = timeout_s or self.timeout_s
        ready, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=most) if calls else ([], [])
        return {place: self._answer(place, call, call in ready, most) for place, call in calls.items()}

    def arrived(self, calls: Mapping[int, Any], timeout_s: float) -> dict[int, Answer]:
        """The answers that are there, at least one unless none comes in time."""
        ray.wait(list(calls.values()), num_returns=1, timeout=timeout_s)
        ready, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=0)
        return {place: self._answer(place, call, True, timeout_s) for place, call in calls.items() if call in ready}

    def ask(self, place: int, method: str, *args: Any, timeout_s: float = 0.0) -> Any:
        """What a method of one process returns; raises what it raises, and `Lost`. Its time is as in `collect`."""
        return self.collect({place: self.call(place, method, *args)}, timeout_s)[place].result()

    def _answer(self, place: int, call: Any, ready: bool, timeout_s: float) -> Answer:
        if not ready:
            longer = "" if timeout_s == START_S else LONGER
            return Answer(error=self.lost(place, f"has not answered within {timeout_s:g} s{longer}"))
        try:
            return ray.get(call)
        except ray.exceptions.RayTaskError:
            raise
        except ray.exceptions.RayError as error:  # the process ended, was ended for lack of memory, or its node is gone
            return Answer(error=self.lost(place, f"died: {first_line(error)}"))

    def lost(self, place: int, why: str) -> Lost:
        """The error of one that is gone or does not answer."""
        log = "" if self._logs is None else f"; its output is in {self._log(place)}"
        return Lost(f"{self.kind} {place} {why}{log}")

    def build(self, places: Iterable[int]) -> list[Any]:
        """Have processes load what they need; what each says of that. Raises what they raise, and `Lost`."""
        calls = {place: self.call(place, "build", *self.given[place]) for place in places}
        return [answer.result() for answer in self.collect(calls, START_S).values()]

    def replace(self, place: int) -> None:
        """Kill one, start another in its place, and have it load what it needs. Raises as `restart` and `build`."""
        self.restart(place)
        self.replaced += 1
        self.build([place])

    def restart(self, place: int) -> None:
        """Kill one, start another that has loaded nothing; `ProcessLost` if its node is gone and no other has room."""
        placed = False
        if handles := self._handles:
            ray.kill(handles[place])
            try:
                placed = self._group.wait(PLACED_S)
            except Exception:  # Ray has no class for a group that `stop` removed meanwhile
                if self._handles:
                    raise
        if not self._handles:
            raise ProcessLost(f"{self.kind} {place} has been stopped")
        if not placed:
            room = _amounts(self._bundle)
            raise ProcessLost(f"{self.kind} {place} lost its node, and no other has room for {room}")
        self._handles[place] = self._start(place)

    def stop(self) -> None:
        """Kill all of them."""
        handles, self._handles = self._handles, []  # at once: two threads may find a loss
        for handle in handles:
            ray.kill(handle)
        if handles:
            ray.util.remove_placement_group(self._group)


def _by_node(nodes: Mapping[int, str]) -> list[int]:
    """The bundles, those of one node after each other; nodes in the order of their first bundles."""
    met = list(dict.fromkeys(node for _, node in sorted(nodes.items())))
    return sorted(nodes, key=lambda bundle: (met.index(nodes[bundle]), bundle))
