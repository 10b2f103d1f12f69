"""One who asks a scheduler: requests of any thread or coroutine, with how they are served."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from posttrain.background import loop_of
from posttrain.types import Completion, Request

if TYPE_CHECKING:
    from posttrain.engine.scheduler import Scheduler

LOOP = "episodes"  # the event loop of everything that asks: what an environment opened stays usable in it
SETTLED = 2  # rounds of the event loop without a new request, after which those that are there are answered

Schedule = Literal["lockstep", "continuous"]


@dataclass(eq=False)
class Ask:
    """A request, whose it is, and where the answer goes."""

    client: "Client"
    number: int
    request: Request
    place: tuple[int, ...]
    source: str
    more: Callable[[], Mapping[str, Any]]
    on_new: Callable[[Sequence[int]], None] | None
    loop: asyncio.AbstractEventLoop | None
    future: "Future[Completion]" = field(default_factory=Future["Completion"])
    told: int = 0  # tokens that `on_new` has got

    @property
    def order(self) -> tuple[tuple[int, ...], int, tuple[int, ...], int]:
        """The order of `lockstep`; requests of rewards have no place, and are ordered by content."""
        return self.place, self.request.seed, self.request.token_ids, self.number

    @property
    def whose(self) -> tuple[str, str]:
        """Those whose fault an error may be."""
        return self.client.key, self.source

    def answer(self, found: Completion | Exception) -> None:
        """Tell who waits for it."""
        with contextlib.suppress(InvalidStateError):  # cancelled, or answered before
            if isinstance(found, Exception):
                self.future.set_exception(found)
            else:
                self.tell(found.token_ids)
                self.future.set_result(found)

    def tell(self, tokens: Sequence[int]) -> None:
        """Pass on the tokens so far that are new; one who began again is told nothing twice."""
        if self.on_new is not None and len(tokens) > self.told:
            new, self.told = tokens[self.told :], len(tokens)
            self.on_new(new)


class Client:
    """One who asks, and how it is served: see `scheduler.py`. Several threads and event loops may use it."""

    def __init__(
        self,
        scheduler: "Scheduler",  # answers
        schedule: Schedule = "continuous",  # `lockstep` or `continuous`
        *,
        key: str = "",  # whose requests these are; clients of one key share its slots
        least: int | None = None,  # the oldest step of whose weights it may sample; None: the newest that there are now
        turns: bool = False,  # see `types.Engine.open`
        # called with the number of newly sampled tokens, those of others among them
        on_tokens: Callable[[int], None] | None = None,
    ) -> None:
        self.scheduler, self.schedule, self.key, self.turns, self.on_tokens = scheduler, schedule, key, turns, on_tokens
        self.least = scheduler.newest if least is None else least
        self.runs = False  # whether `run` is under way
        self.failed: Exception | None = None  # what ended it
        self.reset()

    def reset(self) -> None:
        """Forget all requests and episodes."""
        self.waiting, self.unanswered, self.done = list[Ask](), 0, list[tuple[Ask, Completion]]()
        self._live = 0  # episodes that are under way
        self._quiet, self._asks, self._settling = 0, 0, False  # rounds of the event loops since the last request

    def ask(
        self,
        request: Request,
        place: tuple[int, ...] = (),  # origin of the request, such as (episode, seat, turn): the sort key of `lockstep`
        *,
        source: str = "",  # what it is sampled from, of which few may be under way at once; "" counts as none
        # further arguments of `Decoding.add`; called when the request begins, in the thread that samples
        more: Callable[[], Mapping[str, Any]] = dict,
        # called with new tokens as they come, in the thread that samples
        on_new: Callable[[Sequence[int]], None] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,  # where one waits for it
    ) -> "Future[Completion]":
        """A completion, for any thread. The future may be cancelled, and raises as `Decoding.add`, or `Closed`."""
        left = self.scheduler.left
        ask = Ask(self, self.scheduler.number(), request, place, source, more, on_new, loop)
        ask.future.add_done_callback(lambda future: self.scheduler.tell(left) if future.cancelled() else None)
        self.scheduler.tell(partial(self._asked, ask), loop)
        return ask.future

    async def submit(
        self,
        request: Request,
        place: tuple[int, ...] = (),
        on_new: Callable[[Sequence[int]], None] | None = None,
    ) -> Completion:
        """As `ask`, and wait."""
        return await asyncio.wrap_future(self.ask(request, place, on_new=on_new, loop=asyncio.get_running_loop()))

    def enter(self, episodes: int) -> None:
        """Register starting episodes: `lockstep` waits until each of them has submitted a request, or left."""

        def count() -> None:
            self._live += episodes

        self.scheduler.tell(count)

    def leave(self) -> None:
        """An episode has ended."""
        self.enter(-1)

    def ready(self) -> bool:
        """Whether pending requests may start; in `lockstep` all that come must be there."""
        self.waiting = [ask for ask in self.waiting if not ask.future.done()]
        if not self.waiting or self.schedule == "continuous":
            return bool(self.waiting)
        # every episode that is under way waits for the engine, maybe several of its seats at once
        if self.unanswered or len({ask.place[:1] or ask.number for ask in self.waiting}) < self._live:
            return False
        if self._quiet < SETTLED:
            self._settle()
            return False
        return True

    def ordered(self) -> list[Ask]:
        """The pending requests, which start now; those of no episode in the order in which they came."""
        asks, self.waiting = sorted(self.waiting, key=lambda ask: ask.order) if self.runs else self.waiting, []
        self.unanswered += len(asks)
        return asks

    def finished(self, ask: Ask, found: Completion | Exception | None) -> None:
        """Answer a request that had started, in `lockstep` when all have finished; None: nobody waits for it."""
        if isinstance(found, Completion) and self.schedule == "lockstep":
            self.done.append((ask, found))
        else:
            self.unanswered -= 1
            if found is not None:
                ask.answer(found)
        if self.done and len(self.done) == self.unanswered:
            done, self.done, self.unanswered = self.done, [], 0
            for each, completion in sorted(done, key=lambda pair: pair[0].order):
                each.answer(completion)

    def _settle(self) -> None:
        """Find out whether more requests come: of other seats of an episode, or of a reward, which has its own loop.

        One round at a time: a round that began before the last request says nothing about what follows it.
        """
        if self._settling:
            return
        self._settling = True
        asks, here = self._asks, [ask.loop for ask in self.waiting if ask.loop is not None]
        loops = list(dict.fromkeys([loop_of(LOOP), *here] if self.runs else here))

        def passed() -> None:
            self._settling = False
            self._quiet += self._asks == asks

        def visit(number: int) -> None:
            if number == len(loops):
                self.scheduler.tell(passed)
                return
            try:
                loops[number].call_soon_threadsafe(visit, number + 1)
            except RuntimeError:  # that one is closed: nothing more comes from it
                visit(number + 1)

        visit(0)

    def _asked(self, ask: Ask) -> None:
        self.waiting.append(ask)
        if self not in self.scheduler.clients:
            self.scheduler.clients.append(self)
        self._quiet = 0
        self._asks += 1
