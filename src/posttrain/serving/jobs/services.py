"""Runs jobs: starts their processes, bounds them, and decides what follows when one has ended.

The table says what is to be done, so that a server that was killed leaves nothing undecided: the next one finds the
processes that live, and begins again, from the last checkpoint, those that do not.
"""

import asyncio
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from posttrain.errors import described
from posttrain.runs.processes import PROGRAM, born
from posttrain.serving.access import JobLimits, Keys
from posttrain.serving.files import locked
from posttrain.serving.jobs import table
from posttrain.serving.jobs.processes import clear, ended, go, last_words, launch, signalled
from posttrain.serving.jobs.specification import Offered
from posttrain.serving.jobs.table import Job, Table

TICK_SECONDS, PAUSE_SECONDS = 0.25, 10.0  # between looks at the jobs; after one that failed
GIVE_UP_SECONDS = 600.0  # for which a process that cannot be started is tried again
MOST_DEATHS = 3  # of a job's process by itself, in a row, without a new checkpoint
LOG_LIMIT = 64 << 20  # bytes, of all that a job's training prints
EXPORT_SECONDS = 3600.0
MISTAKE = 2  # exit code of a command whose options or data are wrong: it would end so again
CANCEL, TIME, LOG_SIZE = "cancelled", "time", "log"  # reasons for which a process is to end
NO_RESULT = "its model could not be exported"


class JobServices:
    """A server's parts over a folder, which belongs to one process at a time; raises `UserError` if another has it.

    `cache` is the folder of packaged models, and `program` begins the command line of posttrain. `report` gets a line
    for each job that starts or ends, and for each failure that is not a client's.
    """

    def __init__(
        self,
        root: Path,
        keys: Keys,
        offered: Offered,
        *,
        cache: Path,
        program: Sequence[str] = PROGRAM,
        limits: JobLimits | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.keys, self.limits, self.offered, root = keys, limits or JobLimits(), offered, root.absolute()
        self._cache, self.program, self.report = cache, program, report
        self.turn = asyncio.Lock()  # the rows of one request at a time are read
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.lock = locked(root, "root")
        self.table = Table(root / "jobs", self.limits, report)
        self._children: dict[str, subprocess.Popen[bytes]] = {}  # of this server; the next one has none of them
        self._told: set[int] = set()  # processes that this server has told to end
        self._failing: dict[str, tuple[float, float]] = {}  # since when they cannot be started, and when to try again
        self.wake, self._closing = threading.Event(), False  # `wake`: look at the jobs now
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)

    def start(self) -> None:
        """Begin to run jobs."""
        self._thread.start()

    def close(self) -> None:
        """Start no more jobs. Those that run go on, and the next server finds them."""
        self._closing = True
        self.wake.set()
        if self._thread.ident:
            self._thread.join()
        self.lock.release()

    def cancel(self, job: Job) -> None:
        """End a job; one that trains saves a checkpoint first."""
        if not self.table.change(job, table.QUEUED, state=table.CANCELLED, cancelled=True, ended=time.time()):
            self.table.change(job, table.RUNNING, cancelled=True)
        self.wake.set()

    def running(self) -> list[Job]:
        """The jobs that run."""
        return self.table.all("state = ?", table.RUNNING)

    def _run(self) -> None:
        while not self._closing:
            pause = TICK_SECONDS
            try:
                self.tick()
            except Exception as error:  # such as a full disk, which may have room again later
                self.report(f"jobs cannot go on now: {described(error)}")
                pause = PAUSE_SECONDS
            self.wake.wait(pause)
            self.wake.clear()

    def tick(self) -> None:
        """Bound what runs, settle what has ended, and start what may."""
        for job in self.running():
            if job.id not in self._later():
                self._tend(job)
        while len(self.running()) < self.limits.at_once and (job := self.table.next(self._later())):
            self._begin(job)

    def _later(self) -> list[str]:
        """Jobs that could not be started, and are not tried again now."""
        return [job_id for job_id, (_, until) in self._failing.items() if until > time.time()]

    def _tend(self, job: Job) -> None:
        if job.pid and born(job.pid) == job.born:
            self._bound(job)
            return
        child, folder = self._children.get(job.id), self.table.folder(job)
        code = ended(child) if child else None
        if not clear(folder):
            return  # they have to be gone first
        self._children.pop(job.id, None)
        self._told.discard(job.pid)
        if job.pid or (job.cancelled and job.stage == table.TRAIN):
            exported = job.stage == table.EXPORT and code == 0 and self._whole(folder)
            said, hours = last_words(folder), self.limits.hours
            changes = after(job, code, saved(folder), said, hours, exported=exported)
            ended_at = {"ended": time.time()} if "state" in changes else {}
            job = self.table.change(job, pid=0, reason="", told=0.0, **changes, **ended_at) or job
        if job.state == table.RUNNING:
            self._begin(job)
        else:
            why = f": {job.why}" if job.why else ""
            self._say(job, f"{job.state} after {timedelta(seconds=round(job.ended - job.started))}{why}")

    def _bound(self, job: Job) -> None:
        """Have a process end that has to: SIGTERM, upon which training saves a checkpoint, and in the end SIGKILL."""
        if not (reason := job.reason or self._reason(job)):
            return
        if job.pid not in self._told:  # by this server: the one before may have been killed in between
            self.table.change(job, reason=reason, told=job.told or time.time())
            signalled(job.pid, signal.SIGTERM)
            self._told.add(job.pid)
        elif time.time() > job.told + self.limits.grace:
            signalled(job.pid, signal.SIGKILL, group=True)

    def _reason(self, job: Job) -> str:
        trains = job.stage == table.TRAIN
        if time.time() - job.began > (self.limits.hours * 3600 if trains else EXPORT_SECONDS):
            return TIME
        if trains and job.cancelled:
            return CANCEL
        return LOG_SIZE if trains and (self.table.folder(job) / table.LOG).stat().st_size > LOG_LIMIT else ""

    def _whole(self, folder: Path) -> bool:
        """Whether there is a model; where the server keeps its own concerns nobody."""
        card = folder / table.RESULT / "README.md"
        if not card.is_file() or card.is_symlink():
            return False
        text = card.read_text(encoding="utf-8")
        for path, name in self.offered.hidden.items():
            text = text.replace(path, name)
        card.write_text(text, encoding="utf-8")
        return True

    def _begin(self, job: Job) -> None:
        """Start the process of a job's stage, of which nothing lives."""
        folder, begun = self.table.folder(job), None
        last = saved(folder)
        if job.stage == table.EXPORT:
            shutil.rmtree(folder / table.RESULT, ignore_errors=True)
            kind = "merge" if any((folder / table.RUN).glob("checkpoints/step-*/adapter_config.json")) else "hf"
            title = f"{job.model}-{job.command}"
            words = ["export", kind, "--model", table.RUN, "--output", table.RESULT, "--title", title]
        elif last >= 0:
            words = [job.command, "--resume", table.RUN]
        else:  # what is there is of a start that was killed before its first checkpoint
            shutil.rmtree(folder / table.RUN, ignore_errors=True)
            words = [job.command, "--config", table.TOML, "--output", table.RUN]
        now = time.time()
        try:
            child = launch([*self.program, *words], folder, self._cache)
            try:
                about = {"pid": child.pid, "born": born(child.pid), "began": now, "started": job.started or now}
                attempts = job.attempts + (job.stage == table.TRAIN)
                begun = self.table.change(job, *table.OPEN, state=table.RUNNING, attempts=attempts, saved=last, **about)
            finally:
                go(child, begins=begun is not None)
        except (OSError, sqlite3.Error) as error:  # such as a full disk, which may have room again later
            self._not_started(job, error)
            return
        self._failing.pop(job.id, None)
        if begun is not None:
            self._children[job.id] = child
            if job.stage == table.TRAIN:
                self._say(job, f"{job.command} of {job.model} started{', again' * (job.attempts > 0)}")

    def _not_started(self, job: Job, error: Exception) -> None:
        """A process could not be started: it is tried again for a while, and counts as no attempt."""
        now, why = time.time(), f"its process could not be started: {described(error)}"
        first, _ = self._failing.get(job.id, (now, now))
        self._failing[job.id] = first, now + PAUSE_SECONDS
        self._say(job, why)
        if now - first >= GIVE_UP_SECONDS:
            self.table.change(job, *table.OPEN, state=table.FAILED, why=why, ended=now)

    def _say(self, job: Job, what: str) -> None:
        self.report(f"job {job.id[:8]} of {job.owner}: {what}")


