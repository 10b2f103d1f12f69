"""Experiment trackers: Weights & Biases, MLflow, Trackio.

`metrics.jsonl` and TensorBoard's event files are always written into the run, so that a tracker is never the only place
of a number, and one that cannot be reached costs no step.
"""

import io
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from posttrain.errors import UserError, first_line, unknown
from posttrain.runs.config_file import flatten, plain
from posttrain.runs.run_directory import replace_text

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

    def finish(self, status: str) -> None:
        """End it: `finished`, `interrupted` or `failed`."""


class _Wandb:
    """Weights & Biases. WANDB_MODE=offline keeps all in the run's directory, for `wandb sync` later.

    The step is a metric of its own: rows that come again after a resume would be dropped.
    """

    def start(self, run: TrackedRun) -> str:
        # the login is its own: `wandb login`, WANDB_API_KEY
        import wandb

        identity = run.identity or uuid4().hex[:12]
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            id=identity,
            resume="allow",
            tags=list(run.tags),
            config=dict(run.settings),
            dir=str(run.folder),
            settings=wandb.Settings(silent=True, console="off", init_timeout=30),
        )
        self._run.define_metric("*", step_metric="step")
        return identity

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **metrics})

    def finish(self, status: str) -> None:
        self._run.summary["status"] = status
        self._run.finish(exit_code=1 if status == "failed" else 0)


class _MLflow:
    """MLflow, through its client. MLFLOW_TRACKING_URI says where; unless it is set, the file `mlflow.db` where we are.

    An experiment is made if there is none of that name.
    """

    def __init__(self) -> None:
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # it reads that when it is imported
        from mlflow import entities, tracking

        self._entities, self._tracking, self._id = entities, tracking, ""

    def start(self, run: TrackedRun) -> str:
        self._client = self._tracking.MlflowClient()
        if run.identity:
            self._id = run.identity
            self._client.update_run(self._id, status="RUNNING")
            return self._id
        if not self._id:
            found = self._client.get_experiment_by_name(run.project)
            experiment: Any = found.experiment_id if found else self._client.create_experiment(run.project)
            self._id = self._client.create_run(experiment, run_name=run.name).info.run_id
        settings = flatten(plain(run.settings))
        # a parameter has at most 6000 characters
        self._send("params", [self._entities.Param(name, str(value)[:6000]) for name, value in settings.items()])
        self._send("tags", [self._entities.RunTag(tag, "true") for tag in run.tags])
        return self._id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        self._send("metrics", [self._entities.Metric(name, float(n), now, step) for name, n in metrics.items()])

    def _send(self, kind: str, found: Sequence[Any]) -> None:
        for at in range(0, len(found), 100):  # what its API takes in one call
            self._client.log_batch(self._id, **{kind: found[at : at + 100]})

    def finish(self, status: str) -> None:
        words = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
        self._client.set_terminated(self._id, words[status])


class _Trackio:
    """Trackio: SQLite below TRACKIO_DIR (by default in the Hugging Face cache), shown by `trackio show`.

    A run is identified by project and name. It has no tags; they are kept in the configuration.
    """

    def start(self, run: TrackedRun) -> str:
        import trackio

        config = flatten(plain(run.settings)) | ({"tags": ", ".join(run.tags)} if run.tags else {})
        with redirect_stdout(io.StringIO()):  # it greets on standard output, which is for answers
            self._run = trackio.init(
                project=run.project,
                name=run.name,
                resume="allow" if run.identity else "never",
                config=config,
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        return str(self._run.name)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def finish(self, status: str) -> None:
        with redirect_stdout(io.StringIO()):
            self._run.finish()


TRACKERS: Mapping[str, Callable[[], Tracker]] = {"wandb": _Wandb, "mlflow": _MLflow, "trackio": _Trackio}
"""By name, which is that of the package, imported where it is used."""


class Sender:
    """Sends a run's rows to one tracker from a thread of its own.

    Failures are reported once, and failed rows are sent again with the next row; at the end, for `LAST_WAIT_S`.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Tracker],
        run: TrackedRun,
        keep: Callable[[str, str], None],  # stores the tracker's id of the run
        say: Say,
    ) -> None:
        """Start its thread."""
        self.name, self._make, self._run, self._keep, self._say = name, make, run, keep, say
        self._rows: queue.Queue[tuple[int, Mapping[str, float]] | str] = queue.Queue()
        self._waiting: list[tuple[int, Mapping[str, float]]] = []
        self._made: Tracker | None = None
        self._tracker: Tracker | None = None  # once it has begun
        self._complained = False
        self._thread = threading.Thread(target=self._send, daemon=True, name=f"tracker {name}")
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send a row, without waiting."""
        self._rows.put((step, metrics))

    def finish(self, status: str) -> None:
        """Send remaining rows and end the run there, within `LAST_WAIT_S`."""
        self._rows.put(status)
        self._thread.join(LAST_WAIT_S)
        if self._thread.is_alive() and not self._complained:
            late = f"did not accept the last rows within {LAST_WAIT_S:g} s; metrics.jsonl has them"
            self._say(f"tracker {self.name} {late}")

    def _send(self) -> None:
        self._attempt(self._flush)
        while not isinstance(row := self._rows.get(), str):
            self._waiting.append(row)
            self._attempt(self._flush)
        until = time.monotonic() + LAST_WAIT_S  # as long as the end of the run waits, what could not be sent
        while not self._attempt(self._flush) and time.monotonic() < until:
            time.sleep(0.5)
        self._attempt(lambda: self._tracker.finish(row) if self._tracker else None)

    def _flush(self) -> None:
        if self._tracker is None:
            self._made = self._made or self._make()
            identity = self._made.start(self._run)
            self._tracker = self._made
            self._keep(self.name, identity)
        while self._waiting:
            self._tracker.log(*self._waiting[0])
            del self._waiting[0]

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
    """Which trackers follow a run, and under which names."""

    trackers: tuple[str, ...] = ()  # names in `TRACKERS`; tensorboard needs no naming, it is always written
    project: str = "posttrain"  # or experiment
    name: str = ""  # of the run; unless given, that of its directory
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.trackers:
            if name not in (TENSORBOARD, *TRACKERS):
                raise unknown("tracker", name, [TENSORBOARD, *TRACKERS])
            if name != TENSORBOARD and find_spec(name) is None:
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
            replace_text(file, json.dumps(asked | {"ids": ids}, indent=1))

    names = [tracker for tracker in dict.fromkeys(tracking.trackers) if tracker != TENSORBOARD]
    if names:
        keep()
    senders: list[Sender] = []
    for tracker in names:
        about = TrackedRun(tracking.project, name, tracking.tags, settings, run, ids.get(tracker, ""))
        senders.append(Sender(tracker, TRACKERS[tracker], about, keep, say))
    return senders
