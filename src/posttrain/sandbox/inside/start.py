"""How each program in a box begins: its job, its limits, silence; and those that are no more than a line."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from types import ModuleType

TYPE_CHECKING = False  # typing takes a tenth of the time to start
if TYPE_CHECKING:
    from typing import Any


def begin() -> dict[str, Any]:
    """The job, from the descriptor that is the last argument; from here on the limits hold."""
    with open(int(sys.argv[-1]), "rb") as file:
        job = json.loads(file.read())
    sys.argv = [""]
    sys.path[:] = [path for path in sys.path if not os.path.exists(os.path.join(path, "inside"))]
    limits = job["limits"]
    memory, files, seconds = limits["memory_mb"] << 20, limits["files_mb"] << 20, int(limits["cpu_s"]) + 2
    for kind, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, files),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
        *(() if job.get("lasts") else ((resource.RLIMIT_CPU, seconds),)),  # of a session each cell has a budget
    ):
        resource.setrlimit(kind, (most, most))
    return job


def silence(*descriptors: int) -> None:
    """Let descriptors lead nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def program() -> None:
    """Run a whole program as `__main__`; its standard input, output and error are the box's."""
    job = begin()
    module = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(job["source"], "program.py", "exec"), vars(module))


def probe() -> None:
    """Say what is open in a box that must not be, or "isolated"."""
    import socket

    tries: dict[str, Callable[[], object]] = {
        "a process starts": lambda: os.fork() or os._exit(0),
        "a socket opens": lambda: socket.socket(socket.AF_INET),
        "files outside /tmp can be written": lambda: os.open("/probe", os.O_CREAT),
        "processes can be seen": lambda: os.listdir("/proc"),
        "files of the machine can be seen": lambda: os.listdir("/etc"),
    }
    found: list[str] = []
    for name, function in tries.items():
        try:
            function()
        except OSError:
            continue
        found.append(name)
    os.write(1, ("; ".join(found) or "isolated").encode())
