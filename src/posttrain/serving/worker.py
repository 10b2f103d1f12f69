"""The thread that computes: training requests in slices, and between them the steps of sampling.

Clients take turns: after a slice of one's work the next one's comes, so that a small request waits at most for one
slice of each of the others. Requests of one client are done in order. After a slice, sampling gets as much time as that
took, if there is any to do. Adapters that sample are copies, so their weights do not change during a decoding.
"""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

from posttrain.errors import described, place_of
from posttrain.serving.base import Decoder

PAUSE_SECONDS = 0.1  # after an error, so that one that comes again and again leaves time to others
END = object()


class Worker:
    """Runs the tasks of each client in the order in which they come. An error is reported, and the next task runs."""

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
