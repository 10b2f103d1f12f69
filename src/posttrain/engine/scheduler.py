"""The scheduler: requests of any thread or coroutine in, completions out, over one `Decoding` of an engine.

    scheduler = Scheduler(engine)
    client = Client(scheduler, "lockstep")
    groups = scheduler.run(client, episodes())         # coroutines that await client.submit(request)

One thread drives it: the one that calls `run`, one of the scheduler's own (`own_thread`), or one that calls `step`.
All others put messages into its inbox, so that no state has a lock. How a client is served are plain values of it:

- `lockstep`: nothing is sampled until every episode waits. Requests are then ordered by origin, not by when they came,
  and are answered together. The same seeds run the same forward passes in every run.
- `continuous`: a request joins at the next token and is answered when it is done. What is drawn is the same as far as
  rounding goes, for draws depend on the request alone; which sequences share a forward pass depends on the clock.
- `least`, ahead: no weights older than those of this step. A client begins when nothing is under way, or what is has
  such weights; with `in_flight` newer weights are put in between two tokens, and sequences go on with the keys and
  values of the old ones. Nobody passes by who waits for newer weights.
- `key`: with `slots` it is fair between keys. They take turns in getting slots, one request each, so that none has
  fewer than its share of them while it waits. A key that has more gives back those that began last, to be sampled
  again later: a small request waits for one step of the others, whatever they queued.
"""

import asyncio
import atexit
import contextlib
import contextvars
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from itertools import chain, count
from typing import Any, TypeVar

from posttrain.background import crossing, forget, loop_of, without_exit
from posttrain.engine.client import LOOP, Ask, Client
from posttrain.errors import EngineError
from posttrain.types import Decoding, Engine

AWAKE_S = 0.2  # how late a signal can be
PATIENCE_S = 2.0  # for coroutines that were cancelled; one that does not end by then is left behind
END_S = 10.0  # for a step that is under way when the program ends
SLICE_S = 0.5  # that beginning requests may take between two steps, where others may come meanwhile

T = TypeVar("T")


def step_of(version: str) -> int:
    """The step that begins with these weights; their version is `NAME.STEP`. Weights of no version are the oldest."""
    return int(version.rpartition(".")[2] or -1)


class Closed(EngineError):
    """Sampling that was ended."""


class _Abandoned(Exception):
    """Nobody waits for what is under way any more."""


def _give_up(result: "Future[Any]", ended: threading.Event) -> None:
    """Cancel a coroutine, and let it end; where its event loop is blocked, the next run gets a new one."""

    def answers() -> bool:
        return bool(wait([asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop_of(LOOP))], PATIENCE_S).done)

    begun = answers()
    result.cancel()
    if not begun or (not ended.wait(PATIENCE_S) and not answers()):
        forget(LOOP)


_driving: dict[threading.Thread, "Scheduler"] = {}  # threads of their own that are there


@atexit.register
def _end_driving() -> None:
    """End these threads with the program: the process aborts if one is inside of torch when the interpreter goes."""
    threads, until = [*_driving], time.monotonic() + END_S
    for scheduler in [*_driving.values()]:
        scheduler.closed = True  # it looks every `AWAKE_S`
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


