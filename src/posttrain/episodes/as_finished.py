"""Groups in the order in which they finish, without those that would be too old.

    with AsFinished(rolling, shared, publish, check, staleness=2, steps=100, at=0) as rollouts:
        rolled = rollouts.take(step)
        ...                                  # train
        rollouts.trained(step + 1)           # these weights can be sampled from

As many groups are under way as the steps up to K = `staleness` ahead train on, and a step has the first P that finish.
A group that began with the weights of step v is trained in step v + K or before; otherwise it is evicted: its episodes
are cancelled, and it is counted. No step waits for long completions, and these are the ones that are evicted.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

from posttrain.background import forget
from posttrain.engine.async_engine import LOOP, AsyncEngine
from posttrain.engine.shared_engine import SharedEngine
from posttrain.episodes.ahead import ENDING_S, raised
from posttrain.episodes.episodes import run_with
from posttrain.episodes.sampler import Finished, Rolling, Sampler

T = TypeVar("T")


class AsFinished(Generic[T]):
    """See the module. Conforms to `ahead.Rollouts`; the arguments are those of `ahead.Ahead`."""

    def __init__(
        self,
        rolling: Rolling[T],
        shared: SharedEngine,
        publish: Callable[[int], None],
        check: Callable[[], None],
        *,
        staleness: int,
        steps: int,
        at: int,
    ) -> None:
        self._rolling, self._shared, self._publish, self._check = rolling, shared, publish, check
        self.staleness, self._steps = staleness, steps
        self._next, self._published = at, at
        self._finished: list[tuple[Finished, int]] = []  # and the step with whose weights each began
        self._evicted: list[int] = []
        self._under_way = 0
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._wake: Callable[[], None] = lambda: None
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._run,), daemon=True, name="rollouts")

    def __enter__(self) -> Self:
        """Begin to sample."""
        self._publish(self._next)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End all that is under way; a reward that hangs is left behind."""
        with self._changed:
            self._closed = True
            self._wake()
        self._thread.join(ENDING_S)
        self._shared.close()  # for one that did not hear of it
        self._thread.join(ENDING_S)
        if self._thread.is_alive():
            forget(LOOP)

    def take(self, step: int) -> T:
        """As in `Rollouts`; raises what sampling any group raised."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self._enough())
            count = self._enough()
            if not count:
                assert self._error is not None
                raise raised(self._error, self._check)
            taken, self._finished = self._finished[:count], self._finished[count:]
            evicted, self._evicted = self._evicted, []  # since the step before
            begun = count + len(self._finished) + self._under_way
            self._next = step + 1
            self._drop_old()
            self._wake()
        mine = self._rolling.sampler.on(self._shared.newest)
        return self._rolling.given(mine.rolled([each for each, _ in taken], evicted, begun), mine)

    def trained(self, step: int) -> None:
        """As in `Rollouts`; the weights are published."""
        self._publish(step)
        with self._changed:
            self._published = step
            self._wake()

    def _enough(self) -> int:
        """How many of the groups that are finished the next step has; 0 if it has to wait."""
        accepted = 0
        for count, (each, _) in enumerate(self._finished, 1):
            accepted += each.accepted is not None
            if accepted == self._rolling.sampler.prompts or count == self._rolling.sampler.most:
                return count
        return 0

    def _run(self) -> None:
        try:
            mine = self._rolling.sampler.on(self._shared.at_least(self._next))
            asks = mine.asks()
            run_with(asks, mine.players, self._keep_sampling(mine, asks))
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    async def _keep_sampling(self, sampler: Sampler, asks: AsyncEngine) -> None:
        """Begin and evict groups whenever something has changed."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        under_way: dict[asyncio.Task[Finished], tuple[int, int]] = {}  # its draw, and the step that was published
        ending: set[asyncio.Task[Finished]] = set()
        try:
            while True:
                with self._changed:
                    self._wake = lambda: _tell(loop, changed)
                    if self._closed:
                        return
                    ending = {task for task in ending | self._settle(under_way) if not task.done()}
                    for _ in range(self._room(len(under_way))):
                        draw = next(self._rolling.draws)
                        task = loop.create_task(sampler.one(draw, asks))
                        task.add_done_callback(lambda _: changed.set())
                        under_way[task] = draw, self._published
                    self._under_way = len(under_way)
                    self._changed.notify_all()
                await changed.wait()
                changed.clear()
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, *ending, return_exceptions=True)

    def _settle(self, under_way: "dict[asyncio.Task[Finished], tuple[int, int]]") -> "set[asyncio.Task[Finished]]":
        """Take what has finished, and evict what is too old for the next step; what was cancelled for that."""
        cancelled: set[asyncio.Task[Finished]] = set()
        for task, (draw, began) in list(under_way.items()):
            if task.done():
                self._finished.append((task.result(), began))
            elif began < self._next - self.staleness:
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
        old = [each.draw for each, began in self._finished if began < self._next - self.staleness]
        self._evicted += old
        self._finished = [(each, began) for each, began in self._finished if each.draw not in old]

    def _room(self, under_way: int) -> int:
        """How many groups may begin: those of steps that are not further ahead than the age allows.

        Those that are not accepted make room for others, up to the number that may be sampled for these steps.
        """
        steps = min(self._published + self.staleness + 1, self._steps) - self._next
        waiting = sum(each.accepted is not None for each, _ in self._finished)
        needed = steps * self._rolling.sampler.prompts - under_way - waiting
        return max(0, min(needed, steps * self._rolling.sampler.most - under_way - len(self._finished)))


def _tell(loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> None:
    """Set an event from any thread; a loop that is closed has nobody who waits."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(changed.set)
