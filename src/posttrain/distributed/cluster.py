"""What runs as an actor of a Ray cluster, and how it answers."""

import contextlib
import importlib
import os
import signal
import socket
import stat
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from posttrain.errors import EngineError, PosttrainError, described
from posttrain.models.precision import default_device, fastest

try:
    ray: Any = importlib.import_module("ray")
except ImportError:  # an extra: one process needs none
    ray = None

LONGER = " (`cluster_timeout`, if its work takes longer)"


class Lost(EngineError):
    """A process that is gone, or that does not answer."""


class Answer(NamedTuple):
    """What a method of an actor returned, or raised, which Ray would wrap in an error of its own."""

    value: Any = None
    error: BaseException | None = None

    def result(self) -> Any:
        """The value; raises the error, where there is one."""
        if self.error is not None:
            raise self.error
        return self.value


class Whereabouts(NamedTuple):
    """A process on a node of the cluster."""

    node: str
    pid: int
    started: str  # when, as the system counts; another process that gets the number later has another


class Process:
    """The base of what runs as an actor.

    Attributes:
        kind: what it is called.

    Args:
        place: its number among those of its kind.
        size: how many there are of that.
        threads: that torch uses.
    """

    kind: ClassVar[str]
    _logged = False  # in a file of a run

    def __init__(self, place: int, size: int, threads: int) -> None:
        torch.set_num_threads(threads)
        self.place, self.size = place, size

    def whereabouts(self) -> Whereabouts:
        """Where it runs."""
        return Whereabouts(ray.get_runtime_context().get_node_id(), os.getpid(), _started(os.getpid()))

    def work_in(self, folder: str) -> None:
        """Have relative paths mean here what they mean to the command; unless this machine has no such folder."""
        with contextlib.suppress(OSError):
            os.chdir(folder)

    def precision(self, asked: str) -> tuple[str, str]:
        """The number format that `auto` stands for in this process, and why it was chosen."""
        if asked != "auto":
            return asked, "`precision`"
        found = fastest(default_device())
        return str(found.dtype).removeprefix("torch."), found.reason

    def log_to(self, file: Path) -> None:
        """Append what this process writes to standard output and error to a file, with what it has written so far.

        Where the folder is not there, as on a machine that does not see it, Ray's logs keep that.
        """
        if not file.parent.is_dir():
            return
        streams, self._logged, first = (sys.stdout, sys.stderr), True, not self._logged
        with open(file, "ab") as log:
            log.write(
                f"process {os.getpid()} on {socket.gethostname()}, {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode()
            )
            for stream in streams:
                stream.flush()
                log.writelines(_written(stream.fileno()) if first else ())
            log.flush()
            for stream in streams:
                os.dup2(log.fileno(), stream.fileno())

    def call(self, method: str, args: Sequence[Any]) -> Answer:
        """Call a method."""
        try:
            return Answer(getattr(self, method)(*args))
        except (Exception, KeyboardInterrupt) as error:  # SystemExit, of a signal, ends the process
            if not isinstance(error, PosttrainError):
                error.add_note(traceback.format_exc())  # which is not sent with it
            return Answer(error=_sendable(error))


def _sendable(error: BaseException) -> BaseException:
    """The error, or a `RuntimeError` that says the same if it cannot be pickled or not be read again.

    Ray would tell the second kind as the loss of the process.
    """
    try:
        ray.cloudpickle.loads(ray.cloudpickle.dumps(error))
        return error
    except Exception:
        told = RuntimeError(described(error))
        for note in getattr(error, "__notes__", ()):
            told.add_note(note)
        return told


def end(pid: int, started: str) -> None:
    """Kill a process of this machine, unless another one has its number by now."""
    if started == _started(pid):
        os.kill(pid, signal.SIGKILL)


def _written(stream: int) -> list[bytes]:
    """The lines that this process has written to a file; without those that Ray writes for itself."""
    with contextlib.suppress(OSError), open(f"/proc/self/fd/{stream}", "rb") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return [line for line in file if not line.startswith(b":")]
    return []


def _started(pid: int) -> str:
    """When a process began, in clock ticks since the machine did; "" where the system does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except OSError:
        return ""
