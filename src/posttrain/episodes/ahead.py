"""Rollouts of coming steps, sampled while the trainer works on this one.

    with Ahead(roll_out, shared, publish, check, staleness=2, steps=100, at=0) as rollouts:
        rolled = rollouts.take(step)
        ...                                  # train
        rollouts.trained(step + 1)           # these weights can be sampled from

Step s is sampled from weights that are at most `staleness` = K steps old when it is trained: it begins when the weights
of step s - K are published. Steps are taken in the order in which they began, so that none is dropped and age does not
grow while long episodes finish. (Consumed in the order of completion, ages grow without bound.)
"""

import contextvars
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from posttrain.background import forget
from posttrain.engine.async_engine import LOOP
from posttrain.engine.shared_engine import SharedEngine, step_of
from posttrain.errors import EngineError
from posttrain.types import Engine, Group, Turn

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
RollOut = Callable[[int, Engine], T]
"""Samples a step with an engine."""

AT_ONCE = 2  # steps that are sampled together: the second has the slots that the first leaves; a third makes all older
ENDING_S = 2.0  # that all threads may take to end


class Rollouts(Protocol[T_co]):
    """The rollouts of a run's steps, in order."""

    def take(self, step: int) -> T_co:
        """The rollouts of a step, when they are done; raises what sampling raised."""
        ...

    def trained(self, step: int) -> None:
        """The weights are those with which this step begins."""
        ...


class InTurn(Generic[T]):
    """Each step is sampled when it is taken, from the weights that have been trained."""

    def __init__(self, roll_out: RollOut[T], engine: Engine) -> None:
        self._roll_out, self._engine = roll_out, engine

    def take(self, step: int) -> T:
        """As in `Rollouts`."""
        return self._roll_out(step, self._engine)

    def trained(self, step: int) -> None:
        """As in `Rollouts`; nothing changes."""


class Ahead(Generic[T]):
    """See the module.

    Args:
        roll_out: called in threads, for several steps at once.
        shared: the engine of all.
        publish: lets the engine take the weights with which a step begins, whenever it likes.
        check: raises what is behind an error of the engine, such as that those who publish are gone.
        staleness: K, at least 1.
        steps: of the run; nothing after them is sampled.
        at: the step that is taken first.
        at_once: steps that may be sampled at the same time.
    """

    def __init__(
        self,
        roll_out: RollOut[T],
        shared: SharedEngine,
        publish: Callable[[int], None],
        check: Callable[[], None],
        *,
        staleness: int,
        steps: int,
        at: int,
        at_once: int = AT_ONCE,
    ) -> None:
        self._roll_out, self._shared, self._publish, self._check = roll_out, shared, publish, check
        self.staleness, self._steps, self._at_once = staleness, steps, at_once
        self._next, self._published, self._running = at, at, 0
        self._done: dict[int, T] = {}
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        """Begin to sample."""
        self.trained(self._next)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End all that is under way; a thread that does not end, such as in a reward that hangs, is left behind."""
        with self._changed:
            self._next = self._steps
        self._shared.close()
        until = time.monotonic() + ENDING_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            forget(LOOP)  # maybe what they wait for blocks it: the environment could not be closed there

    def take(self, step: int) -> T:
        """As in `Rollouts`; raises also what sampling a later step raised."""
        with self._changed:
            self._changed.wait_for(lambda: step in self._done or self._error is not None)
            if step in self._done:
                return self._done.pop(step)
        assert self._error is not None
        raise raised(self._error, self._check)

    def trained(self, step: int) -> None:
        """As in `Rollouts`; the weights are published."""
        self._publish(step)
        with self._changed:
            self._published = step
        self._begin()

    def _begin(self) -> None:
        """Begin all steps that may begin."""
        with self._changed:
            while self._running < self._at_once and self._next < min(self._steps, self._published + self.staleness + 1):
                step, self._next = self._next, self._next + 1
                self._running += 1
                sample = partial(contextvars.copy_context().run, self._sample, step)
                thread = threading.Thread(target=sample, daemon=True, name=f"rollout {step}")
                self._threads = [each for each in self._threads if each.is_alive()] + [thread]
                thread.start()

    def _sample(self, step: int) -> None:
        try:
            found = self._roll_out(step, self._shared.at_least(step - self.staleness))
        except BaseException as error:
            with self._changed:
                self._error, self._next = self._error or error, self._steps
                self._running -= 1
                self._changed.notify_all()
            return
        with self._changed:
            self._done[step] = found
            self._running -= 1
            self._changed.notify_all()
        self._begin()


def raised(error: BaseException, check: Callable[[], None]) -> BaseException:
    """An error of sampling; raises what is behind it, where `check` finds something behind one of the engine."""
    if isinstance(error, EngineError):
        check()
    return error


def ages_of(groups: Sequence[Group], step: int, staleness: int) -> dict[str, float]:
    """How old the weights are, in steps, from which the tokens of a step were sampled; nothing where none may be old.

    Raises:
        EngineError: some are older than `staleness`.
    """
    if not staleness:
        return {}
    turns = [turn for group in groups for row in group.rows for turn in row.trajectory.turns]
    runs = [(step - step_of(version), tokens) for turn in turns for tokens, version in _runs(turn)]
    if not runs:
        return {}
    oldest = max(age for age, _ in runs)
    if oldest > staleness:
        raise EngineError(f"step {step} has tokens from weights that are {oldest} steps old, of {staleness} allowed")
    mean = sum(age * tokens for age, tokens in runs) / sum(tokens for _, tokens in runs)
    return {"staleness/mean": mean, "staleness/max": float(oldest)}


def _runs(turn: Turn) -> Iterator[tuple[int, str]]:
    """Numbers of tokens that follow each other and are of one version."""
    firsts = [first for first, _ in turn.versions]
    ends = [*firsts[1:], len(turn.token_ids)]
    for (first, version), end in zip(turn.versions, ends, strict=bool(firsts)):
        yield end - first, version
