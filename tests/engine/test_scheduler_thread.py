"""A scheduler that drives itself, over an engine that answers batches: asked one by one, from any event loop."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from posttrain.engine import scheduler
from posttrain.engine.client import Client
from posttrain.engine.scheduler import Closed, Scheduler
from posttrain.engine.scripted import ScriptedEngine
from posttrain.types import Request, Sampling

STOP = frozenset({0})
T = TypeVar("T")


def threaded(made: ScriptedEngine) -> Client:
    return Client(Scheduler(made, own_thread=True))


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """For ten seconds at most: one who is never answered waits for ever."""
    return asyncio.run(asyncio.wait_for(coroutine, 10))


def requests(*lengths: int) -> list[Request]:
    return [Request((5,) * n, Sampling(8), seed=n) for n in lengths]


def engine(pause_s: float = 0.0, tokens: int = 1) -> ScriptedEngine:
    """Says how long its prompt is."""
    made = ScriptedEngine(lambda request: (len(request.token_ids), 0), STOP)
    answer, made.begun, made.tokens = made.generate, threading.Event(), tokens

    def generate(asked, on_tokens=None):
        made.begun.set()
        for _ in range(made.tokens):
            time.sleep(pause_s)
            if on_tokens:
                on_tokens(1)
        return answer(asked, on_tokens)

    made.generate = generate
    return made


async def has_begun(made: ScriptedEngine) -> None:
    while not made.begun.is_set():
        await asyncio.sleep(0.001)


async def all_of(batched: Client, asked: list[Request]) -> list[int]:
    found = await asyncio.gather(*(batched.submit(request) for request in asked))
    return [completion.token_ids[0] for completion in found]


def test_what_is_submitted_together_is_one_batch():
    made = engine()
    assert run(all_of(threaded(made), requests(3, 1, 2))) == [3, 1, 2]
    assert [[len(r.token_ids) for r in batch] for batch in made.asked] == [[3, 1, 2]]


def test_what_is_submitted_meanwhile_is_the_next_batch():
    made = engine(pause_s=0.2)
    batched = threaded(made)

    async def both():
        first = asyncio.ensure_future(all_of(batched, requests(1, 2)))
        await has_begun(made)
        return [await all_of(batched, requests(3, 4)), await first]

    assert run(both()) == [[3, 4], [1, 2]]
    assert [len(batch) for batch in made.asked] == [2, 2]


def test_one_who_asks_again_after_the_answer_gets_another_one():
    batched = threaded(engine())
    for _ in range(3):
        assert run(all_of(batched, requests(1, 2))) == [1, 2]


def test_threads_ask_at_the_same_time():
    made, found = engine(pause_s=0.02), {}
    batched = threaded(made)

    def ask(n):
        found[n] = run(all_of(batched, requests(n, n + 10)))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found == {n: [n, n + 10] for n in range(1, 7)}


def test_what_the_engine_raises_is_raised_to_all_who_wait():
    def generate(asked, on_tokens=None):
        raise ValueError("no")

    made = engine()
    made.generate = generate
    batched = threaded(made)

    async def both():
        return await asyncio.gather(*(batched.submit(r) for r in requests(1, 2)), return_exceptions=True)

    assert [repr(error) for error in run(both())] == ["ValueError('no')"] * 2


def test_sampling_ends_soon_after_the_last_one_has_left_and_the_engine_can_be_asked_again():
    made = engine(pause_s=0.01, tokens=3000)
    batched = threaded(made)

    async def leave():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(all_of(batched, requests(1, 2)), 0.1)

    began = time.monotonic()
    run(leave())
    made.tokens = 1
    assert run(all_of(batched, requests(4))) == [4]
    assert time.monotonic() - began < 5 and [len(batch) for batch in made.asked] == [1]


def test_one_who_leaves_does_not_end_it_for_the_others():
    made = engine(pause_s=0.01, tokens=20)
    batched = threaded(made)

    async def one_leaves():
        tasks = [asyncio.ensure_future(batched.submit(r)) for r in requests(1, 2)]
        await asyncio.sleep(0.05)
        tasks[0].cancel()
        return (await tasks[1]).token_ids[0]

    assert run(one_leaves()) == 2


def test_what_goes_on_after_an_error_is_told_that_nobody_waits():
    """Such as the share of another process."""
    made, told = engine(), []

    def generate(asked, on_tokens=None):
        told.append(on_tokens)
        raise ValueError("out of memory")

    made.generate = generate
    with pytest.raises(ValueError, match="out of memory"):
        run(all_of(threaded(made), requests(1, 2)))
    with pytest.raises(scheduler._Abandoned):
        told[0](1)


def test_one_who_leaves_before_the_batch_begins_is_not_in_it():
    made = engine(pause_s=0.5)
    batched = threaded(made)

    async def one_leaves():
        first = asyncio.ensure_future(batched.submit(requests(9)[0]))
        await has_begun(made)
        tasks = [asyncio.ensure_future(batched.submit(r)) for r in requests(1, 2)]
        await asyncio.sleep(0.02)
        tasks[0].cancel()
        await first
        return (await tasks[1]).token_ids[0]

    assert run(one_leaves()) == 2
    assert [[len(r.token_ids) for r in batch] for batch in made.asked] == [[9], [2]]


def test_its_thread_ends_with_the_last_answer_and_holds_no_engine():
    batched = threaded(engine())
    assert run(all_of(batched, requests(1, 2))) == [1, 2]
    until = time.monotonic() + 120
    while batched.scheduler._driven and time.monotonic() < until:
        time.sleep(0.001)
    assert not batched.scheduler._driven and batched.scheduler._decoding is None


def test_a_plain_thread_waits_for_a_future():
    assert threaded(engine()).ask(requests(3)[0]).result(10).token_ids[0] == 3


def test_an_exit_in_the_engine_is_told_and_the_next_request_is_answered():
    made = engine()
    answer, made.generate = made.generate, lambda asked, on_tokens=None: exit(3)
    batched = threaded(made)
    with pytest.raises(RuntimeError, match="SystemExit"):
        batched.ask(requests(1)[0]).result(10)
    made.generate = answer
    assert batched.ask(requests(2)[0]).result(10).token_ids[0] == 2


def test_who_asks_after_the_end_is_told_so():
    batched = threaded(engine())
    batched.scheduler.close()
    with pytest.raises(Closed):
        batched.ask(requests(1)[0]).result(10)


ENDING = """
import asyncio, threading, time, torch
from posttrain.engine.client import Client
from posttrain.engine.scheduler import Scheduler
from posttrain.engine.scripted import ScriptedEngine
from posttrain.types import Request, Sampling

made, begun, layer = ScriptedEngine(lambda request: (1, 0), frozenset({0})), threading.Event(), torch.nn.Linear(64, 64)
answer = made.generate

def generate(asked, on_tokens=None):
    begun.set()
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        layer(torch.ones(64, 64))
    return answer(asked)

made.generate = generate
client = Client(Scheduler(made, own_thread=True))

async def main():
    asked = asyncio.ensure_future(client.submit(Request((5,), Sampling(8), seed=0)))
    await asyncio.to_thread(begun.wait)
    asked.cancel()

asyncio.run(main())
"""


def test_a_program_that_ends_while_its_thread_is_inside_of_torch_does_not_abort():
    ended = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
