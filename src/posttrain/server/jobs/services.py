"""The parts of a server of jobs, put together over a folder."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from posttrain.errors import UserError
from posttrain.server.jobs.limits import JobLimits
from posttrain.server.jobs.processes import CommandLines, Processes
from posttrain.server.jobs.queue import Queue
from posttrain.server.jobs.specification import Offered
from posttrain.server.jobs.store import Store
from posttrain.server.keys import Keys


@dataclass(frozen=True)
class JobServices:
    """The parts of a server."""

    keys: Keys
    limits: JobLimits
    offered: Offered
    store: Store
    queue: Queue
    lock: FileLock

    def start(self) -> None:
        """Begin to run jobs."""
        self.queue.start()

    def close(self) -> None:
        """Start no more jobs; those that run go on."""
        self.queue.close()
        self.lock.release()


def open_jobs(
    root: Path,
    keys: Keys,
    offered: Offered,
    *,
    lines: CommandLines,
    cache: Path,
    limits: JobLimits | None = None,
    at_once: int = 1,
    hours: float = 24.0,
    grace: float = 120.0,
    report: Callable[[str], None] = lambda text: None,
) -> JobServices:
    """The server's parts over a folder, which belongs to one process at a time.

    Args:
        root: the folder.
        keys: of clients.
        offered: what clients may use.
        lines: how posttrain is typed.
        cache: the folder of packaged models.
        limits: of what clients may ask.
        at_once: jobs that run at the same time.
        hours: that a job may train.
        grace: seconds that a job has to save a checkpoint when it is ended.
        report: gets a line for each job that starts or ends, and for each failure that is not a client's.

    Raises:
        UserError: another process has the folder.
    """
    limits, root = limits or JobLimits(), root.absolute()
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = FileLock(root / "lock", thread_local=False)  # it is released in another thread
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"another server uses '{root}'; end that one, or give another `root`") from None
    store = Store(root / "jobs", limits, time.time)
    queue = Queue(store, Processes(cache, hours * 3600, grace, lines), offered, at_once, hours, report)
    return JobServices(keys, limits, offered, store, queue, lock)
