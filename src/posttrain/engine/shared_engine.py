"""One engine for several batches at once, whose weights are renewed while others are under way.

    shared = SharedEngine(engine)
    at_least = shared.at_least("7")     # an engine for a batch that may not be sampled from older weights

Batches of several threads are sampled together, so that the slots which the last sequences of one leave free go to the
next. Weights are renewed when nothing is under way, or with `in_flight` between two tokens: sequences then go on with
the new weights and the keys and values of the old ones, and a completion says which token is of which version.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from posttrain.engine.engine import DecodingEngine
from posttrain.errors import EngineError
from posttrain.types import Completion, Decoding, Engine, Request

YIELD_S = 0.001  # that a batch leaves the engine to others after a step


def step_of(version: str) -> int:
    """The step that begins with these weights; their version is `NAME.STEP`. Weights of no version are the oldest."""
    return int(version.rpartition(".")[2] or -1)


class Renewed(Engine, Protocol):
    """An engine whose weights have versions."""

    @property
    def sampled_from(self) -> str:
        """The version of the weights that it samples from, of several the oldest."""
        ...

    @property
    def newest(self) -> str:
        """The version that it will have when it is opened or renewed next."""
        ...

    def renew(self) -> None:
        """Take the newest version while a decoding is open."""
        ...


class Closed(EngineError):
    """Sampling that was ended."""


class SharedEngine:
    """See the module.

    Args:
        engine: samples; one decoding of it is open at a time.
        in_flight: whether weights are renewed while sequences are under way.
    """

    def __init__(self, engine: Renewed, *, in_flight: bool = False) -> None:
        self.engine = engine
        self._in_flight, self._closed = in_flight, False
        self._condition = threading.Condition()  # held for moments
        self._taken = False  # whether somebody has the engine alone
        self._lanes: list[_Lane] = []
        self._needed: list[int] = []  # by those that wait to be let in
        self._owners: dict[int, tuple[_Lane, int]] = {}
        self._numbers = count()
        self._opened = contextlib.ExitStack()

    def at_least(self, step: int) -> Engine:
        """An engine that samples from the weights of this step or newer ones, which must be there already."""
        return _Bounded(self, lambda: step)

    @property
    def newest(self) -> Engine:
        """An engine that samples from the weights that are the newest when it is opened."""
        return _Bounded(self, lambda: step_of(self.engine.newest))

    @contextlib.contextmanager
    def lane(self, least: int, on_tokens: Callable[[int], None] | None, turns: bool) -> Iterator[Decoding]:
        """A decoding beside others, from the weights of step `least` or newer ones.

        Raises:
            Closed: the engine was closed.
        """
        lane = _Lane(self, on_tokens)
        self._enter(lane, least, turns)
        try:
            yield lane
        except Exception:
            self._leave(lane)
            raise
        except BaseException:  # a signal, for which nobody waits who may have the engine for minutes
            self.close()
            raise
        else:
            self._leave(lane)

    def _enter(self, lane: "_Lane", least: int, turns: bool) -> None:
        with self._condition:
            self._needed.append(least)

        def may() -> bool:
            # nobody passes by who waits for newer weights, or there might always be something under way
            return not self._lanes or self._has(max(self._needed))

        try:
            with self._alone(may):
                if not self._lanes:
                    self._decoding = self._opened.enter_context(self.engine.open(self._count, turns=turns))
                self._lanes.append(lane)
        finally:
            with self._condition:
                self._needed.remove(least)
                self._condition.notify_all()

    def _has(self, step: int) -> bool:
        """Whether what is under way is sampled from these weights or newer ones."""
        return step_of(self.engine.newest if self._in_flight else self.engine.sampled_from) >= step

    def _leave(self, lane: "_Lane") -> None:
        with contextlib.suppress(Closed), self._alone():
            self._lanes.remove(lane)
            for number in [number for number, (owner, _) in self._owners.items() if owner is lane]:
                self._decoding.cancel(number)
                del self._owners[number]
            if not self._lanes:
                self._opened.close()

    @contextlib.contextmanager
    def _alone(self, may: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Have the engine alone while the block runs, when `may` allows it. Waiting can be interrupted by a signal.

        Raises:
            Closed: the engine was closed.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._closed or (not self._taken and may()))
            if self._closed:
                raise Closed("sampling was ended")
            self._taken = True
        try:
            yield
        finally:
            with self._condition:
                self._taken = False
                self._condition.notify_all()

    def add(self, lane: "_Lane", number: int, request: Request) -> None:
        """Add a request of a lane."""
        with self._alone():
            shared = next(self._numbers)
            self._decoding.add(shared, request)
            self._owners[shared] = lane, number

    def cancel(self, lane: "_Lane", number: int) -> None:
        """Cancel a request of a lane."""
        with self._alone():
            for shared in [each for each, owner in self._owners.items() if owner == (lane, number)]:
                self._decoding.cancel(shared)
                del self._owners[shared]
            lane.done.pop(number, None)  # which another lane's step may just have brought

    def step(self, lane: "_Lane") -> dict[int, Completion]:
        """What of a lane is done: since its last step, or after the next step of all."""
        with self._alone():
            if not lane.done:
                if self._in_flight and self.engine.sampled_from != self.engine.newest:
                    self.engine.renew()
                self._stepping = lane
                for shared, completion in self._decoding.step().items():
                    owner, number = self._owners.pop(shared)
                    owner.done[number] = completion
            done, lane.done = lane.done, {}
            shares = len(self._lanes) > 1 or self._needed
        if shares:
            time.sleep(YIELD_S)  # a thread that takes the engine again at once would shut out the others
        return done

    def close(self) -> None:
        """End all that is under way, with an error in the threads that sample it."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def _count(self, tokens: int) -> None:
        if self._stepping.on_tokens is not None:
            self._stepping.on_tokens(tokens)


@dataclass(eq=False)
class _Lane:
    """The requests of one batch. Conforms to `types.Decoding`."""

    shared: SharedEngine
    on_tokens: Callable[[int], None] | None
    done: dict[int, Completion] = field(default_factory=dict[int, Completion])

    def add(self, number: int, request: Request) -> None:
        self.shared.add(self, number, request)

    def cancel(self, number: int) -> None:
        self.shared.cancel(self, number)

    def step(self) -> dict[int, Completion]:
        return self.shared.step(self)


@dataclass(frozen=True)
class _Bounded(DecodingEngine):
    """Samples from weights that are not too old."""

    shared: SharedEngine
    least: Callable[[], int]

    def open(
        self, on_tokens: Callable[[int], None] | None = None, *, turns: bool = False
    ) -> contextlib.AbstractContextManager[Decoding]:
        return self.shared.lane(self.least(), on_tokens, turns)
