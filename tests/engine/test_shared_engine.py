"""One engine of several batches: the kit of engines, and which weights who waits for."""

import contextlib
import threading
from dataclasses import replace

import pytest

from posttrain.engine.engine import check_engine
from posttrain.engine.shared_engine import Closed, SharedEngine, step_of
from posttrain.engine.transformers import TransformersEngine
from posttrain.types import Request, Sampling
from tests.engine.test_transformers import PROMPTS, subject
from tests.tiny import STOP, tiny_llama


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

    @contextlib.contextmanager
    def open(self, on_tokens=None, *, turns=False):
        self.sampled_from = self.newest
        self.told.append(f"open {self.sampled_from}")
        with self.engine.open(on_tokens, turns=turns) as decoding:
            yield decoding
        self.told.append("close")

    def renew(self):
        self.sampled_from = self.newest
        self.told.append(f"renew {self.sampled_from}")


@pytest.fixture
def engine():
    return Versioned(tiny_llama())


def in_thread(work):
    """Runs in a thread; what it returned is in `found`, and `done` is set."""
    found, done = [], threading.Event()

    def run():
        found.append(work())
        done.set()

    threading.Thread(target=run, daemon=True).start()
    return found, done


@pytest.mark.parametrize("in_flight", [False, True])
def test_it_keeps_to_the_kit_of_engines(in_flight):
    here = subject(tiny_llama())
    shared = SharedEngine(Versioned(tiny_llama()), in_flight=in_flight)
    assert check_engine(replace(here, engine=shared.newest)) == []


def test_two_batches_draw_together_what_each_draws_alone(engine):
    shared, alone = SharedEngine(engine), engine.engine.generate(REQUESTS)
    both = threading.Barrier(2)

    def sample(batch):
        with shared.at_least(0).open() as decoding:
            both.wait(10)  # both are let in before either is done
            for number, request in enumerate(batch):
                decoding.add(number, request)
            done = {}
            while len(done) < len(batch):
                done |= decoding.step()
        return [done[number] for number in range(len(batch))]

    first, ended = in_thread(lambda: sample(REQUESTS[::-1]))
    assert tokens(sample(REQUESTS)) == tokens(alone)
    assert ended.wait(10) and tokens(first[0]) == tokens(alone[::-1])
    assert engine.told == ["open a.0", "close"]


def test_who_needs_newer_weights_waits_and_nobody_passes_by(engine):
    shared, order = SharedEngine(engine), []

    def enter(least, name):
        with shared.at_least(least).open():
            order.append(name)

    with shared.at_least(0).open():
        engine.newest = "a.1"
        _, newer = in_thread(lambda: enter(1, "newer"))
        while not shared._needed:
            pass
        _, older = in_thread(lambda: enter(0, "older"))
        assert not newer.wait(0.2) and not older.wait(0.2)
    assert newer.wait(10) and older.wait(10)
    assert engine.told[:3] == ["open a.0", "close", "open a.1"]


def test_in_flight_nobody_waits_and_weights_are_renewed_before_the_next_token(engine):
    shared = SharedEngine(engine, in_flight=True)
    with shared.at_least(0).open() as decoding:
        decoding.add(0, REQUESTS[0])
        engine.newest = "a.1"
        with shared.at_least(1).open() as other:
            other.add(0, REQUESTS[1])
            other.step()
            assert engine.told == ["open a.0", "renew a.1"]
        decoding.step()
    assert engine.told == ["open a.0", "renew a.1", "close"]


def test_the_newest_weights_are_those_when_it_is_opened(engine):
    shared = SharedEngine(engine)
    newest = shared.newest
    engine.newest = "a.7"
    with newest.open():
        assert engine.sampled_from == "a.7"


def test_what_a_batch_leaves_behind_is_cancelled(engine):
    shared = SharedEngine(engine)
    with shared.newest.open() as stays:
        with shared.newest.open() as goes:
            goes.add(0, REQUESTS[0])
        stays.add(0, REQUESTS[1])
        done = {}
        while not done:
            done = stays.step()
        assert tokens([done[0]]) == tokens(engine.engine.generate([REQUESTS[1]]))
        assert shared._owners == {}


def test_closing_ends_what_is_under_way_and_what_waits(engine):
    shared = SharedEngine(engine)
    with contextlib.ExitStack() as stack:
        decoding = stack.enter_context(shared.newest.open())
        decoding.add(0, REQUESTS[0])
        engine.newest = "a.1"

        def wait():
            with pytest.raises(Closed), shared.at_least(1).open():
                pass

        _, ended = in_thread(wait)
        while not shared._needed:
            pass
        shared.close()
        assert ended.wait(10)
        with pytest.raises(Closed):
            decoding.step()


def test_a_signal_ends_a_batch_while_another_has_the_engine_for_minutes(engine):
    shared, stuck, goes_on = SharedEngine(engine), threading.Event(), threading.Event()

    def hang():
        with shared.newest.open() as decoding:
            decoding.add(0, REQUESTS[0])
            shared._decoding.step = lambda: (stuck.set(), goes_on.wait(60), {})[-1]
            with pytest.raises(Closed):
                while True:
                    decoding.step()

    with pytest.raises(KeyboardInterrupt), shared.newest.open():
        _, ended = in_thread(hang)
        assert stuck.wait(10)
        raise KeyboardInterrupt
    assert not ended.is_set()
    goes_on.set()
    assert ended.wait(10)


def test_an_engine_that_does_not_open_lets_the_next_one_try(engine):
    shared, opened = SharedEngine(engine), engine.open
    engine.open = lambda *a, **k: (_ for _ in ()).throw(OSError("no room"))
    with pytest.raises(OSError, match="no room"), shared.newest.open():
        pass
    engine.open = opened
    with shared.newest.open():
        pass
    assert shared._needed == [] and shared._lanes == []


def test_the_step_of_a_version_is_its_last_part():
    assert step_of("c0ffee.12") == 12 and step_of("") == -1


def test_a_request_that_was_cancelled_does_not_come_back(engine, monkeypatch):
    """Another lane's step finishes it while the cancellation waits for the engine."""
    shared = SharedEngine(engine)
    alone = shared._alone
    with shared.at_least(0).open() as lane:
        lane.add(0, REQUESTS[0])

        @contextlib.contextmanager
        def later(*args):
            with alone(*args):
                lane.done[0] = "finished meanwhile"
                yield

        with monkeypatch.context() as patched:
            patched.setattr(shared, "_alone", later)
            lane.cancel(0)
        assert lane.done == {} and lane.step() == {}
