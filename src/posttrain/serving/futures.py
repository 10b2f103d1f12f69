"""Results that are not there yet, and long polling for them."""

import asyncio
from collections import OrderedDict
from concurrent.futures import Future
from threading import Lock

from posttrain.serving.run import Entry

KEPT_BYTES = 256 * 2**20  # of results in memory, the most recent; those of models are on the disk as well
OVERHEAD = 512  # bytes that each counts besides


class NotKept(Exception):
    """A result that is neither awaited nor kept."""


class Futures:
    """Results by the id of their request. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._awaited: dict[str, Future[Entry]] = {}
        self._done: OrderedDict[str, Future[Entry]] = OrderedDict()  # the oldest first
        self._bytes = 0

    def open(self, request_id: str) -> bool:
        """Await a result; False if it is awaited, or there, already."""
        with self._lock:
            if self.known(request_id):
                return False
            self._awaited[request_id] = future = Future()
            future.set_running_or_notify_cancel()  # nobody who waits can cancel it
            return True

    def finish(self, request_id: str, result: Entry) -> None:
        """Give a result to those who wait, and forget the oldest beyond what is kept; the first of a request stays."""
        self.open(request_id)
        with self._lock:
            if (future := self._awaited.pop(request_id, None)) is None:
                return
            future.set_result(result)
            self._done[request_id] = future
            self._bytes += len(result.body) + OVERHEAD
            while self._bytes > KEPT_BYTES and len(self._done) > 1:
                _, oldest = self._done.popitem(last=False)
                self._bytes -= len(oldest.result().body) + OVERHEAD

    def known(self, request_id: str) -> bool:
        """Whether a result is awaited or there."""
        return request_id in self._awaited or request_id in self._done

    async def retrieve(self, request_id: str, seconds: float) -> Entry | None:
        """A result, at once or as soon as it is there; None if it is not there within `seconds`.

        Raises:
            NotKept: nobody awaits it.
        """
        with self._lock:
            future = self._awaited.get(request_id) or self._done.get(request_id)
        if future is None:
            raise NotKept(request_id)
        waiting = asyncio.wrap_future(future)
        await asyncio.wait({waiting}, timeout=seconds)
        return waiting.result() if waiting.done() else None
