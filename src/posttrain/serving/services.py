"""What the routes use, put together over a folder; and the thread that computes."""

import asyncio
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any
from weakref import WeakValueDictionary

from fastapi import Depends

from posttrain.errors import UserError, described, place_of
from posttrain.serving.access import Keys, Limits, Sessions
from posttrain.serving.base import Base, Decoder
from posttrain.serving.checkpoints import Samplers
from posttrain.serving.files import locked
from posttrain.serving.guard import Pending, services_of
from posttrain.serving.run import Futures
from posttrain.serving.runs import Runs

PAUSE_SECONDS = 0.1  # after an error, so that one that comes again and again leaves time to others
END = object()


class Worker:
    """The thread that computes: training requests in slices, and between them the steps of sampling.

    Clients take turns: after a slice of one's work the next one's comes, so that a small request waits at most for one
    slice of each of the others. Requests of one client are done in order; an error is reported, and the next runs.
    After a slice, sampling gets as much time as that took, if there is any to do. Adapters that sample are copies, so
    their weights do not change during a decoding.
    """

    def __init__(self, sampling: Decoder, report: Callable[[str], None]) -> None:
        self._sampling, self._report = sampling, report
        self._turns: OrderedDict[str, deque[Any]] = OrderedDict()
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="server worker", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def submit(self, task: Callable[[], Iterator[None] | None], client: str = "") -> None:
        """Run a task after those of the same client that came before; what it returns is done in slices."""
        with self._wake:
            self._turns.setdefault(client, deque()).append(task)
            self._wake.notify()

    def wake(self) -> None:
        """Sampling has something to do."""
        with self._wake:
            self._wake.notify()

    def close(self) -> None:
        """End after the slice that runs now; the others are on disk, if they matter."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._turns or self._sampling.busy or self._closing):
                    self._wake.wait()
                if self._closing:
                    return
                client = next(iter(self._turns), None)
            began = time.monotonic()
            if client is not None:
                self._slice(client, self._turns[client])
            until = 2 * time.monotonic() - began  # as long as that took
            while self._sampling.busy and not self._closing:
                self._do(self._sampling.step)
                if time.monotonic() >= until:
                    break

    def _slice(self, client: str, tasks: deque[Any]) -> None:
        """A slice of a client's first task; the client is the last one then."""

        def work() -> Any:
            task: Any = tasks[0]
            if not isinstance(task, Iterator):
                task = tasks[0] = task() or iter(())
            return next(task, END)

        ended = self._do(work) is END
        with self._wake:
            if ended:
                tasks.popleft()
            self._turns.move_to_end(client)
            if not tasks:
                del self._turns[client]

    def _do(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as error:  # the thread goes on, for every client waits for it
            self._report(f"an error of the server itself: {described(error)}{place_of(error)}")
            time.sleep(PAUSE_SECONDS)
            return END


class Services:
    """A server's parts over a folder, which one process has at a time, or `UserError`; `report` gets its failures."""

    def __init__(
        self,
        store: Path,
        base: Base,
        *,
        keys: Keys | None = None,
        limits: Limits | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.base, self.report, self.models = base, report, store / "models"
        self.limits, self.keys = limits or Limits(), keys or Keys.of(store)
        self.lock = locked(store, "store")
        self.samplers = Samplers(store / "samplers", self.models, self.limits.samplers_per_key)
        slots, cache_gb = self.limits.max_sequences, self.limits.cache_gb
        self.decoder = Decoder(base, self.samplers.load, max_sequences=slots, cache_gb=cache_gb)
        self.worker, self.futures = Worker(self.decoder, report), Futures()
        self.sessions = Sessions(store / "sessions", self.limits.sessions_per_key)
        self.pending = Pending(self.limits.pending_per_key)
        self.reading = WeakValueDictionary[str, asyncio.Lock]()  # of each client whose body is read now
        self.runs = Runs(self)

    def start(self) -> None:
        """Begin to compute."""
        self.worker.start()

    def close(self) -> None:
        """End after what is computed now."""
        self.worker.close()
        self.lock.release()

    def check_base(self, name: str) -> None:
        """Raise `UserError` for a base model that is another one."""
        if name != self.base.name:
            raise UserError(f"this server has the model '{self.base.name}'; got '{name[:80]}'")


Served = Annotated[Services, Depends(services_of)]
"""The parts of the server: an argument of routes."""
