"""Experiment trackers: Weights & Biases, MLflow, Trackio.

`metrics.jsonl` and TensorBoard's event files are always written into the run, so that a tracker is never the only place
of a number, and one that cannot be reached costs no step.
"""

import importlib
import json
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from posttrain.errors import UserError, first_line, unknown

TRACKERS: Mapping[str, tuple[str, str]] = {
    "wandb": ("wandb", "Wandb"),
    "mlflow": ("mlflow", "MLflow"),
    "trackio": ("trackio", "Trackio"),
}
"""By name: the module here, which is called as the package that it needs, and its class."""

TENSORBOARD = "tensorboard"
_KEPT = "trackers.json"
Say = Callable[[str], None]

LAST_WAIT_S = 15.0
"""Seconds that the end of a run waits for a tracker to take the remaining rows."""


@dataclass(frozen=True)
class TrackedRun:
    """A run's identity and settings for a tracker."""

    project: str  # or experiment
    name: str
    tags: tuple[str, ...]
    settings: Mapping[str, Any]  # the run's options
    folder: Path
    identity: str = ""  # the tracker's own id of the run, if it is resumed


class Tracker(Protocol):
    """One tracker. All of its methods are called in one thread, and may raise and block."""

    def start(self, run: TrackedRun) -> str:
        """Start a run, or continue that of `run.identity`; returns its id. Called again after it has raised."""
        ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a step; one that was logged before is replaced or repeated."""
        ...

    def finish(self, status: str) -> None:
        """End it: `finished`, `interrupted` or `failed`."""
        ...


class Sender:
    """Sends a run's rows to one tracker from a thread of its own.

    Failures are reported once, and failed rows are sent again with the next row; at the end, for `LAST_WAIT_S`.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Tracker],
        run: TrackedRun,
        keep: Callable[[str, str], None],
        say: Say,
    ) -> None:
        """Start it; `keep` stores the tracker's id of the run."""
        self.name, self._make, self._run, self._keep, self._say = name, make, run, keep, say
        self._rows: queue.Queue[tuple[int, Mapping[str, float]] | str] = queue.Queue()
        self._made: Tracker | None = None
        self._tracker: Tracker | None = None  # once it has begun
        self._complained = False
        self._thread = threading.Thread(target=self._send, daemon=True, name=f"tracker {name}")
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send a row, without waiting."""
        self._rows.put((step, metrics))

    def finish(self, status: str, *, wait_s: float | None = None) -> None:
        """Send remaining rows and end the run there; by default within `LAST_WAIT_S`."""
        wait_s = LAST_WAIT_S if wait_s is None else wait_s
        self._rows.put(status)
        self._thread.join(wait_s)
        if self._thread.is_alive() and not self._complained:
            self._say(f"tracker {self.name} did not accept the last rows within {wait_s:g} s; metrics.jsonl has them")

    def _send(self) -> None:
        waiting: list[tuple[int, Mapping[str, float]]] = []
        self._attempt(self._begin)
        while True:
            row = self._rows.get()
            if isinstance(row, str):
                self._last(waiting, row)
                return
            waiting.append(row)
            self._attempt(lambda: self._flush(waiting))

    def _last(self, waiting: list[tuple[int, Mapping[str, float]]], status: str) -> None:
        """Once more what could not be sent, for as long as the end of the run waits."""
        until = time.monotonic() + LAST_WAIT_S
        while not self._attempt(lambda: self._flush(waiting)) and time.monotonic() < until:
            time.sleep(0.5)
        self._attempt(lambda: self._tracker.finish(status) if self._tracker else None)

    def _begin(self) -> None:
        self._made = self._made or self._make()
        identity = self._made.start(self._run)
        self._tracker = self._made
        self._keep(self.name, identity)

    def _flush(self, waiting: list[tuple[int, Mapping[str, float]]]) -> None:
        if self._tracker is None:
            self._begin()
        assert self._tracker is not None
        while waiting:
            self._tracker.log(*waiting[0])
            del waiting[0]

    def _attempt(self, work: Callable[[], None]) -> bool:
        """Whether it could be done; what could not is said once."""
        try:
            work()
        except BaseException as error:  # a tracker may even raise SystemExit
            if not self._complained:
                self._complained = True
                why = f"{type(error).__name__}: {first_line(error)}"
                self._say(f"tracker {self.name} failed ({why}); the run continues without it")
            return False
        return True


@dataclass(frozen=True)
class Tracking:
    """Which trackers follow a run, and under which names.

    Raises:
        UserError: an unknown tracker, or one whose package is not installed.
    """

    trackers: tuple[str, ...] = ()  # names in `TRACKERS`; tensorboard needs no naming, it is always written
    project: str = "posttrain"  # or experiment
    name: str = ""  # of the run; unless given, that of its directory
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.trackers:
            if name not in (TENSORBOARD, *TRACKERS):
                raise unknown("tracker", name, [TENSORBOARD, *TRACKERS])
            if name != TENSORBOARD and find_spec(TRACKERS[name][0]) is None:
                raise UserError(f"the tracker {name} needs a package; type: pip install 'posttrain[{name}]'")


def open_trackers(tracking: Tracking | None, run: Path, settings: Mapping[str, Any], say: Say) -> Sequence[Sender]:
    """Start the trackers of a run, or, without `tracking`, continue those that it had.

    The run's directory keeps the trackers' ids in `trackers.json`. The settings become the configuration there.
    """
    file = run / _KEPT
    kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if tracking is None and kept:
        tracking = Tracking(tuple(kept["trackers"]), kept["project"], kept["name"], tuple(kept["tags"]))
    if tracking is None:
        return []
    name = tracking.name or kept.get("name") or run.resolve().name
    ids: dict[str, str] = dict(kept.get("ids", {}))
    asked = {"trackers": tracking.trackers, "project": tracking.project, "name": name, "tags": tracking.tags}
    lock = threading.Lock()

    def keep(tracker: str = "", identity: str = "") -> None:
        with lock:  # each tracker calls from a thread of its own
            ids.update({tracker: identity} if tracker else {})
            new = file.with_name(f".{file.name}.new")
            new.write_text(json.dumps(asked | {"ids": ids}, indent=1), encoding="utf-8")
            new.replace(file)

    names = [tracker for tracker in dict.fromkeys(tracking.trackers) if tracker != TENSORBOARD]
    if names:
        keep()
    senders: list[Sender] = []
    for tracker in names:
        about = TrackedRun(tracking.project, name, tracking.tags, settings, run, ids.get(tracker, ""))
        senders.append(Sender(tracker, partial(_made, tracker), about, keep, say))
    return senders


def _made(name: str) -> Tracker:
    module, kind = TRACKERS[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), kind)()
