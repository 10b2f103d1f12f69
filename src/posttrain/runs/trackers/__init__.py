"""Experiment trackers: Weights & Biases, MLflow, Trackio.

`metrics.jsonl` and TensorBoard's event files are always written into the run, so that a tracker is never the only place
of a number, and one that cannot be reached costs no step.
"""

import importlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from posttrain.errors import UserError, unknown
from posttrain.runs.trackers.tracker import Say, Sender, TrackedRun, Tracker

TRACKERS: Mapping[str, tuple[str, str]] = {
    "wandb": ("wandb", "Wandb"),
    "mlflow": ("mlflow", "MLflow"),
    "trackio": ("trackio", "Trackio"),
}
"""By name: the module here, which is called as the package that it needs, and its class."""

TENSORBOARD = "tensorboard"
_KEPT = "trackers.json"


@dataclass(frozen=True)
class Tracking:
    """Which trackers follow a run, and under which names.

    Attributes:
        trackers: names in `TRACKERS`; tensorboard needs no naming, it is always written.
        project: the tracker's project or experiment.
        name: of the run; unless given, that of its directory.
        tags: of the run.

    Raises:
        UserError: an unknown tracker, or one whose package is not installed.
    """

    trackers: tuple[str, ...] = ()
    project: str = "posttrain"
    name: str = ""
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.trackers:
            if name not in (TENSORBOARD, *TRACKERS):
                raise unknown("tracker", name, [TENSORBOARD, *TRACKERS])
            if name != TENSORBOARD and find_spec(TRACKERS[name][0]) is None:
                raise UserError(f"the tracker {name} needs a package; type: pip install 'posttrain[{name}]'")


def open_trackers(tracking: Tracking | None, run: Path, settings: Mapping[str, Any], say: Say) -> Sequence[Sender]:
    """Start the trackers of a run, or continue those that it had.

    Args:
        tracking: what to track with; None for what the run in the directory was tracked with before, if it was.
        run: the run's directory, which keeps the trackers' ids in `trackers.json`.
        settings: the run's options, which become its configuration there.
        say: prints a line for the user.
    """
    file = run / _KEPT
    kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if tracking is None:
        tracking = (
            Tracking(tuple(kept["trackers"]), kept["project"], kept["name"], tuple(kept["tags"])) if kept else None
        )
    if tracking is None:
        return []
    name = tracking.name or kept.get("name") or run.resolve().name
    ids: dict[str, str] = dict(kept.get("ids", {}))
    asked = {"trackers": tracking.trackers, "project": tracking.project, "name": name, "tags": tracking.tags}
    lock = threading.Lock()

    def write() -> None:
        new = file.with_name(f".{file.name}.new")
        new.write_text(json.dumps(asked | {"ids": ids}, indent=1), encoding="utf-8")
        new.replace(file)

    def keep(tracker: str, identity: str) -> None:
        with lock:  # each tracker calls from a thread of its own
            ids[tracker] = identity
            write()

    names = [tracker for tracker in dict.fromkeys(tracking.trackers) if tracker != TENSORBOARD]
    if names:
        write()
    senders: list[Sender] = []
    for tracker in names:
        about = TrackedRun(tracking.project, name, tracking.tags, settings, run, ids.get(tracker, ""))
        senders.append(Sender(tracker, lambda tracker=tracker: _made(tracker), about, keep, say))
    return senders


def _made(name: str) -> Tracker:
    module, kind = TRACKERS[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), kind)()
