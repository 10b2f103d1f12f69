"""Ctrl-C and SIGTERM as stop requests."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType


class Stopped(KeyboardInterrupt):
    """A requested stop, raised where `StopRequest.cancellable` allows it.

    A KeyboardInterrupt, because asyncio hands only that and SystemExit on from a callback; and no Exception, so that a
    reward that catches everything cannot swallow it.
    """


@dataclass
class StopRequest:
    """Whether the loop was asked to stop."""

    requested: bool = False  # ask it between steps; save and leave where it is true
    cause: str = ""  # "SIGINT" or "SIGTERM" once requested, for the line that the user is shown
    _cancellable: bool = False

    @contextlib.contextmanager
    def cancellable(self) -> Iterator[None]:
        """Work that a request ends at once by raising `Stopped`, also one that was made before: sampling and scoring.

        Not for what changes weights or writes files, which must not be cut in half.
        """
        if self.requested:
            raise Stopped(self.cause)
        self._cancellable = True
        try:
            yield
        finally:
            self._cancellable = False

    def request(self, cause: str) -> None:
        """Ask the loop to stop; in the main thread, as a signal handler."""
        self.requested, self.cause = True, cause
        if self._cancellable:
            raise Stopped(cause)


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Catch Ctrl-C and SIGTERM while the block runs.

    The first of either only sets `requested`, so that an update is never cut in half; within `cancellable` it raises
    `Stopped`. A Ctrl-C after that raises KeyboardInterrupt at once. The handlers that were there before come back when
    the block ends, however it ends. A signal that the process ignores stays ignored; a forked worker is ended by
    SIGTERM and left alone by Ctrl-C.

    Python delivers signals to the main thread alone: in any other thread this changes nothing, and the request that
    it yields is never made.

    Example:
        >>> with stop_requests() as stop:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     stop.requested, stop.cause
        (True, 'SIGTERM')
    """
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    owner = os.getpid()

    def ask(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked worker: it ends when told to, but on Ctrl-C it is the loop that decides
            if number == signal.SIGTERM:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            return
        if stop.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not stop.requested:
            stop.request(signal.Signals(number).name)

    handlers = ((number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM))
    # a job started in the background or with nohup ignores some signals, and still does
    before = {number: handler for number, handler in handlers if handler not in (signal.SIG_IGN, None)}
    try:
        for number in before:
            signal.signal(number, ask)
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
