"""Jobs: a row each in a SQLite table, which is all that is known of them, and a folder each for their files.

ROOT/jobs/             mode 0700
  jobs.sqlite          the table, in WAL mode; whoever writes it does so in one transaction
  ID/
    job.toml           the options of the command
    data/              rows that were sent
    reward.py          Python source that was sent, by a trusted key
    log.txt            what the commands printed
    run/               the run directory
    export/            the result

A job is there once its row is. A folder without one is what a process that was killed has left, and is removed.
"""

import json
import os
import re
import shutil
import sqlite3
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException

from posttrain.durable import sync
from posttrain.errors import UserError, described
from posttrain.serving.access import JobLimits
from posttrain.serving.files import read_json

QUEUED, RUNNING = "queued", "running"
SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"
DELETED = "deleted"  # of each owner the last one is kept, which says when they were last served
OPEN = (QUEUED, RUNNING)
TRAIN, EXPORT = "train", "export"  # stages of a job that runs

TABLE, TOML, REWARD, LOG, RUN, RESULT = "jobs.sqlite", "job.toml", "reward.py", "log.txt", "run", "export"
EARLIER = "job.json"  # in folders of versions before there was a table: what was known of the job

ID = re.compile(r"[0-9a-f]{32}")
PATIENCE = 30.0  # seconds that one transaction waits for another


@dataclass(frozen=True)
class Job:
    """A job. Times are seconds since 1970, 0 for not yet."""

    id: str  # 32 hexadecimal digits, random
    owner: str  # the name of the key that submitted it
    command: str  # which trains, such as `rl`
    model: str  # the name of the base model
    created: float
    number: int | None = None  # grows with each job of the server
    steps: int = 0  # how many there shall be; 0 if the data decides
    state: str = QUEUED
    cancelled: bool = False  # whether its client has asked for its end
    started: float = 0.0  # for the first time
    ended: float = 0.0
    attempts: int = 0  # how often its training was started
    stage: str = TRAIN  # what is done now
    outcome: str = ""  # the state that it ends in after its export
    why: str = ""  # it failed
    saved: int = -1  # the step of its last checkpoint when its process was last started; -1 for none
    deaths: int = 0  # how often its process has ended since, by itself and without a new checkpoint
    pid: int = 0  # of its process; 0 for none
    born: str = ""  # what tells that process from others of its number
    began: float = 0.0  # when that process did
    reason: str = ""  # why the process is to end
    told: float = 0.0  # since when it knows that

    def shown(self) -> dict[str, Any]:
        """What its client sees of it."""
        ended = self.state not in OPEN
        return {
            "id": self.id,
            "command": self.command,
            "model": self.model,
            "state": self.state,
            "cancelling": bool(self.cancelled) and not ended,
            "created": _time(self.created),
            "started": _time(self.started),
            "ended": _time(self.ended),
            "attempts": self.attempts,
            "why": self.why if ended else "",
        }


