"""Results that are not there yet, and long polling for them."""

import asyncio
from collections import OrderedDict
from concurrent.futures import Future
from threading import Lock

from posttrain.server.journal import Entry

KEPT = 8192  # results in memory, the most recent


class Futures:
    """Results by the id of their request. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._futures: OrderedDict[str, Future[Entry]] = OrderedDict()

    def open(self, request_id: str) -> bool:
        """Await a result; False if it is awaited, or there, already."""
        with self._lock:
            if request_id in self._futures:
                return False
            self._futures[request_id] = future = Future()
            future.set_running_or_notify_cancel()  # nobody who waits can cancel it
            done = [name for name, each in self._futures.items() if each.done()] if len(self._futures) > KEPT else []
            for name in done[: len(self._futures) - KEPT]:
                del self._futures[name]
            return True

    def finish(self, request_id: str, result: Entry) -> None:
        """Give a result to those who wait."""
        self.open(request_id)
        with self._lock:
            future = self._futures[request_id]
        if not future.done():
            future.set_result(result)

    def known(self, request_id: str) -> bool:
        """Whether a result is awaited or there."""
        return request_id in self._futures

    async def retrieve(self, request_id: str, seconds: float) -> Entry | None:
        """A result, at once or as soon as it is there; None if it is not there within `seconds`.

        Raises:
            LookupError: nobody awaits it.
        """
        with self._lock:
            future = self._futures.get(request_id)
        if future is None:
            raise LookupError(request_id)
        waiting = asyncio.wrap_future(future)
        await asyncio.wait({waiting}, timeout=seconds)
        return waiting.result() if waiting.done() else None
