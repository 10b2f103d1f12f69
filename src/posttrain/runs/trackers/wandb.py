"""Weights & Biases. WANDB_MODE=offline keeps everything in the run's directory, for `wandb sync` later."""

from collections.abc import Mapping
from uuid import uuid4

import wandb

from posttrain.runs.trackers import TrackedRun


class Wandb:
    """A run of wandb. The step is a metric of its own: rows that come again after a resume would be dropped."""

    def start(self, run: TrackedRun) -> str:
        """Start or continue a run; the login is wandb's own (`wandb login`, WANDB_API_KEY)."""
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
        """One row."""
        self._run.log({"step": step, **metrics})

    def finish(self, status: str) -> None:
        """Failed runs are marked as such."""
        self._run.summary["status"] = status
        self._run.finish(exit_code=1 if status == "failed" else 0)
