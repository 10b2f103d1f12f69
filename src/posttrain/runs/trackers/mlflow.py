"""MLflow, through its client. MLFLOW_TRACKING_URI says where; unless it is set, the file `mlflow.db` where we are."""

import os
import time
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # it reads that when it is imported

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from posttrain.runs.config_file import flatten, plain
from posttrain.runs.trackers import TrackedRun

_AT_ONCE = 100  # what its API takes in one call
_LONGEST = 6000  # characters of a parameter
_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class MLflow:
    """A run of MLflow; its experiment is made if there is none of that name."""

    _id = ""

    def start(self, run: TrackedRun) -> str:
        """Start or continue a run."""
        self._client = MlflowClient()
        if run.identity:
            self._id = run.identity
            self._client.update_run(self._id, status="RUNNING")
            return self._id
        if not self._id:
            found = self._client.get_experiment_by_name(run.project)
            experiment: Any = found.experiment_id if found else self._client.create_experiment(run.project)
            self._id = self._client.create_run(experiment, run_name=run.name).info.run_id
        settings = flatten(plain(run.settings))
        params = [Param(name, str(value)[:_LONGEST]) for name, value in settings.items()]
        tags = [RunTag(tag, "true") for tag in run.tags]
        for at in range(0, max(len(params), len(tags), 1), _AT_ONCE):
            self._client.log_batch(self._id, params=params[at : at + _AT_ONCE], tags=tags[at : at + _AT_ONCE])
        return self._id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One row."""
        now = int(time.time() * 1000)
        found = [Metric(name, float(value), now, step) for name, value in metrics.items()]
        for at in range(0, len(found), _AT_ONCE):
            self._client.log_batch(self._id, metrics=found[at : at + _AT_ONCE])

    def finish(self, status: str) -> None:
        """With MLflow's own words."""
        self._client.set_terminated(self._id, _STATUS[status])
