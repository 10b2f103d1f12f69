"""Which job runs next, and what became of those that ran.

Of the owners with waiting jobs the one with the fewest running jobs is next, among those the one whose last start is
longest ago; of an owner's jobs the first that came. So an owner with a thousand jobs delays another one by the jobs
that run already, and no more.
"""

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from posttrain.errors import described
from posttrain.serving.jobs.processes import GONE, ORPHANED, Processes
from posttrain.serving.jobs.reading import last_words, read_object
from posttrain.serving.jobs.record import CANCELLED, EXIT, FAILED, LOG, QUEUED, RUNNING, SUCCEEDED, Job
from posttrain.serving.jobs.specification import Offered
from posttrain.serving.jobs.store import Store
from posttrain.serving.jobs.supervisor import CANCELLED as BY_CLIENT
from posttrain.serving.jobs.supervisor import LOG_SIZE, TIME

TICK_SECONDS, PAUSE_SECONDS = 0.25, 10.0  # between looks at the jobs; after one that failed
GIVE_UP_SECONDS = 600.0  # for which a process that cannot be started is tried again
MOST_ATTEMPTS = 5  # starts of a job whose processes end without saying how, such as for want of memory


def next_job(waiting: Sequence[Job], running: Sequence[Job], last_start: Mapping[str, float]) -> Job | None:
    """The job that runs next; None if none waits.

    Args:
        waiting: jobs in the order in which they were submitted.
        running: those that run.
        last_start: when a job of an owner was last started.
    """

    def rank(job: Job) -> tuple[int, float, int]:
        active = sum(one.owner == job.owner for one in running)
        return active, last_start.get(job.owner, 0.0), job.number

    return min(waiting, key=rank, default=None)


def ended_as(code: int, why: str, said: str, hours: float, exported: bool) -> tuple[str, str]:
    """The state that a job ends in, and why it failed.

    Args:
        code: the exit code of training; a signal as a negative number.
        why: why the supervisor ended it; "" if it did not.
        said: the last words of its log.
        hours: that a job may train.
        exported: whether there is a result.
    """
    if code == 0:
        return (SUCCEEDED, "") if exported else (FAILED, said or "its model could not be exported")
    if why == BY_CLIENT:
        return CANCELLED, ""
    if why == TIME:
        return FAILED, f"it trained for {hours:g} hours, which is the limit"
    if why == LOG_SIZE:
        return FAILED, "its log grew too large"
    if code < 0:
        names = {number.value: number.name for number in signal.Signals}
        return FAILED, f"its process was ended by {names.get(-code, f'signal {-code}')}"
    return FAILED, said or f"exit code {code}"


@dataclass
class Queue:
    """Starts jobs, and notes how they ended, in a thread of its own.

    Args:
        at_once: jobs that run at the same time.
        hours: that a job may train.
        report: gets a line for each job that starts or ends, and for each failure that is not a client's.
    """

    store: Store
    processes: Processes
    offered: Offered
    at_once: int
    hours: float
    report: Callable[[str], None]
    _last_start: dict[str, float] = field(default_factory=dict)
    _failing: dict[str, float] = field(default_factory=dict)  # since when the processes of a job cannot be started
    _later: dict[str, float] = field(default_factory=dict)  # before which they are not tried again
    _wake: threading.Condition = field(default_factory=threading.Condition)
    _closing: bool = False
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        for job in self.store.all():
            self._last_start[job.owner] = max(self._last_start.get(job.owner, 0.0), job.started)

    def start(self) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._run, name="job queue", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Start no more jobs. Those that run go on, and the next server finds them."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> None:
        """Look at the jobs now."""
        with self._wake:
            self._wake.notify()

    def cancel(self, job: Job) -> None:
        """End a job; one that runs saves a checkpoint first."""
        if not self.store.cancel_queued(job):
            self.processes.cancel(self.store.folder(job))
            self.store.change(job, cancelled=True)
        self.look()

    def running(self) -> list[Job]:
        """The jobs that run."""
        return [job for job in self.store.all() if job.state == RUNNING]

    def _run(self) -> None:
        while True:
            with self._wake:
                if self._closing:
                    return
            try:
                self.tick()
                pause = TICK_SECONDS
            except Exception as error:  # such as a full disk, which may have room again later
                self.report(f"jobs cannot go on now: {described(error)}")
                pause = PAUSE_SECONDS
            with self._wake:
                if not self._closing:
                    self._wake.wait(pause)

    def tick(self) -> None:
        """Settle what has ended, and start what may."""
        for job in self.running():
            found = self.processes.look(self.store.folder(job))
            if found == ORPHANED:
                self.processes.kill_orphan(self.store.folder(job))
            elif found == GONE and self._may_start(job):
                self._settle(job)
        while len(running := self.running()) < self.at_once:
            waiting = [job for job in self.store.all() if job.state == QUEUED and self._may_start(job)]
            if (job := next_job(waiting, running, self._last_start)) is None:
                return
            self._last_start[job.owner] = time.time()
            self._start(job)

    def _may_start(self, job: Job) -> bool:
        return self._later.get(job.id, 0.0) <= time.time()

    def _settle(self, job: Job) -> None:
        """Note how a job ended whose processes are gone; start it again if it did not say."""
        folder = self.store.folder(job)
        found = read_object(folder, EXIT)
        if not found:
            if job.attempts < MOST_ATTEMPTS:
                self._start(job)
                return
            state, why = FAILED, f"its processes were ended {job.attempts} times, perhaps for want of memory"
        else:
            said = str(found.get("said") or last_words(folder, LOG))
            state, why = ended_as(
                int(found.get("code", 1)), str(found.get("why", "")), said, self.hours, bool(found.get("exported"))
            )
        self.store.change(job, state=state, why=why, ended=time.time())
        took = f" after {_minutes(time.time() - job.started)}" if job.started else ""
        self.report(f"job {job.id[:8]} of {job.owner}: {state}{took}{': ' * bool(why)}{why}")

    def _start(self, job: Job) -> None:
        if not self.store.begin(job):
            return
        about = {"title": f"{job.model}-{job.command}", "hidden": self.offered.hidden}
        try:
            started = self.processes.start(self.store.folder(job), job.command, **about)
        except Exception as error:  # such as a full disk, which may have room again later
            self._not_started(job, error)
            return
        self._failing.pop(job.id, None)
        if started:
            again = ", again" if job.attempts else ""
            self.report(f"job {job.id[:8]} of {job.owner}: {job.command} of {job.model} started{again}")

    def _not_started(self, job: Job, error: Exception) -> None:
        """A process could not be started: it is tried again for a while, and counts as no attempt."""
        first = self._failing.setdefault(job.id, time.time())
        self._later[job.id] = time.time() + PAUSE_SECONDS
        if time.time() - first < GIVE_UP_SECONDS:
            self.store.take_back(job)
            self.report(f"job {job.id[:8]} of {job.owner}: could not be started: {described(error)}")
            return
        why = f"its process could not be started: {described(error)}"
        self.store.change(job, state=FAILED, why=why, ended=time.time())


def _minutes(seconds: float) -> str:
    """Seconds as a clock shows them."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
