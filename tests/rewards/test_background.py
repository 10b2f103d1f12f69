import asyncio
import threading
import time

import pytest

from posttrain.background import DidNotFinish, all_of, in_thread, run_apart


def test_a_coroutine_that_blocks_is_given_up_and_the_next_call_is_served():
    release = threading.Event()

    async def blocks():
        release.wait(20)

    async def fine():
        return 7

    async def main():
        start = time.monotonic()
        with pytest.raises(DidNotFinish):
            await run_apart("blocking", blocks(), 0.1)
        assert time.monotonic() - start < 60  # a busy machine; the hang would never end
        return await run_apart("blocking", fine(), 5)

    assert asyncio.run(main()) == 7
    release.set()


def test_a_coroutine_that_only_waits_is_cancelled_at_its_time_limit():
    cancelled = threading.Event()

    async def waits():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(DidNotFinish):
        asyncio.run(run_apart("waiting", waits(), 0.05))
    assert cancelled.wait(5)


def test_the_first_failure_cancels_the_others_and_is_raised_as_it_is():
    ended = []

    async def waits(number):
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(number)

    async def fails():
        await asyncio.sleep(0.01)
        raise ValueError("mine")

    async def quick(number):
        return number

    with pytest.raises(ValueError, match="mine"):
        asyncio.run(all_of([waits(0), fails(), waits(1)]))
    assert ended == [0, 1]
    assert asyncio.run(all_of(quick(number) for number in range(3))) == [0, 1, 2]


def test_cancelling_the_caller_cancels_the_coroutine():
    started, cancelled = threading.Event(), threading.Event()

    async def waits():
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def main():
        task = asyncio.create_task(run_apart("cancelled", waits(), 60))
        while not started.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert cancelled.wait(5)


def test_one_key_keeps_its_event_loop_between_runs_and_another_key_has_its_own():
    async def loop():
        return asyncio.get_running_loop()

    first = asyncio.run(run_apart("a", loop(), 5))
    assert asyncio.run(run_apart("a", loop(), 5)) is first
    assert asyncio.run(run_apart("b", loop(), 5)) is not first


def test_a_time_out_raised_inside_is_not_taken_for_the_time_limit():
    async def times_out():
        raise TimeoutError("the service did not answer")

    with pytest.raises(TimeoutError, match="the service"):
        asyncio.run(run_apart("inner", times_out(), 5))


def test_a_thread_returns_raises_and_even_survives_sys_exit():
    assert asyncio.run(in_thread(lambda a, *, b: (a, b, threading.current_thread().daemon), 1, b=2)) == (1, 2, True)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(in_thread(lambda: 1 / 0))
    with pytest.raises(RuntimeError, match="SystemExit"):
        asyncio.run(in_thread(lambda: exec("raise SystemExit(3)")))


def test_a_coroutine_that_exits_is_an_error_and_the_next_call_is_served():
    async def exits():
        raise SystemExit(3)

    async def fine():
        return 7

    async def main():
        with pytest.raises(RuntimeError, match="SystemExit: 3"):
            await run_apart("exiting", exits(), 5)
        return await run_apart("exiting", fine(), 5)

    assert asyncio.run(main()) == 7


def test_what_was_cancelled_cleans_up_undisturbed():
    """A second cancellation would end the first one's cleaning."""
    cleaned = []

    async def works(number):
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(number)

    async def whole():
        task = asyncio.ensure_future(all_of(works(number) for number in range(3)))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(whole())
    assert sorted(cleaned) == [0, 1, 2]
