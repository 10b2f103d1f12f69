"""Trackio: SQLite below TRACKIO_DIR (by default in the Hugging Face cache), shown by `trackio show`."""

import io
from collections.abc import Mapping
from contextlib import redirect_stdout

import trackio

from posttrain.runs.config_file import flatten, plain
from posttrain.runs.trackers import TrackedRun


class Trackio:
    """A run of trackio. It has no tags; they are kept in the configuration."""

    def start(self, run: TrackedRun) -> str:
        """Start or continue a run, which is identified by project and name."""
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
        """One row."""
        self._run.log(dict(metrics), step=step)

    def finish(self, status: str) -> None:
        """Write what waits."""
        with redirect_stdout(io.StringIO()):
            self._run.finish()