def saved(folder: Path) -> int:
    """The step of the last checkpoint; -1 where there is none."""
    names = [path.name for path in (folder / table.RUN / "checkpoints").glob("step-*") if path.is_dir()]
    return max((int(name[5:]) for name in names if name[5:].isdecimal()), default=-1)


def after(job: Job, code: int | None, last: int, said: str, hours: float, *, exported: bool) -> dict[str, Any]:
    """What changes of a job when its process has ended.

    Its training may be followed by the export of its last checkpoint, also where it failed: what it had learned may be
    of use. A process that died is begun again.

    `code` is the exit code, of a signal a negative number, None where no server saw it; `last` is -1 without one.
    """

    def trained(state: str, why: str = "") -> dict[str, Any]:
        if last >= 0:
            return {"stage": table.EXPORT, "outcome": state, "why": why, "deaths": 0}
        return {"state": table.FAILED, "why": NO_RESULT} if state == table.SUCCEEDED else {"state": state, "why": why}

    if exported:
        return {"state": job.outcome}
    if job.stage == table.TRAIN:
        if code == 0:
            return trained(table.SUCCEEDED)
        if job.cancelled:
            return trained(table.CANCELLED)
        if job.reason == TIME:
            return trained(table.FAILED, f"it trained for {hours:g} hours, which is the limit")
        if job.reason == LOG_SIZE:
            return trained(table.FAILED, "its log grew too large")
    deaths = job.deaths + 1 if last == job.saved else 0
    if code != MISTAKE and not job.reason and deaths < MOST_DEATHS:
        return {"deaths": deaths}
    if job.stage == table.EXPORT:
        if job.outcome == table.SUCCEEDED:
            return {"state": table.FAILED, "why": said or NO_RESULT}
        return {"state": job.outcome}
    if code is not None and code > 0:
        return trained(table.FAILED, said or f"exit code {code}")
    by = f" by {signal.Signals(-code).name}" if code else ""
    return trained(
        table.FAILED, f"its process was ended{by} {deaths} times without a new checkpoint, perhaps for want of memory"
    )
