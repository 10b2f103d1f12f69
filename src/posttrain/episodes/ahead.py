"""Rollouts of coming steps, sampled while the trainer works on this one.

    with Ahead(rollouts, scheduler, publish, check, staleness=2, steps=100, at=0) as ahead:
        rolled = ahead.take(step)
        ...                                  # train
        ahead.trained(step + 1)              # these weights can be sampled from

Step s is sampled from weights that are at most `staleness` = K steps old when it is trained: it begins when the weights
of step s - K are published. Steps are taken in the order in which they began, so that none is dropped and age does not
grow while long episodes finish. (Consumed in the order of completion, ages grow without bound.)

With `evict` as many groups are under way as the steps up to K ahead train on, and a step has the first P that finish. A
group that began with the weights of step v is trained in step v + K or before; otherwise it is evicted: its episodes
are cancelled, and it is counted. No step waits for long completions, and these are the ones that are evicted.
"""

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Generic, Self, TypeVar

from posttrain.background import forget
from posttrain.engine.client import LOOP, Client
from posttrain.engine.scheduler import Scheduler, step_of
from posttrain.episodes.episodes import run_with
from posttrain.episodes.sampler import Finished, Rollouts, Sampler
from posttrain.errors import EngineError
from posttrain.types import Group, Turn

T = TypeVar("T")

AT_ONCE = 2  # steps that are sampled together: the second has the slots that the first leaves; a third makes all older
ENDING_S = 2.0  # that all threads may take to end


