"""The processes of jobs. They outlive the server, and two locks say what lives of a job.

`lock` is held while any of its processes lives, `supervised` while its supervisor does. Both are taken before the
supervisor starts, and inherited: a lock that is free means that nothing of the job runs, whatever happened.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from posttrain.serving.files import read_json, write_json
from posttrain.serving.jobs.record import CANCEL, GROUP, LOCK, LOG, PLAN, SUPERVISED

RUNS, ORPHANED, GONE = "runs", "orphaned", "gone"

PASSED = ("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""Variables that a job inherits; no others, since they may hold keys."""
COMPUTE = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "CUDA_HOME")


@dataclass(frozen=True)
class CommandLines:
    """How posttrain is typed, in a job's folder.

    Attributes:
        program: what begins each line.
        new: begins to train, after the command's name; as in record.py, from job.toml into run/.
        resumed: goes on with run/.
        exported: exports run/ to export/, after `export merge` or `export hf`; the title comes last.
    """

    program: Sequence[str]
    new: Sequence[str]
    resumed: Sequence[str]
    exported: Sequence[str]


@dataclass
class Processes:
    """Starts and ends the processes of jobs.

    Args:
        cache: the folder of packaged models.
        seconds: that a job may train.
        grace: seconds from SIGTERM to SIGKILL.
        lines: how posttrain is typed.
    """

    cache: Path
    seconds: float
    grace: float
    lines: CommandLines
    _children: dict[Path, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(self, folder: Path, command: str, *, title: str, hidden: Mapping[str, str]) -> bool:
        """Start the job in a folder, unless a process of it lives.

        Args:
            folder: the job's.
            command: which trains.
            title: of the exported model.
            hidden: paths that a result does not show, and what stands for each.
        """
        locks = [_taken(folder / name) for name in (LOCK, SUPERVISED)]
        try:
            if None in locks:
                return False
            plan = {
                "new": [*self.lines.program, command, *self.lines.new],
                "resumed": [*self.lines.program, command, *self.lines.resumed],
                "merge": [*self.lines.program, "export", "merge", *self.lines.exported, title],
                "copy": [*self.lines.program, "export", "hf", *self.lines.exported, title],
                "hidden": dict(hidden),
                "seconds": self.seconds,
                "grace": self.grace,
            }
            write_json(folder / PLAN, plan)
            words = [sys.executable, "-P", "-m", "posttrain.serving.jobs.supervisor", str(folder), str(locks[0])]
            with (folder / LOG).open("ab") as log:
                self._children[folder] = subprocess.Popen(
                    words,
                    cwd=folder,
                    env=self.environment(folder),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=[lock for lock in locks if lock is not None],
                )
            return True
        finally:
            for lock in locks:
                if lock is not None:
                    os.close(lock)

    def environment(self, folder: Path) -> dict[str, str]:
        """The environment of a job: nothing of the server's but what it computes with."""
        kept = {name: os.environ[name] for name in (*PASSED, *COMPUTE) if name in os.environ}
        if "PYTHONPATH" in kept:  # a job works in another folder, in which a relative one would lead elsewhere
            paths = filter(None, kept["PYTHONPATH"].split(os.pathsep))
            kept["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths))
        return kept | {
            "HOME": str(folder),
            "POSTTRAIN_CACHE": str(self.cache),
            "HF_HOME": str(folder / "cache"),
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def look(self, folder: Path) -> str:
        """What lives of a job: all, its training without the supervisor, or nothing."""
        if (child := self._children.get(folder)) is not None and child.poll() is not None:
            del self._children[folder]  # which is not a zombie any more
        if not _held(folder / LOCK):
            return GONE
        return RUNS if _held(folder / SUPERVISED) else ORPHANED

    def cancel(self, folder: Path) -> None:
        """Have the supervisor end a job."""
        write_json(folder / CANCEL, True)

    def kill_orphan(self, folder: Path) -> None:
        """End the training of a job whose supervisor was killed."""
        group = read_json(folder / GROUP)
        if isinstance(group, int) and group > 1 and _is_in(group, folder):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)


def _taken(path: Path) -> int | None:
    """The descriptor of a lock that is ours now; None if another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _held(path: Path) -> bool:
    """Whether a process of the job has a lock."""
    if (descriptor := _taken(path)) is None:
        return True
    os.close(descriptor)
    return False


def _is_in(process: int, folder: Path) -> bool:
    """Whether a process works in a folder, so that its number is not another's by now; True where nothing tells."""
    if not Path("/proc/self/cwd").exists():
        return True
    try:
        return Path(f"/proc/{process}/cwd").resolve() == folder.resolve()
    except OSError:
        return False
