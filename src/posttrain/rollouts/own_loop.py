"""An event loop in a daemon thread of its own, for what is asked from several loops and belongs to one."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class OwnLoop:
    """Started when it is needed first, and anew in a forked process, which has no threads."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process, self._lock = 0, threading.Lock()

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine there; a caller that is cancelled cancels it."""
        with self._lock:
            if self._loop is None or self._process != os.getpid():
                self._loop, self._process = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, daemon=True, name="chat models").start()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))
