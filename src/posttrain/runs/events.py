"""TensorBoard event files, without torch or TensorFlow."""

import os
import socket
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from posttrain.runs.jsonl import naming

_number = count()


class EventFile:
    """One process's event file of a run. TensorBoard joins those of one folder.

    Written by the caller's thread: TensorBoard's writer has one of its own, whose errors the terminal shows in full.
    """

    def __init__(self, folder: Path) -> None:
        # the name by which TensorBoard finds it, sorted by time
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_number)}"
        # here, not above: they take 0.3 s, for which no --help waits
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        # messages that protobuf makes when it is imported, where no type checker sees them
        self._events: Any = event_pb2
        self._summaries: Any = summary_pb2
        self._file = (folder / name).open("wb")
        self._records = RecordWriter(self._file)
        self._add(self._events.Event(file_version="brain.Event:2"))

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        """One point on the curve of each metric."""
        summary = self._summaries.Summary
        values = [summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._add(self._events.Event(step=step, summary=summary(value=values)))

    def restart(self, step: int) -> None:
        """Make TensorBoard forget the points from `step` on: they belong to work that was lost and is done again."""
        log = self._events.SessionLog
        self._add(self._events.Event(step=step, session_log=log(status=log.START)))

    def close(self) -> None:
        """Close the file; all of it is written."""
        self._file.close()

    def _add(self, event: Any) -> None:
        event.wall_time = time.time()
        with naming(self._file.name):
            self._records.write(event.SerializeToString())
            self._file.flush()
