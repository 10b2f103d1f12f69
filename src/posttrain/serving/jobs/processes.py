"""The process of a job: a command in a session of its own, which goes on when the server ends; and what it writes.

It is in the table before it does anything: it begins as a shell that waits for a line of the server's, and ends if
the server does before that. All processes that it starts have the job's folder as their HOME, by which they are found.
What runs in a job decides what is in its folder, which is read without following links.
"""

import codecs
import contextlib
import io
import json
import os
import re
import signal
import stat
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from posttrain.runs.processes import PROC
from posttrain.serving.jobs.table import LOG, RESULT, RUN

PASSED = ("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""Variables that a job inherits; no others, since they may hold keys."""
COMPUTE = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "CUDA_HOME")

# On Linux, where memory is short, jobs are ended before the server.
GATE = 'read -r go || exit 1; { echo 500 >/proc/self/oom_score_adj; } 2>/dev/null; exec "$@" </dev/null'
CHUNK = 1 << 20  # bytes
LOG_BYTES = 1 << 20  # of a log in one answer
ROWS, ROW_BYTES = 1000, 8 << 20  # of metrics or samples in one answer
TAIL_BYTES = 8192  # of a log, in which the reason of a failure is looked for
EXPORTED = (".safetensors", ".json", ".jinja", ".txt", ".md", ".model")
"""The ends of names of files in a result: weights are safetensors, which hold no code."""

# Control characters but newlines and tabs, and what changes the direction of text or ends a line unseen.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


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


def clean(text: str) -> str:
    r"""Text without control characters, which could command the terminal that shows it.

    Example:
        >>> print(clean("\x1b[2Jdone"))
        \x1b[2Jdone
    """
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


@contextlib.contextmanager
def opened(folder: Path, *names: str) -> Iterator[BinaryIO]:
    """A regular file in a job's folder, empty if there is none; neither it nor the folders on the way may be links."""
    at, file = -1, None
    try:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        for number, name in enumerate(names):
            kind = os.O_NONBLOCK if number == len(names) - 1 else os.O_DIRECTORY
            inner = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | kind, dir_fd=at)
            os.close(at)
            at = inner
        if stat.S_ISREG(os.fstat(at).st_mode):
            file, at = os.fdopen(at, "rb"), -1
    except OSError:
        pass
    finally:
        if at >= 0:
            os.close(at)
    with file or io.BytesIO() as found:
        yield found


def log_part(folder: Path, offset: int) -> tuple[str, int]:
    """The log from a byte on, and the byte after what is returned."""
    with opened(folder, LOG) as file:
        file.seek(offset)
        raw = file.read(LOG_BYTES)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(raw)  # without a character at the end whose rest is not there yet
    return clean(text), offset + len(raw) - len(decoder.getstate()[0])


def _tail(most: int, folder: Path, *names: str) -> bytes:
    with opened(folder, *names) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most))
        return file.read()


def last_words(folder: Path) -> str:
    """The last line of the log in which posttrain says why it ended; "" if there is none."""
    lines = _tail(TAIL_BYTES, folder, LOG).decode(errors="replace").splitlines()
    found = [line.removeprefix("posttrain: ") for line in lines if line.startswith("posttrain: ")]
    return clean(found[-1])[:1000] if found else ""


def rows_part(folder: Path, name: str, offset: int) -> tuple[list[Any], int]:
    """Whole rows of a JSONL file of the run from row number `offset` on, and the number of the row after them."""
    rows: list[Any] = []
    size = 0
    with opened(folder, RUN, name) as file:
        for number, line in enumerate(iter(partial(file.readline, ROW_BYTES), b"")):
            if not line.endswith(b"\n") or len(rows) == ROWS or size > ROW_BYTES:
                break
            if number >= offset:
                rows.append(_row(line))
                size += len(line)
    return rows, offset + len(rows)


def _row(line: bytes) -> Any:
    try:
        return json.loads(line, parse_constant=lambda name: None)
    except (ValueError, RecursionError):
        return None


def last_step(folder: Path) -> int:
    """The step of the last whole row of metrics; 0 if there is none."""
    lines = _tail(CHUNK, folder, RUN, "metrics.jsonl").split(b"\n")[:-1]
    row = _row(lines[-1]) if lines else None
    step = row.get("step") if isinstance(row, dict) else None
    return step if isinstance(step, int) else 0


def read_object(folder: Path, *names: str) -> dict[str, Any]:
    """A file of one JSON object; empty where there is none."""
    with opened(folder, *names) as file:
        found = _row(file.read(CHUNK))
    return found if isinstance(found, dict) else {}


def exported(folder: Path) -> list[str]:
    """The names of the files of the result, in order; none where there is no result."""
    path = folder / RESULT
    if path.is_symlink() or not path.is_dir():
        return []
    entries = [entry for entry in os.scandir(path) if entry.is_file(follow_symlinks=False)]
    return sorted(entry.name for entry in entries if entry.name.endswith(EXPORTED) and not entry.name.startswith("."))


def tar_of(folder: Path, inside: str) -> Iterator[bytes]:
    """The result as a tar archive, in parts; `inside` is the name of the folder that it unpacks to."""
    for name in exported(folder):
        with opened(folder, RESULT, name) as file:
            found = os.fstat(file.fileno())
            about = tarfile.TarInfo(f"{inside}/{name}")
            about.size, about.mtime, about.mode = found.st_size, int(found.st_mtime), 0o644
            yield about.tobuf(tarfile.PAX_FORMAT)
            left = found.st_size
            while left and (part := file.read(min(CHUNK, left))):
                left -= len(part)
                yield part
            if left:
                raise OSError(f"{name} became shorter while it was read")
            yield bytes(-found.st_size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)
