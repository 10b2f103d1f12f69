"""Runs one job, in a process that outlives the server: training, then the export of its model.

    python -P -m posttrain.serving.jobs.supervisor FOLDER LOCK

LOCK is the descriptor of a lock that this process and all processes of the job inherit, so that it is held while any of
them lives: no second start of a job can meet the first. Nothing is asked of the server. A file `cancel` in the folder,
a time limit and a log that grows too large end the job: SIGTERM, upon which training saves a checkpoint, and after the
grace time SIGKILL to the process group. How it ended is in `exit.json`.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from posttrain.serving.files import read_json, write_json
from posttrain.serving.jobs.reading import last_words
from posttrain.serving.jobs.record import CANCEL, EXIT, EXPORT, GROUP, LOG, PLAN, RUN, TRAINED

POLL_SECONDS = 0.1
LOG_LIMIT = 64 << 20  # bytes, of one start, and of the export
EXPORT_SECONDS = 3600.0
CANCELLED, TIME, LOG_SIZE = "cancelled", "time", "log"
STOPPED = 143  # exit code of a command that SIGTERM ended


def main(folder: Path, lock: int) -> None:
    """Run the job in `folder`."""
    os.chdir(folder)
    with contextlib.suppress(OSError):  # Linux: where memory is short, jobs are ended before the server
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")
    plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    trained = read_json(folder / TRAINED)
    if trained is None:
        trained = _train(folder, plan, lock)
        trained["said"] = last_words(folder, LOG) if trained["code"] else ""
        write_json(folder / TRAINED, trained)
    if _checkpoints(folder):  # of a job that failed, too: what it had learned may be of use
        trained["exported"] = _export(folder, plan, lock)
    write_json(folder / EXIT, trained)


def _train(folder: Path, plan: dict[str, Any], lock: int) -> dict[str, Any]:
    """Train, from the last checkpoint if there is one; the exit code, and why it was ended."""
    if (folder / CANCEL).exists():
        return {"code": STOPPED, "why": CANCELLED}
    if _checkpoints(folder):
        words = plan["resumed"]
    else:  # what is there is of a start that was killed before its first checkpoint
        shutil.rmtree(folder / RUN, ignore_errors=True)
        words = plan["new"]
    return _run(folder, words, lock, float(plan["seconds"]), float(plan["grace"]))


def _checkpoints(folder: Path) -> list[Path]:
    return [path for path in (folder / RUN / "checkpoints").glob("step-*") if path.is_dir()]


def _export(folder: Path, plan: dict[str, Any], lock: int) -> bool:
    """Export the trained model; a trained adapter is merged, so that the result is a whole model."""
    shutil.rmtree(folder / EXPORT, ignore_errors=True)
    adapter = any((path / "adapter_config.json").exists() for path in _checkpoints(folder))
    done = _run(folder, plan["merge" if adapter else "copy"], lock, EXPORT_SECONDS, 1.0, cancels=False)
    card = folder / EXPORT / "README.md"
    if done["code"] == 0 and card.is_file() and not card.is_symlink():
        text = card.read_text(encoding="utf-8")
        for path, name in plan["hidden"].items():  # where the server keeps its models concerns nobody
            text = text.replace(path, name)
        card.write_text(text, encoding="utf-8")
    return done["code"] == 0


def _run(
    folder: Path, words: list[str], lock: int, seconds: float, grace: float, *, cancels: bool = True
) -> dict[str, Any]:
    """Run a command in a process group of its own until it ends or has to."""
    began, why, kill_at = time.monotonic(), "", float("inf")
    with (folder / LOG).open("ab") as log:
        most = log.tell() + LOG_LIMIT  # the export has a limit of its own
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0, pass_fds=[lock]
        )
        write_json(folder / GROUP, child.pid)
        while not _ended(child):
            now = time.monotonic()
            if not why:
                why = _reason(folder, now - began > seconds, most, cancels)
                if why:
                    child.terminate()
                    kill_at = now + grace
            elif now > kill_at:
                _kill(child.pid)
            time.sleep(POLL_SECONDS)
        _kill(child.pid)  # workers that its end left behind
        return {"code": child.wait(), "why": why}


def _ended(child: "subprocess.Popen[bytes]") -> bool:
    """Whether a process has ended. It stays a zombie, so that its group has no other's number when that is killed."""
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return child.poll() is not None  # macOS before Python 3.13


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _reason(folder: Path, late: bool, most: int, cancels: bool) -> str:
    if cancels and (folder / CANCEL).exists():
        return CANCELLED
    if late:
        return TIME
    return LOG_SIZE if (folder / LOG).stat().st_size > most else ""


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