class Ahead(Generic[T]):
    """See the module. It has the methods of `Rollouts`."""

    def __init__(
        self,
        rollouts: Rollouts[T],  # sample a step; called in threads, for several steps at once
        scheduler: Scheduler,  # of all
        publish: Callable[[int], None],  # lets the engine take the weights with which a step begins, whenever it likes
        # raises what is behind an error of the engine, such as that those who publish are gone
        check: Callable[[], None],
        *,
        staleness: int,  # K, at least 1
        steps: int,  # of the run; nothing after them is sampled
        at: int,  # the step that is taken first
        evict: bool = False,  # whether groups are taken in the order in which they finish
        at_once: int = AT_ONCE,  # steps that may be sampled at the same time
    ) -> None:
        self._rollouts, self._scheduler, self._publish, self._check = rollouts, scheduler, publish, check
        self._staleness, self._steps, self._at_once = staleness, steps, at_once
        self._evict = evict
        self._next, self._published, self._running = at, at, 0
        self._done: dict[int, T] = {}
        self._finished: list[tuple[Finished, int]] = []  # groups, and the step with whose weights each began
        self._evicted: list[int] = []
        self._wake: Callable[[], None] = lambda: None
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        """Begin to sample."""
        self.trained(self._next)
        if self._evict:
            self._start(self._keep_sampling, "rollouts")
        return self

    def __exit__(self, *of_error: object) -> None:
        """End all that is under way; a thread that does not end, such as in a reward that hangs, is left behind."""
        with self._changed:
            self._next = self._steps
        self._scheduler.close()
        until = time.monotonic() + ENDING_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            forget(LOOP)  # maybe what they wait for blocks it: the environment could not be closed there

    def take(self, step: int) -> T:
        """As in `Rollouts`; raises also what sampling a later step, or any group, raised."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or step in self._done or self._enough())
            if step in self._done:
                return self._done.pop(step)
            if not (count := self._enough()):
                assert self._error is not None
                if isinstance(self._error, EngineError):
                    self._check()
                raise self._error
            taken, self._finished = self._finished[:count], self._finished[count:]
            evicted, self._evicted = self._evicted, []  # since the step before
            begun = count + len(self._finished) + self._running
            self._next = step + 1
            self._drop_old()
            self._wake()
        newest = self._rollouts.sampler
        return self._rollouts.given(newest.rolled([each for each, _ in taken], evicted, begun), newest)

    def trained(self, step: int) -> None:
        """As in `Rollouts`; the weights are published."""
        self._publish(step)
        with self._changed:
            self._published = step
            self._wake()
        if not self._evict:
            self._begin()

    def _begin(self) -> None:
        with self._changed:
            while self._running < self._at_once and self._next < self._end():
                self._running += 1
                self._start(partial(self._sample, self._next), f"rollout {self._next}")
                self._next += 1

    def _end(self) -> int:
        return min(self._published + self._staleness + 1, self._steps)

    def _start(self, work: Callable[[], None], name: str) -> None:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                with self._changed:
                    self._error, self._next = self._error or error, self._steps
                    self._running -= 1
                    self._changed.notify_all()

        context = contextvars.copy_context().run
        thread = threading.Thread(target=context, args=(run,), daemon=True, name=name)
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        thread.start()

    def _sample(self, step: int) -> None:
        found = self._rollouts.at_least(step - self._staleness).take(step)
        with self._changed:
            self._done[step] = found
            self._running -= 1
            self._changed.notify_all()
        self._begin()

    def _keep_sampling(self) -> None:
        mine = self._rollouts.sampler.at_least(self._next)
        asks = mine.asks()
        run_with(asks, mine.players, self._pool(mine, asks))

    async def _pool(self, sampler: Sampler, asks: Client) -> None:
        """Begin and evict groups whenever something has changed."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():  # one that is has nobody who waits
                loop.call_soon_threadsafe(changed.set)

        under_way: dict[asyncio.Task[Finished], tuple[int, int]] = {}  # its draw, and the step that was published
        ending: set[asyncio.Task[Finished]] = set()
        try:
            while True:
                with self._changed:
                    self._wake = wake
                    ending = {task for task in ending | self._settle(under_way) if not task.done()}
                    for _ in range(self._room(len(under_way))):
                        draw = next(self._rollouts.draws)
                        task = loop.create_task(sampler.one(draw, asks))
                        task.add_done_callback(lambda _: changed.set())
                        under_way[task] = draw, self._published
                    self._running = len(under_way)
                    self._changed.notify_all()
                await changed.wait()
                changed.clear()
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, *ending, return_exceptions=True)

    def _settle(self, under_way: dict[asyncio.Task[Finished], tuple[int, int]]) -> set[asyncio.Task[Finished]]:
        """Take what has finished, and evict what is too old for the next step; what was cancelled for that."""
        cancelled: set[asyncio.Task[Finished]] = set()
        for task, (draw, began) in list(under_way.items()):
            if task.done():
                self._finished.append((task.result(), began))
            elif began < self._next - self._staleness:
                task.cancel()
                cancelled.add(task)
                self._evicted.append(draw)
            else:
                continue
            del under_way[task]
        self._drop_old()
        return cancelled

    def _drop_old(self) -> None:
        """Evict what has finished, and is too old for the next step."""
        old = [each.draw for each, began in self._finished if began < self._next - self._staleness]
        self._evicted += old
        self._finished = [(each, began) for each, began in self._finished if each.draw not in old]

    def _enough(self) -> int:
        """How many of the groups that are finished the next step has; 0 if it has to wait."""
        accepted = 0
        for count, (each, _) in enumerate(self._finished, 1):
            accepted += each.accepted is not None
            if accepted == self._rollouts.sampler.prompts or count == self._rollouts.sampler.most:
                return count
        return 0

    def _room(self, under_way: int) -> int:
        """How many groups may begin: those of steps that are not further ahead than the age allows.

        Those that are not accepted make room for others, up to the number that may be sampled for these steps.
        """
        steps, sampler = self._end() - self._next, self._rollouts.sampler
        waiting = sum(each.accepted is not None for each, _ in self._finished)
        needed = steps * sampler.prompts - under_way - waiting
        return max(0, min(needed, steps * sampler.most - under_way - len(self._finished)))


def ages_of(groups: Sequence[Group], step: int, staleness: int) -> dict[str, float]:
    """How old the weights are, in steps, from which a step's tokens were sampled; nothing where none may be old."""
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
