"""The process of a job: a command in a session of its own, which goes on when the server ends.

It is in the table before it does anything: it begins as a shell that waits for a line of the server's, and ends if
the server does before that. All processes that it starts have the job's folder as their HOME, by which they are found.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from posttrain.serving.jobs.table import LOG

PROGRAM = (sys.executable, "-P", "-m", "posttrain")  # -P: what is in a job's folder is no module

PASSED = ("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""Variables that a job inherits; no others, since they may hold keys."""
COMPUTE = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "CUDA_HOME")

# On Linux, where memory is short, jobs are ended before the server.
GATE = 'read -r go || exit 1; { echo 500 >/proc/self/oom_score_adj; } 2>/dev/null; exec "$@" </dev/null'
PROC = Path("/proc")
LINUX = (PROC / "self/stat").exists()


def launch(words: Sequence[str], folder: Path, cache: Path) -> "subprocess.Popen[bytes]":
    """Start a command of the job in a folder; it waits until `go`, and ends if its standard input does."""
    with (folder / LOG).open("ab") as log:
        return subprocess.Popen(
            ["/bin/sh", "-c", GATE, "posttrain", *words],
            cwd=folder,
            env=environment(folder, cache),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def go(child: "subprocess.Popen[bytes]", *, begins: bool) -> None:
    """Let a command begin, or end before it does."""
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError), child.stdin:
        child.stdin.write(b"\n" * begins)
    if not begins:
        child.wait()


def environment(folder: Path, cache: Path) -> dict[str, str]:
    """The environment of a job: of the server's what it computes with, and `cache`, the folder of packaged models."""
    kept = {name: os.environ[name] for name in (*PASSED, *COMPUTE) if name in os.environ}
    if "PYTHONPATH" in kept:  # a job works in another folder, in which a relative one would lead elsewhere
        paths = filter(None, kept["PYTHONPATH"].split(os.pathsep))
        kept["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths))
    return kept | {
        "HOME": str(folder),
        "POSTTRAIN_CACHE": str(cache),
        "HF_HOME": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }


def born(pid: int) -> str:
    """What tells a living process from an earlier one of its number; "" where there is none, or a zombie."""
    if LINUX:
        try:
            about = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        boot = (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return "" if about[0] in "ZX" else f"{boot} {about[19]}"
    shown = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    status, *since = shown.stdout.split() or ["Z"]
    return "" if status.startswith("Z") else " ".join(since)


def signalled(pid: int, number: int, *, group: bool = False) -> None:
    """Send a signal to a process, or to its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, number)


def ended(child: "subprocess.Popen[bytes]") -> int:
    """The exit code of a process that has ended; its group is ended before its number may be another's."""
    if child.returncode is None:
        signalled(child.pid, signal.SIGKILL, group=True)
    return child.wait()


def clear(folder: Path) -> bool:
    """End all processes of the job in a folder, wherever they have got to; whether there were none.

    On Linux, where they are found by their environment. Elsewhere those that left the group of a process of this
    server's, or whose server was killed together with them, are not found.
    """
    home, left = f"HOME={folder}".encode(), False
    for path in PROC.glob("[0-9]*/environ"):
        try:
            if home not in path.read_bytes().split(b"\0"):
                continue
        except OSError:  # it has ended, or is another user's
            continue
        signalled(int(path.parent.name), signal.SIGKILL)
        left = True
    return not left
