"""One scheduler of several that run at once: which weights who waits for, and what ends them."""

import asyncio
import contextlib
import threading
import time

import pytest

from posttrain.engine.client import Client
from posttrain.engine.scheduler import Closed, Scheduler, step_of
from posttrain.engine.transformers import TransformersEngine
from posttrain.types import Request, Sampling
from tests.engine.test_transformers import PROMPTS
from tests.tiny import STOP, tiny_llama

pytestmark = pytest.mark.timeout(60)


def tokens(completions):
    """What was drawn: logprobs are rounded otherwise in another batch."""
    return [(each.token_ids, each.stop_reason) for each in completions]


REQUESTS = [Request(prompt, Sampling(12), seed) for prompt in PROMPTS for seed in range(4)]


class Versioned:
    """An engine whose weights have versions, and that says when it is opened and renewed."""

    def __init__(self, model):
        self.engine = TransformersEngine(model, STOP)
        self.newest = self.sampled_from = "a.0"
        self.told = []
        self.steps = lambda step: step()

    @contextlib.contextmanager
    def open(self, on_tokens=None, *, turns=False):
        self.sampled_from = self.newest
        self.told.append(f"open {self.sampled_from}")
        with self.engine.open(on_tokens, turns=turns) as decoding:
            step = decoding.step
            decoding.step = lambda: (self.told.append("step"), self.steps(step))[1]
            yield decoding
        self.told.append("close")

    def renew(self):
        self.sampled_from = self.newest
        self.told.append(f"renew {self.sampled_from}")

    @property
    def changes(self):
        return [each for each in self.told if each != "step"]


@pytest.fixture
def engine():
    return Versioned(tiny_llama())


def scheduler(engine, **more):
    return Scheduler(engine, own_thread=True, **more)


class Running:
    """A client of a thread of its own: it asks what it is given, until it is told to end."""

    def __init__(self, scheduler, least):
        self.client, self.left = Client(scheduler, least=least), threading.Event()
        self.found, self.ended = [], threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    async def waits(self):
        while not self.left.is_set():
            await asyncio.sleep(0.001)

    def run(self):
        try:
            self.client.scheduler.run(self.client, self.waits())
        except BaseException as error:
            self.found.append(error)
        self.ended.set()

    def ask(self, request=REQUESTS[0]):
        return self.client.ask(request)

    def end(self):
        self.left.set()
        assert self.ended.wait(10)


def waits_for(client):
    """Returns when the scheduler has heard of a client's request."""
    until = time.monotonic() + 120
    while not client.waiting and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(0.05)
    assert client.waiting


def test_two_that_run_at_once_draw_together_what_each_draws_alone(engine):
    shared, alone = scheduler(engine), engine.engine.generate(REQUESTS)
    one, other = Running(shared, 0), Running(shared, 0)
    asked = [one.ask(request) for request in REQUESTS], [other.ask(request) for request in REQUESTS[::-1]]
    assert tokens(future.result(10) for future in asked[0]) == tokens(alone)
    assert tokens(future.result(10) for future in asked[1]) == tokens(alone[::-1])
    one.end()
    other.end()
    shared.run(Client(shared), asyncio.sleep(0.3))  # it asks nothing, and opens nothing
    assert engine.changes == ["open a.0", "close"]


def test_who_needs_newer_weights_waits_and_nobody_passes_by(engine):
    shared = scheduler(engine)
    first = Running(shared, 0)
    first.ask().result(10)  # it holds the engine until it ends
    engine.newest = "a.1"
    newer, older = Running(shared, 1), Running(shared, 0)
    answers = [newer.ask()]
    waits_for(newer.client)
    answers.append(older.ask())
    waits_for(older.client)
    assert not any(answer.done() for answer in answers)
    first.ask().result(10)  # who is under way goes on
    first.end()
    for answer in answers:
        answer.result(10)
    newer.end()
    older.end()
    assert engine.changes[:3] == ["open a.0", "close", "open a.1"]


def test_in_flight_nobody_waits_and_weights_are_renewed_before_the_next_token(engine):
    shared = scheduler(engine, in_flight=True)
    first = Running(shared, 0)
    first.ask().result(10)
    engine.newest = "a.1"
    newer = Running(shared, 1)
    newer.ask().result(10)
    assert engine.changes == ["open a.0", "renew a.1"]
    assert engine.told[engine.told.index("renew a.1") + 1] == "step"
    first.ask().result(10)
    assert engine.changes == ["open a.0", "renew a.1"]
    first.end()
    newer.end()


def test_the_newest_weights_are_those_when_a_client_begins(engine):
    shared = scheduler(engine)
    first = Running(shared, 0)
    first.ask().result(10)
    engine.newest = "a.7"
    newest = Running(shared, None)
    answer = newest.ask()
    waits_for(newest.client)
    assert not answer.done()
    first.end()
    answer.result(10)
    assert engine.sampled_from == "a.7"


def test_what_one_leaves_behind_is_cancelled(engine):
    shared, cancelled, began = scheduler(engine), threading.Event(), threading.Event()
    stays, goes = Running(shared, 0), Running(shared, 0)
    stays.ask().result(10)
    engine.steps = lambda step: (began.set(), time.sleep(0.01), {})[2] if not cancelled.is_set() else step()
    left = goes.ask(REQUESTS[1])
    assert began.wait(10)
    goes.end()
    time.sleep(0.1)
    cancelled.set()
    assert tokens([stays.ask(REQUESTS[2]).result(10)]) == tokens(engine.engine.generate([REQUESTS[2]]))
    assert not left.done() and not shared.busy


def test_closing_ends_what_is_under_way_and_what_waits(engine):
    shared = scheduler(engine)
    first = Running(shared, 0)
    first.ask().result(10)
    engine.newest = "a.1"
    waiting = Running(shared, 1)
    waiting.ask()
    waits_for(waiting.client)
    shared.close()
    for each in (first, waiting):
        assert each.ended.wait(10) and isinstance(each.found[0], Closed)


def test_closing_ends_all_who_run_while_the_engine_hangs(engine):
    shared, stuck, goes_on = scheduler(engine), threading.Event(), threading.Event()
    engine.steps = lambda step: (stuck.set(), goes_on.wait(60), {})[2]
    first, other = Running(shared, 0), Running(shared, 0)
    first.ask()
    assert stuck.wait(10)
    shared.close()
    for each in (first, other):
        assert each.ended.wait(10) and isinstance(each.found[0], Closed)
    goes_on.set()


def test_an_error_of_the_engine_ends_those_who_have_asked_and_the_next_may_try(engine):
    shared, opened = scheduler(engine), engine.open
    idle, asks = Running(shared, 0), Running(shared, 0)
    engine.open = lambda *a, **k: (_ for _ in ()).throw(OSError("no room"))
    asks.ask()
    assert asks.ended.wait(10) and [str(error) for error in asks.found] == ["no room"]
    engine.open = opened
    idle.ask().result(10)
    idle.end()
    assert not idle.found


def test_the_step_of_a_version_is_its_last_part():
    assert step_of("c0ffee.12") == 12 and step_of("") == -1
