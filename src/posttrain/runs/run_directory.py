"""Run directories, written by training and evaluation commands.

    runs/rl-2026-01-31-1/
      config.toml           the whole configuration: `posttrain rl --config runs/rl-2026-01-31-1/config.toml` repeats it
      environment.json      versions, hardware, git commit, options; one more entry for each time it was resumed
      metrics.jsonl         one row a step
      samples.jsonl         prompts, completions, rewards by name
      heldout.jsonl         the same of held-out prompts, in runs that evaluate
      timeouts.jsonl        answers on which a verifier's time limit decided, by digest; only if there are any
      events.out.tfevents.* the metrics for TensorBoard
      checkpoints/
      logs/                 the output of processes of a cluster; only if it has some
      report.html

A run that is killed loses nothing that was logged. Resumed from step n, its rows after n are cut off and written again,
so that its files equal those of a run that was never interrupted.
"""

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, Self

from posttrain.errors import UserError, as_typed
from posttrain.runs import config_file, jsonl
from posttrain.runs.environment import describe_environment
from posttrain.runs.inputs import given_objects
from posttrain.runs.run import (
    CHECKPOINTS,
    CONFIG,
    ENVIRONMENT,
    HELDOUT,
    METRICS,
    REPORT,
    SAMPLES,
    Run,
    Sample,
    read_run,
)

_number = count()  # of event files of this process


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
        """All of it is written."""
        self._file.close()

    def _add(self, event: Any) -> None:
        event.wall_time = time.time()
        with jsonl.naming(self._file.name):
            self._records.write(event.SerializeToString())
            self._file.flush()


