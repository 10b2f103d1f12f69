"""Rewards in daemon threads and event loops of their own, so that a hang cannot block the caller.

A coroutine that blocks (a `time.sleep`, a socket without a time limit) stops its own event loop, so no time limit that
lives in the same loop would ever fire. And a thread of the default executor is waited for when the program ends, so a
hang there would turn an error into a program that never exits. Hence daemon threads of our own.
"""

import asyncio
import contextvars
import math
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, TypeVar

from posttrain.errors import described

T = TypeVar("T")
Q = TypeVar("Q")

AWAKE_S = 0.2  # how late a signal can be
GRACE_S = 30.0  # for calls that are under way when one of them fails: their answers may be paid for

_loops: dict[tuple[int, str], asyncio.AbstractEventLoop] = {}
_lock = threading.Lock()


class DidNotFinish(Exception):
    """A coroutine that was still running when its time was up."""


async def run_apart(key: str, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """Await `coroutine` on the event loop that belongs to `key`, in another thread, for at most `timeout_s` seconds.

    `math.inf` is as long as it takes.

    The same key gets the same loop each time, so a client session that a reward opened stays usable. After a time-out,
    which raises `DidNotFinish`, the loop is given up, for it may be blocked, and the next call gets a new one.
    """
    loop = loop_of(key)
    future = asyncio.run_coroutine_threadsafe(without_exit(coroutine), loop)
    waiter = asyncio.wrap_future(future)
    try:
        done, _ = await asyncio.wait({waiter}, timeout=None if timeout_s == math.inf else timeout_s)
    except asyncio.CancelledError:
        future.cancel()
        raise
    if not done:
        forget(key)
        waiter.cancel()
        raise DidNotFinish(f"not finished after {timeout_s:g} s")
    return waiter.result()


async def without_exit(answer: Awaitable[T]) -> T:
    """Await `answer`; a SystemExit in any task would end the loop, and leave whoever waits without an answer."""
    try:
        return await answer
    except BaseException as error:
        if (told := crossing(error)) is error or _from_outside(error):
            raise
        raise told from error


def crossing(error: BaseException) -> Exception:
    """The error; in place of one that ends a loop, or that a future cannot hold, a `RuntimeError` caused by it."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration | CancelledError):
        return error
    told = RuntimeError(described(error))
    told.__cause__ = error
    return told


def _from_outside(error: BaseException) -> bool:
    """Whether a coroutine ends by this because its task was cancelled, or it was closed."""
    if isinstance(error, GeneratorExit):
        return error.__traceback__ is None or error.__traceback__.tb_next is None
    task = asyncio.current_task() if isinstance(error, asyncio.CancelledError) else None
    return task is not None and task.cancelling() > 0


async def all_of(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of coroutines that run at the same time, in order; the first failure cancels the others.

    Not a `TaskGroup`, which would wrap the one cause in a group of exceptions.
    """
    running = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*running)
    except BaseException:
        for other in running:
            if not other.cancelling():  # a second time would end what it cleans up
                other.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        raise


async def few_of(most: int, function: Callable[[Q], Coroutine[Any, Any, T]], questions: Sequence[Q]) -> list[T]:
    """What an `async` function says to each question, in order, of at most `most` at the same time.

    After a failure no call begins; those under way have `GRACE_S` to finish, so that what they are told can be cached.
    Of several failures the first in order is raised.
    """
    answers: dict[int, T] = {}
    numbers = iter(range(len(questions)))
    failed: dict[int, Exception] = {}

    async def work() -> None:
        for number in numbers:
            if failed:
                return
            try:
                answers[number] = await function(questions[number])
            except Exception as error:
                failed[number] = error

    workers = [asyncio.ensure_future(work()) for _ in range(min(most, len(questions)))]
    try:
        waiting = set(workers)
        while waiting and not failed:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if waiting:
            await asyncio.wait(waiting, timeout=GRACE_S)
    finally:
        for worker in workers:
            worker.cancel()
    if failed:
        raise failed[min(failed)]
    return [answers[number] for number in range(len(questions))]


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine; from a thread of its own where this one runs an event loop, as notebooks do."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_awake(coroutine))
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.copy_context().run, asyncio.run, coroutine).result()


async def _awake(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine in a loop that wakes up now and then.

    Python runs signal handlers between two instructions: a signal that arrives just before the loop begins to wait for
    something would be handled when that something happens, such as a reward that hangs.
    """
    loop = asyncio.get_running_loop()

    def tick() -> None:
        loop.call_later(AWAKE_S, tick)

    tick()
    return await coroutine


async def in_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Await a plain function in a daemon thread, with the caller's context variables."""
    # shielded: a cancelled waiter must not cancel the future that the thread still writes to
    return await asyncio.shield(asyncio.wrap_future(started(function, *args, **kwargs)))


def in_time(seconds: float, function: Callable[..., T], *args: Any) -> T:
    """The result of a plain function in a daemon thread, which is given up when its time is up.

    For answers of a network: a socket's time limit is of each read, and no limit where a byte comes now and then.
    """
    return started(function, *args).result(seconds)


def started(function: Callable[..., T], *args: Any, **kwargs: Any) -> Future[T]:
    """The result of a plain function in a daemon thread, with the caller's context variables."""
    context = contextvars.copy_context()
    result: Future[T] = Future()

    def work() -> None:
        try:
            value = context.run(function, *args, **kwargs)
        except BaseException as error:  # also SystemExit: a user's function must not end the thread in silence
            result.set_exception(crossing(error))
        else:
            result.set_result(value)

    threading.Thread(target=work, daemon=True, name=f"reward {getattr(function, '__name__', '')}").start()
    return result


def loop_of(key: str) -> asyncio.AbstractEventLoop:
    """The event loop that belongs to `key`, which runs in a daemon thread."""
    with _lock:
        slot = (os.getpid(), key)  # a forked process has the dictionary but not the threads
        if slot not in _loops:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, daemon=True, name=f"reward loop {key}").start()
            _loops[slot] = loop
        return _loops[slot]


def forget(key: str) -> None:
    """Give up the event loop of `key`, which is blocked; whoever asks for it next gets a new one."""
    with _lock:
        _loops.pop((os.getpid(), key), None)
