"""A box: one program that is not trusted, in a bubblewrap of its own, with limits; and a whole program in one.

The program sees `/usr` and the interpreter, read-only, and an empty `/tmp` of limited size; no network, no other
process, no `/proc`, no environment, no capability. It is one process of one thread. Nothing is reused: each program
has a new box, which takes about 15 ms.

CPU seconds decide, so that what a program is told does not depend on how busy the machine is. They are read from
outside, from the clock of the process: a program can set its own timers and limits, but not that. One thread
cannot use more CPU seconds than pass, so the clock is looked at when the budget may be used up, and not all the time.
"""

import json
import math
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from posttrain.errors import UserError
from posttrain.sandbox.isolation import Sandbox, refuse_without_isolation, start


class Stop(StrEnum):
    """The limit at which a program was stopped."""

    CPU = "CPU seconds"
    WALL = "wall clock"
    OUTPUT = "output"


@dataclass(frozen=True)
class Limits:
    """Limits of one program."""

    cpu_s: float = 8.0
    """CPU seconds, of which starting the interpreter takes 0.02."""
    wall_s: float = 30.0
    """Seconds by the clock: a backstop for programs that sleep, which depends on the machine's load."""
    memory_mb: int = 512
    """Address space, in MiB."""
    output_kb: int = 1024
    """What it may write to its outputs, together, in KiB."""
    files_mb: int = 16
    """What it may write to `/tmp`, in MiB."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0 < value < math.inf:
                raise UserError(f"'{name}' of a sandbox must be above 0; got {value}")

    def exceeded(self, stop: Stop) -> str:
        """What a program did that was stopped."""
        return {
            Stop.CPU: f"used more than {self.cpu_s:g} CPU seconds",
            Stop.WALL: f"did not finish within {self.wall_s:g} s",
            Stop.OUTPUT: f"wrote more than {self.output_kb} KiB",
        }[stop]


DEFAULT = Limits()


class Box:
    """A program that runs: `program` is MODULE.FUNCTION of `inside/`, and `job` the JSON that it is told.

    It reads its job before anything that is not trusted, and inherits `descriptors` by the same numbers. CPU seconds
    count from the last `give_time`. With sandbox "none" it is a plain process with its limits. Raises `UserError` where
    programs cannot be isolated on this machine, `SandboxError` if it did not start.
    """

    def __init__(
        self,
        program: str,
        job: Mapping[str, Any],
        limits: Limits,
        sandbox: Sandbox = "bubblewrap",
        *,
        stdin: Any = subprocess.DEVNULL,
        stdout: Any = subprocess.PIPE,
        descriptors: Sequence[int] = (),
    ) -> None:
        wrapper = "" if sandbox == "none" else refuse_without_isolation()
        self.limits = limits
        self.stopped: Stop | None = None  # the limit at which it was stopped
        with tempfile.TemporaryFile() as told:
            told.write(json.dumps({**job, "limits": asdict(limits)}).encode())
            told.seek(0)
            passed = [*descriptors, told.fileno()]
            self.process, self._pid = start(wrapper, program, limits.files_mb, passed, stdin=stdin, stdout=stdout)
        self.give_time()

    def give_time(self) -> None:
        """Let the budgets of CPU seconds and of the wall clock begin now."""
        self._used_before, self._began = self._used(), time.monotonic()

    def keep_limits(self) -> float:
        """Stop the program where a budget is used up; the seconds in which none can be."""
        if self.process.poll() is not None:
            return math.inf
        cpu = self.limits.cpu_s - (self._used() - self._used_before)
        wall = self.limits.wall_s - (time.monotonic() - self._began)
        if cpu > 0 and wall > 0:
            return max(0.002, min(cpu, wall))
        self.stop(Stop.WALL if cpu > 0 else Stop.CPU)
        return math.inf

    def _used(self) -> float:
        """CPU seconds of the program so far."""
        with suppress(OSError):
            return time.clock_gettime((~self._pid << 3) | 2)  # the CPU clock of a process (clock_getcpuclockid)
        return 0.0

    def stop(self, why: Stop | None = None) -> None:
        """End the program and all that is in its box."""
        if self.process.poll() is None:
            self.stopped = self.stopped or why
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # bubblewrap's child ends with bubblewrap

    def ended(self) -> str:
        """How it ended, in words."""
        if self.stopped:
            return self.limits.exceeded(self.stopped)
        try:
            status = self.process.wait(1)
        except subprocess.TimeoutExpired:
            return "gave no answer"
        number = -status if status < 0 else status - 128
        names = {one.value: one.name for one in signal.Signals}
        return f"was ended by {names[number]}" if number in names else f"ended with exit status {status}"

    def close(self) -> None:
        """End the program and wait until it is gone."""
        self.stop()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def read(boxes: Sequence[Box], descriptors: Sequence[int], *, line: bool = False) -> list[bytes]:
    """What the first box writes to `descriptors` until it ends, or a `line` to the first of them.

    All boxes are kept to their limits meanwhile.
    """
    said = {descriptor: bytearray() for descriptor in descriptors}
    most = boxes[0].limits.output_kb << 10
    with selectors.DefaultSelector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map() and not (line and said[descriptors[0]].endswith(b"\n")):
            wait = min(box.keep_limits() for box in boxes)
            events = selector.select(min(wait, 1.0))
            if not events and boxes[0].process.poll() is not None:
                break  # without a sandbox a process that it started may hold its outputs
            for key, _ in events:
                if not (part := os.read(key.fd, 65536)):
                    selector.unregister(key.fd)
                said[key.fd] += part
            if sum(map(len, said.values())) > most:
                boxes[0].stop(Stop.OUTPUT)
                break
    while not line and (wait := boxes[0].keep_limits()) < math.inf:  # it has closed its outputs, and may run on
        with suppress(subprocess.TimeoutExpired):
            boxes[0].process.wait(min(wait, 1.0))
    return [bytes(each[:most]) for each in said.values()]


@dataclass(frozen=True)
class Ran:
    """What a program did."""

    output: str
    error: str
    """The end of what it wrote to its standard error, such as a traceback."""
    stopped: Stop | None
    """The limit at which it was stopped."""
    ended: str
    """How it ended, in words; "" if by itself and with exit status 0."""


def run_program(source: str, stdin: str = "", *, limits: Limits = DEFAULT, sandbox: Sandbox = "bubblewrap") -> Ran:
    """Run a Python program, of the standard library alone, in a box of its own.

    Args:
        source: its text.
        stdin: what it reads from its standard input.
        limits: of CPU, memory, output, files and time.
        sandbox: "none" runs it without isolation.

    Raises:
        UserError: programs cannot be isolated on this machine, with cause and remedy.
        SandboxError: the box did not start.
    """
    with tempfile.TemporaryFile() as file:
        file.write(stdin.encode(errors="surrogatepass"))
        file.seek(0)
        with closing(Box("start.program", {"source": source}, limits, sandbox, stdin=file)) as box:
            pipes = [pipe.fileno() for pipe in (box.process.stdout, box.process.stderr) if pipe]
            output, error = (part.decode(errors="replace") for part in read([box], pipes))
            how = "" if box.process.poll() == 0 and not box.stopped else box.ended()
    return Ran(output, error[-2000:], box.stopped, how)
