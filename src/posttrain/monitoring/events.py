"""Curves for TensorBoard, by its own package: nothing here needs torch or TensorFlow."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

# Messages that protobuf makes when it is imported, where no type checker sees them.
Event: Any = getattr(event_pb2, "Event")  # noqa: B009
SessionLog: Any = getattr(event_pb2, "SessionLog")  # noqa: B009
Summary: Any = getattr(summary_pb2, "Summary")  # noqa: B009


class EventFile:
    """One process's event file of a run. TensorBoard joins those of one folder."""

    def __init__(self, folder: Path) -> None:
        self._writer = EventFileWriter(str(folder))

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        """One point on the curve of each metric."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._add(Event(step=step, summary=Summary(value=values)))

    def restart(self, step: int) -> None:
        """Make TensorBoard forget the points from `step` on: they belong to work that was lost and is done again."""
        self._add(Event(step=step, session_log=SessionLog(status=SessionLog.START)))

    def close(self) -> None:
        """Write out what is still waiting."""
        self._writer.close()

    def _add(self, event: Any) -> None:
        event.wall_time = time.time()
        self._writer.add_event(event)
        self._writer.flush()