class Scheduler:
    """See the module."""

    def __init__(
        self,
        engine: Engine,  # samples; one decoding of it is open at a time, and only while there are clients
        *,
        # whether a thread of its own drives it, while there is something to do; otherwise `run` or `step` does, and the
        # engine is free when they return
        own_thread: bool = False,
        # whether newer weights are put in while sequences are under way; the engine has `renew` then
        in_flight: bool = False,
        # sequences that are under way at once, given fairly; None: all requests are, as soon as they come
        slots: int | None = None,
        sources: int | None = None,  # that are under way at once; None: any number
    ) -> None:
        self.own_thread, self.closed = own_thread, False
        self._engine, self._in_flight, self._slots, self._sources = engine, in_flight, slots, sources
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock, self._driven = threading.Lock(), False  # whether its own thread is there
        self.number = partial(next, count())
        self._left = False  # whether a request was cancelled
        self.clients: list[Client] = []  # those that have asked
        self._begun: list[Client] = []  # of them those for whom the decoding is open
        self._lines: dict[str, deque[Ask]] = {}  # requests that may start, by key
        self._inside: dict[int, Ask] = {}  # those under way, by their number in the decoding
        self._apart: deque[deque[Ask]] = deque()  # of a batch that failed: one after another, to see whose fault it is
        self._so_far: Mapping[int, Sequence[int]] = {}  # their tokens, where the decoding tells them
        self._places = slots or 0  # for which there is memory, as far as is known
        self._decoding: Decoding | None = None
        self._opened = contextlib.ExitStack()

    @property
    def newest(self) -> int:
        """The step of the newest weights; -1 where they have no version."""
        return step_of(getattr(self._engine, "newest", ""))

    @property
    def busy(self) -> bool:
        """Whether a request waits or is under way."""
        waiting = any(client.waiting for client in self.clients)
        return bool(waiting or self._lines or self._apart or self._inside or not self._inbox.empty())

    @property
    def sources(self) -> Counter[str]:
        """The sources of what is under way."""
        return Counter(ask.source for ask in self._inside.values())

    def run(self, client: Client, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread of all episodes, and answer a client's requests until it is done.

        Weights must not change meanwhile, unless the engine has a copy of them. Raises what the coroutine or the engine
        raises, unchanged, and `Closed`. A signal's exception ends both.
        """
        loop, ended = loop_of(LOOP), threading.Event()

        async def whole() -> T:
            try:
                return await without_exit(coroutine)
            finally:
                ended.set()

        client.runs, client.failed = True, None
        result = asyncio.run_coroutine_threadsafe(whole(), loop)
        result.add_done_callback(lambda _: self.tell(lambda: None))  # wakes who drives
        try:
            while not (result.done() or client.failed or self.closed):
                if self.own_thread:
                    wait([result], AWAKE_S)
                else:
                    self.step(wait=True)
            if not result.done():
                raise client.failed or Closed("sampling was ended")
            return result.result()
        finally:
            if not result.done():
                _give_up(result, ended)
            self._ended(client)

    def tell(self, message: Callable[[], None], loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Have the driving thread call this soon; from any thread, `loop` being its event loop if it has one."""
        with self._lock:
            self._inbox.put(message)
            start = self.own_thread and not self._driven
            self._driven |= start
        if start:
            run = contextvars.copy_context().run
            thread = threading.Thread(target=run, args=(self._work,), daemon=True, name="sampling")
            if loop is None:
                thread.start()
            else:  # whatever is ready to run on this loop asks before the thread starts
                loop.call_soon(thread.start)

    def close(self) -> None:
        """End all that is under way, with an error for those who wait."""
        self.closed = True
        self.tell(lambda: None)

    def step(self, *, wait: bool = False) -> None:
        """Begin what may, and sample one step; errors go to who asked. With `wait` it waits a moment for a request."""
        wait = wait and not (self._inside or self._lines or self._apart)
        with contextlib.suppress(queue.Empty):
            while True:
                self._inbox.get(block=wait, timeout=AWAKE_S)()
                wait = False
        if self.closed:
            self._end(Closed("sampling was ended"))
        for client in [each for each in self.clients if each.ready() and self._begins(each)]:
            self._lines.setdefault(client.key, deque()).extend(client.ordered())
        try:
            decoding = self._give_slots()
            if decoding and self._inside:
                if self._in_flight and (engine := self._engine).sampled_from != engine.newest:  # pyright: ignore
                    engine.renew()  # pyright: ignore
                with contextlib.suppress(_Abandoned):
                    done = decoding.step()
                    for number in sorted(done, key=lambda number: self._inside[number].order):
                        ask = self._inside.pop(number)
                        ask.client.finished(ask, done[number])
                if self._slots or any(ask.on_new for ask in self._inside.values()):  # who has a slot, and new tokens
                    self._so_far = getattr(decoding, "sampled", dict)()
                    for number, ask in self._inside.items():
                        ask.tell(self._so_far.get(number, ()))
                    if self._slots and self._so_far:
                        self._count_places(self._slots)
        except Exception as error:
            self._failed(error)
        for client in [each for each in self.clients if not (each.runs or each.waiting or each.unanswered)]:
            self._drop(client)

    def left(self) -> None:
        """Somebody waits no longer for an answer."""
        self._left = True

    def _ended(self, client: Client) -> None:
        client.runs = False
        if self.own_thread:
            self.tell(partial(self._drop, client))
        else:
            self._drop(client)
            self._inbox = queue.SimpleQueue()  # what still comes from a coroutine that was left behind means nobody

    def _work(self) -> None:
        """Drive, in a thread of its own, while there is something to do."""
        _driving[threading.current_thread()] = self
        try:
            while True:
                try:
                    self.step(wait=True)
                except BaseException as error:  # nobody else would hear of it
                    self._end(crossing(error))
                with self._lock:
                    if self._inbox.empty() and not self.clients:
                        self._driven = False
                        return
        finally:
            del _driving[threading.current_thread()]

    def _begins(self, client: Client) -> bool:
        """Whether a client's requests may start: the weights that are sampled from are new enough for all who wait."""
        if client not in self._begun:
            needed = max(each.least for each in self.clients if each.waiting and each not in self._begun)
            has = self.newest if self._in_flight else step_of(getattr(self._engine, "sampled_from", ""))
            if self._begun and has < needed:
                return False
            self._begun.append(client)
        return True

    def _give_slots(self) -> Decoding | None:
        """Cancel what nobody waits for, and put those into the decoding who come next; returns it."""
        if self._left:
            self._left = False
            for ask in self._removed(lambda ask: ask.future.done()):
                ask.client.finished(ask, None)
        while self._apart and not (self._apart[0] or self._inside):
            self._apart.popleft()
        lines = {"": self._apart[0]} if self._apart else self._lines
        if not any(lines.values()):
            self._lines = {key: line for key, line in self._lines.items() if line}
            return self._decoding
        if self._decoding is None:
            told, turns = partial(self._count, self._inside), any(client.turns for client in self._begun)
            self._decoding = self._opened.enter_context(self._engine.open(told, turns=turns))
        chosen = dict.fromkeys(self._chosen(lines))
        for number, ask in reversed([*self._inside.items()]):
            if ask not in chosen:
                lines.setdefault(ask.client.key, deque()).appendleft(self._take_out(number))
        inside, until = {*self._inside.values()}, time.monotonic() + SLICE_S
        for ask in [each for each in chosen if each not in inside]:
            if self._slots and time.monotonic() > until:
                break
            lines[ask.client.key if not self._apart else ""].popleft()
            try:
                number = self.number()
                self._decoding.add(number, ask.request, **ask.more())
                self._inside[number] = ask
            except Exception as error:
                ask.client.finished(ask, error)
        self._lines = {key: line for key, line in self._lines.items() if line}
        return self._decoding

    def _removed(self, gone: Callable[[Ask], bool]) -> list[Ask]:
        """Requests that are taken out, whether they are under way or may start."""
        found = [self._take_out(number) for number, ask in [*self._inside.items()] if gone(ask)]
        for line in (*self._lines.values(), *self._apart):
            for ask in [ask for ask in line if gone(ask)]:
                line.remove(ask)
                found.append(ask)
        return found

    def _chosen(self, lines: Mapping[str, Sequence[Ask]]) -> Iterator[Ask]:
        """Who should be under way: one of each key by turns, those first that are already."""
        turns: dict[str, Iterator[Ask]] = {}
        keys = dict.fromkeys([*(ask.client.key for ask in self._inside.values()), *lines])
        if self._apart or len(keys) == 1:  # the decoding orders those that have no slot yet, to compute a prompt once
            turns[""], left = chain([*self._inside.values()], *map(list, lines.values())), 2 * (self._slots or 2**31)
        else:
            longest = sorted(self._inside, key=lambda number: -len(self._so_far.get(number, ())))
            for key in keys:
                mine = [self._inside[number] for number in longest if self._inside[number].client.key == key]
                turns[key] = chain(mine, list(lines.get(key, ())))
            left = self._places if self._slots else 2**31
        sources: set[str] = set()
        while turns:
            for key, line in [*turns.items()]:
                ask = next(line, None)
                together = sources | {ask.source} - {""} if ask else sources
                if ask is None or (self._sources is not None and len(together) > self._sources):
                    del turns[key]
                    continue
                if not left:
                    return
                sources, left = together, left - 1
                yield ask

    def _take_out(self, number: int) -> Ask:
        assert self._decoding is not None
        self._decoding.cancel(number)
        return self._inside.pop(number)

    def _count_places(self, slots: int) -> None:
        """For how many sequences there is room, as far as one sees: who is in the decoding, and has no token yet."""
        begun = Counter(self._inside[number].client.key for number, tokens in self._so_far.items() if tokens)
        idle = {self._inside[number].client.key for number, tokens in self._so_far.items() if not tokens}
        if idle:
            found = begun.total()
            # one who has nothing may need the room of several of the others
            self._places = max(1, found if idle <= begun.keys() else found // 2)
        else:
            self._places = min(slots, self._places + 1)

    def _count(self, inside: Mapping[int, Ask], tokens: int) -> None:
        for client in self._begun:
            if client.on_tokens is not None:
                client.on_tokens(tokens)
        if all(ask.future.done() for ask in inside.values()):  # what answers a whole batch at once need not go on
            raise _Abandoned

    def _failed(self, error: Exception) -> None:
        """The decoding is lost. Requests of several begin again, apart; of one they get the error."""
        asks = [*self._inside.values()] or [*chain(*self._apart, *self._lines.values())]
        if self._inside and len({ask.whose for ask in asks}) > 1:
            groups: dict[tuple[str, str], deque[Ask]] = {}
            for ask in asks:
                groups.setdefault(ask.whose, deque()).append(ask)
            self._apart.extend(groups.values())
            self._shut()
            return
        if not self._inside:  # it could not be opened
            self._lines, self._apart = {}, deque()
        self._shut()
        for ask in asks:
            if ask.client.runs:
                ask.client.failed = error
            else:
                ask.client.finished(ask, error)

    def _end(self, error: Exception) -> None:
        waiting = chain(*self._apart, *self._lines.values(), *(client.waiting for client in self.clients))
        asks = [*self._inside.values(), *waiting]
        self._shut()
        for ask in asks:
            if not ask.client.runs:  # what runs is cancelled
                ask.answer(error)
        self._lines, self._apart = {}, deque()
        for client in self.clients:
            client.failed = error
            client.reset()

    def _drop(self, client: Client) -> None:
        """Nobody waits for the answers to a client any more."""
        self.clients = [each for each in self.clients if each is not client]
        self._begun = [each for each in self._begun if each is not client]
        if not self._begun:
            self._shut()
        self._removed(lambda ask: ask.client is client)
        self._lines = {key: line for key, line in self._lines.items() if line}
        client.reset()

    def _shut(self) -> None:
        self._decoding, self._inside, self._so_far = None, {}, {}
        stack, self._opened = self._opened, contextlib.ExitStack()
        stack.close()
