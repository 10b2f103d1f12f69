"""The thread that computes: training requests one by one, and between them the steps of sampling.

A training request runs to its end. Sampling then gets as much time as that took, if there is any to do. Adapters that
sample are copies, so their weights do not change during a decoding.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

from posttrain.errors import described, place_of
from posttrain.serving.decoder import Decoder

PAUSE_SECONDS = 0.1  # after an error, so that one that comes again and again leaves time to others


class Worker:
    """Runs tasks in the order in which they come. An error is reported, and the next task runs."""

    def __init__(self, sampling: Decoder, report: Callable[[str], None]) -> None:
        self._sampling, self._report = sampling, report
        self._tasks: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="server worker", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task after those that came before."""
        with self._wake:
            self._tasks.append(task)
            self._wake.notify()

    def wake(self) -> None:
        """Sampling has something to do."""
        with self._wake:
            self._wake.notify()

    def close(self) -> None:
        """End after the task that runs now; the others are on disk, if they matter."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._tasks or self._sampling.busy or self._closing):
                    self._wake.wait()
                if self._closing:
                    return
                task = self._tasks.popleft() if self._tasks else None
            began = time.monotonic()
            if task is not None:
                self._do(task)
            taken = time.monotonic() - began
            until = time.monotonic() + taken
            while self._sampling.busy and not self._closing:
                self._do(self._sampling.step)
                if time.monotonic() >= until:
                    break

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # the thread goes on, for every client waits for it
            self._report(f"an error of the server itself: {described(error)}{place_of(error)}")
            time.sleep(PAUSE_SECONDS)
