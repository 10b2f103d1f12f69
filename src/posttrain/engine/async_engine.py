"""Async engine: single requests of many coroutines, sampled in batches.

Coroutines that await something else (a tool, an environment, a judge) do not delay sampling, and neither does a blocked
event loop. Two schedules:

- `lockstep`: nothing is sampled until every episode waits for the engine. Requests are then ordered by origin,
  not by when they came, and are answered together. The same seeds run the same forward passes in every run.
- `continuous`: a request joins at the next token and is answered when it is done. What is drawn is the same as far as
  rounding goes, for draws depend on the request alone; which sequences share a forward pass depends on the clock.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, TypeVar

from posttrain.background import forget, loop_of, without_exit
from posttrain.types import Completion, Decoding, Engine, Request

LOOP = "episodes"  # the event loop of everything that asks: what an environment opened stays usable in it
AWAKE_S = 0.2  # how late a signal can be
PATIENCE_S = 2.0  # for coroutines that were cancelled; one that does not end by then is left behind
SETTLED = 2  # rounds of the event loop without a new request, after which those that are there are answered

Schedule = Literal["lockstep", "continuous"]
T = TypeVar("T")


@dataclass(frozen=True)
class _Ask:
    """A request, whose it is, and where the answer goes."""

    place: tuple[int, ...]
    number: int
    request: Request
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Completion]"

    @property
    def order(self) -> tuple[tuple[int, ...], int, tuple[int, ...], int]:
        """The order of `lockstep`; requests of rewards have no place, and are ordered by content."""
        return self.place, self.request.seed, self.request.token_ids, self.number

    def answer(self, found: Completion | Exception) -> None:
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self.loop.call_soon_threadsafe(self._settle, found)

    def _settle(self, found: Completion | Exception) -> None:
        if self.future.done():
            return
        if isinstance(found, Exception):
            self.future.set_exception(found)
        else:
            self.future.set_result(found)


@dataclass
class AsyncEngine:
    """See the module.

    Attributes:
        engine: the inference engine.
        on_tokens: called with the number of newly sampled tokens.
        schedule: `lockstep` or `continuous`.
        turns: see `types.Engine.open`.
    """

    engine: Engine
    on_tokens: Callable[[int], None] | None = None
    schedule: Schedule = "lockstep"
    turns: bool = False
    _inbox: "queue.SimpleQueue[Callable[[], None]]" = field(default_factory=queue.SimpleQueue)
    _numbers: "count[int]" = field(default_factory=count)
    _waiting: list[_Ask] = field(default_factory=list[_Ask])
    _running: dict[int, _Ask] = field(default_factory=dict[int, _Ask])
    _done: dict[int, Completion] = field(default_factory=dict[int, Completion])
    _live: int = 0  # episodes that are under way
    _quiet: int = 0  # rounds of the event loops since the last request
    _asks: int = 0  # requests so far
    _settling: bool = False  # whether a round is under way

    async def submit(self, request: Request, place: tuple[int, ...] = ()) -> Completion:
        """The completion of a request; in a coroutine that `run` runs, or one that it waits for.

        Args:
            request: the request.
            place: origin of the request, such as (episode, seat, turn): the sort key of `lockstep`.

        Raises:
            UserError: the prompt is empty, or leaves no room in the model's context.
        """
        loop = asyncio.get_running_loop()
        ask = _Ask(place, next(self._numbers), request, loop, loop.create_future())
        self._inbox.put(lambda: self._asked(ask))
        try:
            return await ask.future
        except asyncio.CancelledError:
            self._inbox.put(lambda: self._cancelled(ask))
            raise

    def enter(self, episodes: int) -> None:
        """Register starting episodes: `lockstep` waits until each of them has submitted a request, or left."""
        self._inbox.put(lambda: self._count(episodes))

    def leave(self) -> None:
        """An episode has ended."""
        self._inbox.put(lambda: self._count(-1))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in a thread of its own, and answer its requests in this one until it is done.

        Raises:
            BaseException: what the coroutine raises, or what the engine raises, unchanged. A signal's exception ends
                both.
        """
        loop, ended = loop_of(LOOP), threading.Event()

        async def whole() -> T:
            try:
                return await without_exit(coroutine)
            finally:
                ended.set()

        result = asyncio.run_coroutine_threadsafe(whole(), loop)
        result.add_done_callback(lambda _: self._inbox.put(_nothing))
        try:
            with contextlib.ExitStack() as stack:
                decoding: Decoding | None = None
                while not result.done():
                    self._take(wait=not self._running)
                    if decoding is None and self._waiting:  # rewards that ask nothing open no engine
                        decoding = stack.enter_context(self.engine.open(self.on_tokens, turns=self.turns))
                    if decoding is not None:
                        self._sample(decoding, loop)
            return result.result()
        finally:
            if not result.done():
                self._give_up(result, ended)
            self._waiting, self._running, self._done, self._live = [], {}, {}, 0
            self._settling = False
            self._inbox = queue.SimpleQueue()

    def _give_up(self, result: "Future[Any]", ended: threading.Event) -> None:
        """Cancel the coroutine, and let it end; where its event loop is blocked, the next run gets a new one."""

        def answers() -> bool:
            return bool(wait([asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop_of(LOOP))], PATIENCE_S).done)

        begun = answers()
        result.cancel()
        if not begun or (not ended.wait(PATIENCE_S) and not answers()):
            forget(LOOP)

    def _take(self, *, wait: bool) -> None:
        """Read what came, and wait for something if there is nothing to sample."""
        wait = wait and not self._ready()
        with contextlib.suppress(queue.Empty):
            while True:
                self._inbox.get(block=wait, timeout=AWAKE_S)()
                wait = False

    def _sample(self, decoding: Decoding, loop: asyncio.AbstractEventLoop) -> None:
        """Start pending requests, sample one step, and deliver finished completions."""
        if not self._ready():
            if self._waiting and self._all_ask():
                self._settle(loop)
        else:
            for ask in sorted(self._waiting, key=lambda ask: ask.order):
                try:
                    decoding.add(ask.number, ask.request)
                    self._running[ask.number] = ask
                except Exception as error:
                    ask.answer(error)
            self._waiting = []
        for number in [number for number in self._running if self._running[number].future.cancelled()]:
            decoding.cancel(number)
            del self._running[number]
            self._done.pop(number, None)
        if self._running:
            self._done |= decoding.step()
        if self.schedule == "continuous" or len(self._done) == len(self._running):
            for number in sorted(self._done, key=lambda number: self._running[number].order):
                self._running.pop(number).answer(self._done[number])
            self._done = {}

    def _ready(self) -> bool:
        """Whether pending requests may start."""
        if not self._waiting:
            return False
        if self.schedule == "continuous":
            return True
        return self._all_ask() and self._quiet >= SETTLED

    def _all_ask(self) -> bool:
        """Whether every episode that is under way waits for the engine, maybe several of its seats at once."""
        return not self._running and len({ask.place[:1] or ask.number for ask in self._waiting}) >= self._live

    def _settle(self, loop: asyncio.AbstractEventLoop) -> None:
        """Find out whether more requests come: of other seats of an episode, or of a reward, which has its own loop.

        One round at a time: a round that began before the last request says nothing about what follows it.
        """
        if self._settling:
            return
        self._settling = True
        loops, inbox, asks = list(dict.fromkeys([loop, *(ask.loop for ask in self._waiting)])), self._inbox, self._asks

        def passed() -> None:
            self._settling = False
            self._quiet += self._asks == asks

        def visit(number: int) -> None:
            if number == len(loops):
                inbox.put(passed)
                return
            try:
                loops[number].call_soon_threadsafe(visit, number + 1)
            except RuntimeError:  # that one is closed: nothing more comes from it
                visit(number + 1)

        visit(0)

    def _asked(self, ask: _Ask) -> None:
        self._waiting.append(ask)
        self._quiet = 0
        self._asks += 1

    def _cancelled(self, ask: _Ask) -> None:
        self._waiting = [other for other in self._waiting if other is not ask]

    def _count(self, more: int) -> None:
        self._live += more


def _nothing() -> None:
    """Wakes the sampling thread."""
