import asyncio
import os
import threading

import pytest

from posttrain.rollouts.own_loop import OwnLoop


async def where():
    return threading.current_thread(), asyncio.get_running_loop()


def test_everybody_is_answered_by_one_loop_in_a_thread_of_its_own():
    own = OwnLoop()
    (thread, loop), again = asyncio.run(own.run(where())), asyncio.run(own.run(where()))
    assert again == (thread, loop) and thread is not threading.current_thread() and thread.daemon


def test_what_is_raised_there_is_raised_here():
    async def fail():
        raise KeyError("x")

    with pytest.raises(KeyError):
        asyncio.run(OwnLoop().run(fail()))


def test_a_caller_that_leaves_cancels_it():
    left = threading.Event()

    async def wait():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            left.set()
            raise

    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(OwnLoop().run(wait()), 0.05))
    assert left.wait(5)


def test_a_forked_process_has_a_loop_of_its_own(monkeypatch):
    own = OwnLoop()
    _, loop = asyncio.run(own.run(where()))
    process = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    assert asyncio.run(own.run(where()))[1] is not loop