class RunDirectory:
    """A run directory that is being written, by one process at a time; also a context manager that closes it."""

    def __init__(self, path: Path, environment: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> None:
        """Open the directory for writing; use `create` or `resume`.

        `environment` is what was written of this start in environment.json, `before` what was of the last one.
        """
        self.path = path
        self.checkpoints, self.report = path / CHECKPOINTS, path / REPORT  # which need not exist yet
        self.environment, self.before = environment, before or {}
        self.changes: list[str] = []  # options of a resumed run that are others than before
        self._lock = _lock(path)
        self._open(sys.maxsize)  # all rows, but not a torn last line, which must not be written on to
        self._events = EventFile(path)

    @classmethod
    def create(
        cls,
        path: Path | None,  # None: `runs/COMMAND-DATE-N`, N the first that is free
        command: str,
        config: Mapping[str, Any],  # all of its options, resolved
        *,
        environment: Mapping[str, Any] | None = None,  # what only the caller knows of the machine
    ) -> Self:
        """Start a run; raises `UserError` where the directory is not empty, or cannot be made."""
        toml = _toml(command, config)
        path = _new_directory(path, command)
        about = {"command": command} | _start(config, environment) | {"resumed": []}
        try:
            with jsonl.naming(path):
                (path / CONFIG).write_text(toml, encoding="utf-8")
                _write_environment(path, about)
                return cls(path, about)
        except OSError:  # a full disk; the same command shall find the directory as it was
            for written in path.iterdir():
                written.unlink()
            raise

    @classmethod
    def resume(
        cls,
        path: Path,
        config: Mapping[str, Any],  # all of the command's options, resolved, as they are now
        *,
        command: str = "",  # that continues it, where it may have another name now than when the run began
        may_differ: Collection[str] = (),  # options that change nothing of the steps already done
        environment: Mapping[str, Any] | None = None,  # as in `create`
    ) -> Self:
        """Continue a run. Load its checkpoint, then call `rewind` with the checkpoint's step.

        Raises `UserError` where another process writes it, or its configuration was another one.
        """
        run = read_run(path)
        starts = run.environment.get("resumed", [])
        before = (starts or [run.environment])[-1]
        was = config_file.renamed(before.get("options", run.config))  # runs of earlier versions have the file alone
        if changes := config_file.differences(was, config, ignore=may_differ):
            edited = {line.partition(" was ")[0] for line in config_file.differences(was, run.config)}
            if by_hand := {key: line for line in changes if (key := line.partition(" was ")[0]) in edited}:
                typed = config_file.typed(was, by_hand)
                raise UserError(
                    f"{path / CONFIG} has been edited: {'; '.join(by_hand.values())}; to continue as before, undo that"
                    f"{f', or type {typed}' if typed else ''}"
                )
            raise UserError(
                f"{path} was started with another configuration: {'; '.join(changes)}; "
                "resume with the options it was started with, or start a new run"
            )
        about = _start(config, environment)
        directory = cls(path, about, before=before)
        directory.changes = config_file.differences(was, config)
        command = command or run.command
        if command != run.command or config_file.differences(run.config, config):
            replace_text(path / CONFIG, _toml(command, config))
        _write_environment(path, run.environment | {"command": command, "resumed": [*starts, about]})
        return directory

    def rewind(self, step: int) -> None:
        """Drop what was logged after `step`, the step of the checkpoint that training resumes from.

        Rows of `step` itself stay. Without a checkpoint, -1 drops everything.
        """
        self._metrics.close()
        self._samples.close()
        self._open(step)
        self._events.restart(max(0, step + 1))

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one step's metrics to `metrics.jsonl` and TensorBoard. A step has one row, and steps only grow."""
        if "step" in metrics:
            raise ValueError(f"step is the row's own key; got a metric of that name: {metrics['step']}")
        if step <= self._last:
            raise ValueError(f"steps only grow: {step} comes after {self._last}; a resumed run needs rewind() first")
        numbers = {name: value if isinstance(value, int) else float(value) for name, value in metrics.items()}
        jsonl.append(self._metrics, {"step": step} | numbers)
        self._events.scalars(step, numbers)
        self._last = step

    def log_samples(self, step: int, samples: Iterable[Sample]) -> None:
        """Write completions of one step to `samples.jsonl`."""
        for sample in samples:
            jsonl.append(self._samples, {"step": step} | asdict(sample))

    def log_heldout(self, step: int, samples: Iterable[Sample]) -> None:
        """Write answers to held-out prompts to `heldout.jsonl`: of the same prompts in the same order each time."""
        with (self.path / HELDOUT).open("ab") as file:
            for sample in samples:
                jsonl.append(file, {"step": step} | asdict(sample))

    def read(self) -> Run:
        """The run as written so far."""
        return read_run(self.path)

    def close(self) -> None:
        """Write out what waits, and let another process resume the run."""
        for file in (self._events, self._metrics, self._samples, self._lock):
            if file is not None:
                with contextlib.suppress(OSError):  # of a row that could not be written, which was said already
                    file.close()

    def _open(self, step: int) -> None:
        last, *_ = (jsonl.truncate(self.path / name, step) for name in (METRICS, SAMPLES, HELDOUT))
        self._last = -1 if last is None else last
        self._metrics, self._samples = ((self.path / name).open("ab") for name in (METRICS, SAMPLES))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def refuse_used(path: Path) -> None:
    """Refuse an existing path for a new run; raises `UserError`, which names its contents."""
    if path.is_dir():
        if any(path.iterdir()):
            hint = f", or type `resume={path}` to continue the run in it" if (path / CONFIG).exists() else ""
            raise UserError(f"run directory {path} is not empty; pass a new or empty one{hint}")
    elif path.exists():
        raise UserError(f"run directory {path} is a file; pass a new or empty directory")


def _start(config: Mapping[str, Any], environment: Mapping[str, Any] | None) -> dict[str, Any]:
    """What environment.json says of one start: also its options, since people edit config.toml."""
    return describe_environment(config) | dict(environment or {}) | {"options": config_file.plain(config)}


def _toml(command: str, config: Mapping[str, Any]) -> str:
    """What config.toml says: the options, after the command that repeats the run."""
    repeat = as_typed(f"posttrain {command} `config=<this file>`")
    if objects := given_objects(config):
        again = ", ".join(f"{name}=..." for name in objects)
        repeat = f"the same pt.run(...) in Python, with its objects; to go on: pt.resume(<this folder>, {again})"
    return f"# To repeat: {repeat}\n{config_file.dumps(config)}"


def _new_directory(path: Path | None, command: str) -> Path:
    try:
        if path is not None:
            refuse_used(path)
            path.mkdir(parents=True, exist_ok=True)
            return path
        Path("runs").mkdir(exist_ok=True)
        stem = f"{command}-{datetime.now(UTC).astimezone():%Y-%m-%d}"
        number = 1
        while True:  # the first that is free; two processes that start at once get two
            free = Path("runs", f"{stem}-{number}")
            with contextlib.suppress(FileExistsError):
                free.mkdir()
                return free
            number += 1
    except OSError as error:
        raise UserError(f"run directory {path or 'runs'} cannot be created: {error.strerror}; pass another") from error


def _lock(path: Path) -> BinaryIO | None:
    """Hold the directory until this process ends, however it ends.

    Locks of this kind are not handed on to forked workers, which may outlive a killed run by a moment.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    file = (path / ".lock").open("ab")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        file.close()
        raise UserError(f"{path} is being written by another process; wait for it or stop it, then resume") from None
    except OSError:  # a file system without locks
        pass
    return file


def _write_environment(path: Path, about: Mapping[str, Any]) -> None:
    replace_text(path / ENVIRONMENT, json.dumps(about, indent=2, default=str) + "\n")


def replace_text(path: Path, text: str) -> None:
    """Write a file of text that is there whole or not at all."""
    new = path.with_name(f".{path.name}.new")
    with jsonl.naming(path):
        new.write_text(text, encoding="utf-8")
        os.replace(new, path)