def _time(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else None


COLUMNS = tuple(field.name for field in fields(Job))
SCHEMA = f"""
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id UNIQUE, {", ".join({*COLUMNS} - {"number", "id"})}
);
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state, owner);
"""
NEXT = f"""
SELECT {", ".join(COLUMNS)} FROM jobs
JOIN (SELECT owner, sum(state = '{RUNNING}') AS active, max(started) AS last FROM jobs GROUP BY owner) USING (owner)
WHERE state = '{QUEUED}' AND id NOT IN (SELECT value FROM json_each(?))
ORDER BY active, last, number LIMIT 1
"""


class Table:
    """The jobs in a folder. All methods may be called from any thread."""

    def __init__(self, root: Path, limits: JobLimits, report: Callable[[str], None] = lambda text: None) -> None:
        self.root, self._limits = root, limits
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(root / TABLE, os.O_CREAT | os.O_RDWR, 0o600))
        with closing(self._connection()) as db:
            db.executescript(SCHEMA)
        self._take_over(report)
        known = {job.id for job in self.all()}
        for path in root.iterdir():
            if ID.fullmatch(path.name) and path.name not in known and not (path / EARLIER).exists():
                shutil.rmtree(path, ignore_errors=True)

    def folder(self, job: Job) -> Path:
        """The folder of a job."""
        return self.root / job.id

    def all(self, where: str = "1", *values: Any) -> list[Job]:
        """All jobs of which a condition in SQL holds, in the order in which they were submitted."""
        return self._sql(f"SELECT * FROM jobs WHERE state != '{DELETED}' AND {where} ORDER BY number", *values)

    def get(self, owner: str, job_id: str) -> Job:
        """A job of the owner's; raises `HTTPException` 404, also for another's: nobody is told which."""
        if not (found := self.all("id = ? AND owner = ?", job_id, owner)):
            raise HTTPException(404, f"there is no job '{job_id[:80]}'")
        return found[0]

    def next(self, but: Collection[str] = ()) -> Job | None:
        """The job that runs next, not one with these ids; None if none waits.

        Of the owners with waiting jobs the one with the fewest running jobs is next, among those the one whose last
        start is longest ago; of an owner's jobs the first that came. So an owner with a thousand jobs delays another
        one by the jobs that run already, and no more.
        """
        return next(iter(self._sql(NEXT, json.dumps([*but]))), None)

    def create(self, owner: str, fill: Callable[[Path], dict[str, Any]]) -> Job:
        """Submit a job, if its owner may have one more; `fill` writes into its folder, and returns fields of `Job`."""
        with self._change() as db:
            self._check(db, owner)
        used = sum(_bytes_in(self.folder(job)) for job in self.all("owner = ?", owner))
        if used >= self._limits.bytes_per_key:
            raise HTTPException(429, f"your jobs take {used} of {self._limits.bytes_per_key} bytes; delete some")
        folder = self.root / uuid.uuid4().hex
        try:
            folder.mkdir(mode=0o700)
            job = Job(folder.name, owner, created=time.time(), **fill(folder))
            sync(folder)
            with self._change() as db:
                self._check(db, owner)
                return _insert(db, job)[0]
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def change(self, job: Job, *states: str, **changes: Any) -> Job | None:
        """Change columns of a job that is in one of these states, or in any; None if it is in another one."""
        among = f"AND state IN ({', '.join('?' * len(states))})" if states else ""
        sql = f"UPDATE jobs SET {', '.join(f'{name} = ?' for name in changes)} WHERE id = ? {among} RETURNING *"
        return next(iter(self._sql(sql, *changes.values(), job.id, *states)), None)

    def delete(self, job: Job) -> None:
        """Remove a job that has ended, with all its files; raises `UserError` for another one."""
        if not self.change(job, SUCCEEDED, FAILED, CANCELLED, state=DELETED):
            raise UserError(f"job {job.id} has not ended; cancel it first")
        mine = f"owner = ? AND state = '{DELETED}'"
        older = f"DELETE FROM jobs WHERE {mine} AND started < (SELECT max(started) FROM jobs WHERE {mine})"
        self._sql(older, job.owner, job.owner)
        shutil.rmtree(self.folder(job), ignore_errors=True)

    def _check(self, db: sqlite3.Connection, owner: str) -> None:
        """Raise `HTTPException` if an owner has as many jobs as may be."""
        counts = f"SELECT count(*), ifnull(sum(state IN {OPEN}), 0) FROM jobs WHERE owner = ? AND state != '{DELETED}'"
        kept, open_ = db.execute(counts, (owner,)).fetchone()
        if open_ >= self._limits.queued_per_key:
            raise HTTPException(429, f"a key may have {self._limits.queued_per_key} jobs that wait or run")
        if kept >= self._limits.kept_per_key:
            raise HTTPException(429, f"a key may have {self._limits.kept_per_key} jobs; delete some that have ended")

    def _take_over(self, report: Callable[[str], None]) -> None:
        """Read jobs of versions before there was a table, once. What ran is begun again from its last checkpoint."""
        found: list[tuple[int, Job]] = []
        for file in self.root.glob(f"*/{EARLIER}"):
            try:
                about = read_json(file)
                found.append((about.pop("number"), Job(**{name: about[name] for name in COLUMNS if name in about})))
            except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
                report(f"{file} cannot be read, and its job is left out: {described(error)}")
        for _, job in sorted(found, key=lambda each: each[0]):
            with self._change() as db:
                _insert(db, job, "OR IGNORE")
            (self.folder(job) / EARLIER).unlink()
        if found:
            report(f"{len(found)} jobs of an earlier version are in {self.root / TABLE} now")

    def _connection(self) -> sqlite3.Connection:
        return sqlite3.connect(self.root / TABLE, timeout=PATIENCE, isolation_level=None)

    def _sql(self, sql: str, *values: Any) -> list[Job]:
        """The jobs that one statement gives; what it changes is on the disk then."""
        with closing(self._connection()) as db:
            return _jobs(db.execute(sql, values))

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """A transaction, which is on the disk when it ends, or never was."""
        with closing(self._connection()) as db, db:
            db.execute("BEGIN IMMEDIATE")
            yield db


def _jobs(rows: sqlite3.Cursor) -> list[Job]:
    names = [column[0] for column in rows.description or ()]
    return [Job(**dict(zip(names, row, strict=True))) for row in rows.fetchall()]


def _insert(db: sqlite3.Connection, job: Job, how: str = "") -> list[Job]:
    sql = f"INSERT {how} INTO jobs ({', '.join(COLUMNS)}) VALUES (:{', :'.join(COLUMNS)}) RETURNING *"
    return _jobs(db.execute(sql, asdict(job)))


def _bytes_in(folder: Path) -> int:
    """Bytes of the files below a folder; links are not followed."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # a checkpoint that was replaced meanwhile
                total += os.lstat(os.path.join(at, name)).st_size
    return total
