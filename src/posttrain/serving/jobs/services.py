"""The parts of a server of jobs, put together over a folder."""

import time
from collections.abc import Callable
from pathlib import Path

from posttrain.serving.files import locked
from posttrain.serving.jobs.processes import CommandLines, Processes
from posttrain.serving.jobs.queue import Queue
from posttrain.serving.jobs.specification import Offered
from posttrain.serving.jobs.store import Store
from posttrain.serving.keys import Keys
from posttrain.serving.limits import JobLimits


class JobServices:
    """A server's parts over a folder, which belongs to one process at a time.

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

    def __init__(
        self,
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
    ) -> None:
        self.keys, self.limits, self.offered, root = keys, limits or JobLimits(), offered, root.absolute()
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.lock = locked(root, "root")
        self.store = Store(root / "jobs", self.limits, time.time)
        processes = Processes(cache, hours * 3600, grace, lines)
        self.queue = Queue(self.store, processes, offered, at_once, hours, report)

    def start(self) -> None:
        """Begin to run jobs."""
        self.queue.start()

    def close(self) -> None:
        """Start no more jobs; those that run go on."""
        self.queue.close()
        self.lock.release()
