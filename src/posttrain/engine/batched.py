"""Adapter: single requests on a batch engine."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Protocol

from posttrain.types import Completion, Request

_Asked = tuple[Request, "Future[Completion]"]


class Generates(Protocol):
    """What an engine needs to have for batches: any `types.Engine` has it."""

    def generate(self, requests: Sequence[Request], on_tokens: Callable[[int], None] | None = None) -> list[Completion]:
        """One completion per request, in order."""
        ...


class _Abandoned(Exception):
    """Nobody waits for the batch any more."""


class BatchedEngine:
    """Batches the requests that are submitted together, on any event loop, in one `generate`.

    It runs in a daemon thread. Requests submitted meanwhile form the next batch. If all requests of a
    batch are cancelled, sampling ends at the next token, if the engine calls `on_tokens`.
    """

    def __init__(self, engine: Generates) -> None:
        self._engine, self._lock = engine, threading.Lock()
        self._waiting: list[_Asked] = []
        self._working = False

    async def submit(self, request: Request) -> Completion:
        """The completion of one request; raises what the engine raises."""
        future: Future[Completion] = Future()
        with self._lock:
            self._waiting.append((request, future))
            first, self._working = not self._working, True
        if first:  # whatever is ready to run on this loop submits before the thread starts
            asyncio.get_running_loop().call_soon(threading.Thread(target=self._work, daemon=True).start)
        return await asyncio.wrap_future(future)

    def _work(self) -> None:
        while True:
            with self._lock:
                asked = [(request, future) for request, future in self._waiting if not future.cancelled()]
                self._waiting, self._working = [], bool(asked)
            if not asked:
                return
            self._answer(asked)

    def _answer(self, asked: Sequence[_Asked]) -> None:
        def look(_: int) -> None:
            if all(future.done() for _, future in asked):  # cancelled, or told an error of another part of the batch
                raise _Abandoned

        try:
            found = self._engine.generate([request for request, _ in asked], look)
        except BaseException as error:
            for _, future in asked:
                _settle(future, error if isinstance(error, Exception) else RuntimeError(repr(error)))
            return
        for (_, future), completion in zip(asked, found, strict=True):
            _settle(future, completion)


def _settle(future: "Future[Completion]", outcome: Completion | Exception) -> None:
    """Answer one who waits, unless they have left."""
    try:
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
    except InvalidStateError:
        pass
