"""Jobs on disk: a folder each, which appears and disappears whole, and whose record is replaced atomically."""

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from threading import Lock
from typing import Any

from starlette.exceptions import HTTPException

from posttrain.errors import UserError
from posttrain.serving.files import read_json, sync, write_json
from posttrain.serving.jobs.record import CANCELLED, ID, JOB, OPEN, QUEUED, RUNNING, Job
from posttrain.serving.limits import JobLimits

_NEW, _OLD = ".new-", ".old-"  # folders that are being filled or emptied


class NoSuchJob(HTTPException):
    """There is no such job, or it is another's: nobody is told which."""

    def __init__(self, job_id: str) -> None:
        super().__init__(404, f"there is no job '{job_id[:80]}'")


class Store:
    """The jobs in a folder. All methods may be called from any thread."""

    def __init__(self, folder: Path, limits: JobLimits, now: Callable[[], float]) -> None:
        """Read the jobs that are there."""
        self._folder, self._limits, self._now, self._lock = folder, limits, now, Lock()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in folder.iterdir():
            if path.name.startswith((_NEW, _OLD)):
                shutil.rmtree(path, ignore_errors=True)
        found = [read_json(path / JOB) for path in folder.iterdir() if ID.fullmatch(path.name)]
        self._jobs = {job.id: job for job in sorted((Job.of(one) for one in found if one), key=lambda job: job.number)}

    def folder(self, job: Job) -> Path:
        """The folder of a job."""
        return self._folder / job.id

    def all(self) -> list[Job]:
        """All jobs, in the order in which they were submitted."""
        with self._lock:
            return list(self._jobs.values())

    def of(self, owner: str) -> list[Job]:
        """The jobs of an owner, in order."""
        return [job for job in self.all() if job.owner == owner]

    def get(self, owner: str, job_id: str) -> Job:
        """A job of the owner's; raises `NoSuchJob`."""
        with self._lock:
            job = self._jobs.get(job_id)
        if job is None or job.owner != owner:
            raise NoSuchJob(job_id)
        return job

    def create(self, owner: str, fill: Callable[[Path], None], **about: Any) -> Job:
        """Submit a job.

        Args:
            owner: whose it is.
            fill: writes its files into its folder.
            about: fields of `Job`.

        Raises:
            HTTPException: 429, the owner has as many jobs or bytes as a key may have.
            UserError: as `fill`.
        """
        job_id = uuid.uuid4().hex
        new = self._folder / f"{_NEW}{job_id}"
        try:
            new.mkdir(mode=0o700)
            self._check(owner)
            fill(new)
            with self._lock:
                self._check_counts(owner)
                number = max((job.number for job in self._jobs.values()), default=0) + 1
                job = Job(job_id, number, owner, created=self._now(), **about)
                write_json(new / JOB, asdict(job))
                new.rename(self._folder / job_id)
                sync(self._folder)
                self._jobs[job_id] = job
        finally:
            shutil.rmtree(new, ignore_errors=True)
        return job

    def change(self, job: Job, **changes: Any) -> Job:
        """Change a job's record; what is not named stays as it is now."""
        with self._lock:
            return self._changed(self._jobs[job.id], changes)

    def cancel_queued(self, job: Job) -> bool:
        """End a job that waits; False if it does not wait any more."""
        return self._if_in(job, (QUEUED,), state=CANCELLED, cancelled=True, ended=self._now())

    def begin(self, job: Job) -> bool:
        """Count a start of a job; False if it has ended by now."""
        started = job.started or self._now()
        return self._if_in(job, OPEN, state=RUNNING, started=started, attempts=job.attempts + 1)

    def take_back(self, job: Job) -> None:
        """Undo `begin`: the record is as it was, on the disk if that has room."""
        with self._lock:
            self._jobs[job.id] = job
            with contextlib.suppress(OSError):
                write_json(self.folder(job) / JOB, asdict(job))

    def _if_in(self, job: Job, states: tuple[str, ...], **changes: Any) -> bool:
        with self._lock:
            now = self._jobs.get(job.id)
            if now is None or now.state not in states:
                return False
            self._changed(now, changes)
            return True

    def _changed(self, job: Job, changes: dict[str, Any]) -> Job:
        changed = replace(job, **changes)
        write_json(self.folder(job) / JOB, asdict(changed))
        self._jobs[job.id] = changed
        return changed

    def delete(self, job: Job) -> None:
        """Remove a job that has ended, with all its files; raises `UserError` for another one."""
        with self._lock:
            if self._jobs[job.id].state in OPEN:
                raise UserError(f"job {job.id} has not ended; cancel it first")
            old = self._folder / f"{_OLD}{job.id}"
            self.folder(job).rename(old)
            del self._jobs[job.id]
        shutil.rmtree(old, ignore_errors=True)

    def _check(self, owner: str) -> None:
        with self._lock:
            self._check_counts(owner)
        used = sum(_bytes_in(self.folder(job)) for job in self.of(owner))
        if used >= self._limits.bytes_per_key:
            raise HTTPException(429, f"your jobs take {used} of {self._limits.bytes_per_key} bytes; delete some")

    def _check_counts(self, owner: str) -> None:
        jobs = [job for job in self._jobs.values() if job.owner == owner]
        if sum(job.state in OPEN for job in jobs) >= self._limits.queued_per_key:
            raise HTTPException(429, f"a key may have {self._limits.queued_per_key} jobs that wait or run")
        if len(jobs) >= self._limits.kept_per_key:
            raise HTTPException(429, f"a key may have {self._limits.kept_per_key} jobs; delete some that have ended")


def _bytes_in(folder: Path) -> int:
    """Bytes of the files below a folder; links are not followed."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(at, name)).st_size
            except FileNotFoundError:  # a checkpoint that was replaced meanwhile
                continue
    return total
