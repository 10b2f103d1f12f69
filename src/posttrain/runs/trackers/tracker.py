"""The tracker interface, and its sender thread."""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from posttrain.errors import first_line

Say = Callable[[str], None]

LAST_WAIT_S = 15.0
"""Seconds that the end of a run waits for a tracker to take the remaining rows."""


@dataclass(frozen=True)
class TrackedRun:
    """A run's identity and settings for a tracker.

    Attributes:
        project: project or experiment.
        name: of the run.
        tags: of the run.
        settings: the run's options.
        folder: the run's directory.
        identity: the tracker's own id of the run, if the run is resumed; "" for a new one.
    """

    project: str
    name: str
    tags: tuple[str, ...]
    settings: Mapping[str, Any]
    folder: Path
    identity: str = ""


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
