"""TensorBoard event files, without torch or TensorFlow."""

import os
import socket
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

from posttrain.runs.jsonl import naming

# Messages that protobuf makes when it is imported, where no type checker sees them.
Event: Any = getattr(event_pb2, "Event")  # noqa: B009
SessionLog: Any = getattr(event_pb2, "SessionLog")  # noqa: B009
Summary: Any = getattr(summary_pb2, "Summary")  # noqa: B009

_number = count()


class EventFile:
    """One process's event file of a run. TensorBoard joins those of one folder.

    Written by the caller's thread: TensorBoard's writer has one of its own, whose errors the terminal shows in full.
    """

    def __init__(self, folder: Path) -> None:
        # the name by which TensorBoard finds it, sorted by time
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_number)}"
        self._file = (folder / name).open("wb")
        self._records = RecordWriter(self._file)
        self._add(Event(file_version="brain.Event:2"))

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        """One point on the curve of each metric."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._add(Event(step=step, summary=Summary(value=values)))

    def restart(self, step: int) -> None:
        """Make TensorBoard forget the points from `step` on: they belong to work that was lost and is done again."""
        self._add(Event(step=step, session_log=SessionLog(status=SessionLog.START)))

    def close(self) -> None:
        """Close the file; all of it is written."""
        self._file.close()

    def _add(self, event: Any) -> None:
        event.wall_time = time.time()
        with naming(self._file.name):
            self._records.write(event.SerializeToString())
            self._file.flush()
