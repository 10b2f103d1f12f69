"""Many who ask one engine: what waits for what, what a blocked loop cannot stop, and how everything ends."""

import asyncio
import os
import signal
import threading
import time

import pytest

from posttrain.engine.client import Client
from posttrain.engine.scheduler import Scheduler
from posttrain.runs.interrupt import Stopped
from posttrain.types import Request, Sampling
from tests.episodes.stepwise import Stepwise

pytestmark = pytest.mark.timeout(60)
TOOL_S = 0.15


def request(seed, tokens=2, prompt=(1, 2)):
    return Request(prompt, Sampling(tokens), seed)


class Asks(Client):
    """A client with an engine of its own."""

    def __init__(self, engine, schedule="lockstep", **more):
        super().__init__(Scheduler(engine), schedule, **more)
        self.engine = engine

    def run(self, coroutine):
        return self.scheduler.run(self, coroutine)


def continuous(engine=None, **more):
    return Asks(engine or Stepwise(), schedule="continuous", **more)


async def begun(engine):
    """Returns once the engine has sampled."""
    while not engine.steps:
        await asyncio.sleep(0.001)


async def all_of(coroutines):
    return await asyncio.gather(*coroutines)


def test_tools_of_many_episodes_are_waited_for_at_once():
    asks = continuous()

    async def episode(number):
        first = await asks.submit(request(number))
        await asyncio.sleep(TOOL_S)
        return first, await asks.submit(request(100 + number))

    began = time.monotonic()
    found = asks.run(all_of(episode(n) for n in range(16)))
    assert TOOL_S <= time.monotonic() - began < 16 * TOOL_S
    assert [(a.token_ids, b.token_ids) for a, b in found] == [((n, n), (100 + n, 100 + n)) for n in range(16)]


def test_what_blocks_its_event_loop_does_not_stop_sampling():
    engine = Stepwise(lambda number: time.sleep(0.005))
    asks, steps = continuous(engine), []

    async def episode():
        asked = asyncio.ensure_future(asks.submit(request(1, tokens=200)))
        await begun(engine)
        steps.append(len(engine.steps))
        until = time.monotonic() + 120
        while len(engine.steps) < steps[0] + 5 and time.monotonic() < until:
            time.sleep(0.005)
        steps.append(len(engine.steps))
        return await asked

    assert len(asks.run(episode()).token_ids) == 200
    assert steps[1] >= steps[0] + 5


def test_a_request_joins_those_that_are_under_way_and_leaves_when_it_is_done():
    engine = Stepwise(lambda number: time.sleep(0.002))
    asks, order = continuous(engine), []

    async def long():
        await asks.submit(request(1, tokens=500))
        order.append("long")

    async def short():
        await begun(engine)
        await asks.submit(request(2, tokens=1))
        order.append("short")

    asks.run(all_of([long(), short()]))
    assert order == ["short", "long"] and [1, 2] in engine.batches and engine.batches[-1] == [1]


def lockstep(pauses, turns=3):
    """What the engine is asked, in each batch, where episode n pauses before its turns."""
    engine = Stepwise()
    asks = Asks(engine)

    async def episode(number):
        try:
            for turn in range(turns + number % 2):
                await asyncio.sleep(pauses[number])
                await asks.submit(request(10 * turn + number, tokens=1 + number % 2), (number, 0, turn))
        finally:
            asks.leave()

    asks.enter(len(pauses))
    asks.run(all_of(episode(n) for n in range(len(pauses))))
    return engine.added, engine.batches


def test_in_lockstep_batches_are_ordered_by_place_and_the_same_whatever_the_clock_says():
    added, batches = lockstep([0.03, 0.02, 0.01, 0.0])
    assert added == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23, 31, 33]
    assert batches == [[0, 1, 2, 3], [1, 3], [10, 11, 12, 13], [11, 13], [20, 21, 22, 23], [21, 23], [31, 33], [31, 33]]
    assert lockstep([0.0, 0.01, 0.0, 0.02]) == (added, batches)


def test_in_lockstep_two_seats_of_one_episode_that_are_asked_at_once_do_not_begin_without_the_other_episodes():
    engine = Stepwise()
    asks = Asks(engine)

    async def episode(number):
        async def turn(seat):
            time.sleep(0.02)  # what an environment computes between the two
            await asks.submit(request(10 * number + seat, tokens=1), (number, seat, 0))

        await asyncio.sleep(0.05 * number)
        await all_of(turn(seat) for seat in (1, 0))
        asks.leave()

    for _ in range(3):
        asks.enter(2)
        asks.run(all_of([episode(0), episode(1)]))
    assert engine.batches == [[0, 1, 10, 11]] * 3


def test_where_no_episode_is_under_way_those_that_ask_at_once_are_answered_together():
    engine = Stepwise()
    asks = Asks(engine)

    async def reward(number):
        time.sleep(0.02)
        await asks.submit(request(number, tokens=1))
        await asks.submit(request(10 + number, tokens=1))

    asks.run(all_of(reward(n) for n in range(5)))
    assert engine.batches == [[0, 1, 2, 3, 4], [10, 11, 12, 13, 14]]


def test_in_lockstep_what_comes_while_others_are_sampled_waits_for_their_end():
    engine = Stepwise(lambda number: time.sleep(0.005))
    asks = Asks(engine)

    async def reward(number):
        if number == 1:
            await begun(engine)
        await asks.submit(request(number, tokens=20))

    asks.run(all_of([reward(0), reward(1)]))
    assert engine.batches == [[0]] * 20 + [[1]] * 20


def test_an_episode_that_leaves_is_waited_for_no_longer():
    engine = Stepwise()
    asks = Asks(engine)

    async def asker(number):
        await asks.submit(request(number, tokens=1), (number,))
        asks.leave()

    async def silent():
        await asyncio.sleep(0.05)
        asks.leave()

    asks.enter(3)
    asks.run(all_of([asker(0), silent(), asker(1)]))
    assert engine.batches == [[0, 1]]


def test_a_request_that_is_cancelled_gives_its_slot_back():
    engine = Stepwise(lambda number: time.sleep(0.002))
    asks = continuous(engine)

    async def impatient():
        asked = asyncio.ensure_future(asks.submit(request(1, tokens=10**9)))
        await begun(engine)
        asked.cancel()
        return await asks.submit(request(2))

    assert asks.run(impatient()).token_ids == (2, 2)
    assert engine.cancelled == [1] and engine.batches[0] == [1] and engine.batches[-1] == [2]


def test_a_request_that_is_cancelled_before_it_began_is_never_sampled():
    engine = Stepwise()
    asks = Asks(engine)

    async def impatient():
        asked = asyncio.ensure_future(asks.submit(request(1), (0, 0)))
        await asyncio.sleep(0.03)
        asked.cancel()
        await asyncio.sleep(0.03)
        await asks.submit(request(3), (0, 0))
        asks.leave()

    async def late():
        await asyncio.sleep(0.1)
        await asks.submit(request(2), (1, 0))
        asks.leave()

    asks.enter(2)
    asks.run(all_of([impatient(), late()]))
    assert engine.added == [3, 2] and engine.cancelled == []


def test_in_lockstep_a_request_that_is_done_may_be_cancelled_while_others_are_sampled():
    engine = Stepwise(lambda number: time.sleep(0.005))
    asks = Asks(engine)

    async def impatient():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asks.submit(request(1, tokens=1), (0,)), 0.05)
        again = await asks.submit(request(3), (0,))
        asks.leave()
        return again

    async def long():
        found = await asks.submit(request(2, tokens=200), (1,))
        asks.leave()
        return found

    asks.enter(2)
    again, found = asks.run(all_of([impatient(), long()]))
    assert again.token_ids == (3, 3) and len(found.token_ids) == 200


def test_what_the_engine_refuses_ends_the_request_alone():
    asks = continuous()

    async def both():
        with pytest.raises(ValueError, match="an empty prompt"):
            await asks.submit(request(1, prompt=()))
        return await asks.submit(request(2))

    assert asks.run(both()).token_ids == (2, 2)


class Broken(Exception):
    pass


BROKEN = Broken("out of memory")


def breaks(number):
    if number == 3:
        raise BROKEN


@pytest.mark.parametrize("schedule", ["lockstep", "continuous"])
def test_an_error_of_the_engine_ends_everything_and_is_raised_as_it_is(schedule):
    asks, ended = Asks(Stepwise(breaks), schedule=schedule), []

    async def stubborn():
        try:
            await asks.submit(request(1, tokens=99))
        except Exception as error:  # it is not told of an error that is not its own
            ended.append(error)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def waits():
        await asyncio.sleep(600)

    began = time.monotonic()
    with pytest.raises(Broken) as failed:
        asks.run(all_of([stubborn(), waits()]))
    assert failed.value is BROKEN and ended == ["cancelled"] and time.monotonic() - began < 3


def test_after_a_run_that_failed_the_next_one_is_as_if_it_were_the_first():
    engine = Stepwise(breaks)
    asks = Asks(engine)

    async def episode(number, tokens=1):
        try:
            return await asks.submit(request(number, tokens), (number,))
        finally:
            await asyncio.sleep(0.02)
            asks.leave()

    asks.enter(4)
    with pytest.raises(Broken):
        asks.run(all_of(episode(n, tokens=99) for n in range(4)))
    engine.each_step, before = lambda number: None, len(engine.steps)
    asks.enter(2)
    found = asks.run(all_of([episode(5), episode(6)]))
    assert [each.token_ids for each in found] == [(5,), (6,)] and engine.batches[before:] == [[5, 6]]
    assert engine.opened == 2


def hangs(how):
    if how == "blocked":
        time.sleep(30)
    return asyncio.sleep(600)


@pytest.mark.parametrize("how", ["blocked", "waiting"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, Stopped])
def test_what_a_signal_raises_while_sampling_ends_a_coroutine_that_hangs(how, kind):
    hanging = threading.Event()

    def interrupted(number):
        if hanging.wait(0.001):
            raise kind("now")

    asks = continuous(Stepwise(interrupted))

    async def hang():
        await asyncio.sleep(0.05)
        hanging.set()
        await hangs(how)

    began = time.monotonic()
    with pytest.raises(kind):
        asks.run(all_of([asks.submit(request(1, tokens=10**9)), hang()]))
    assert time.monotonic() - began < 8

    async def fine():
        return await asks.submit(request(2))

    asks.engine.each_step = lambda number: None
    assert asks.run(fine()).token_ids == (2, 2)


@pytest.mark.parametrize("how", ["blocked", "waiting"])
def test_ctrl_c_is_heard_while_there_is_nothing_to_sample(how):
    asks = continuous()

    async def hang():
        await hangs(how)

    began = time.monotonic()
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        asks.run(hang())
    assert 0.2 < time.monotonic() - began < 8


def test_a_coroutine_that_is_cancelled_may_end_before_the_run_does():
    """What it holds (a process, a connection) is given back before the environment is closed."""
    asks, given_back = continuous(Stepwise(breaks)), []

    async def careful():
        try:
            await asks.submit(request(1, tokens=99))
        finally:
            await asyncio.sleep(0.2)
            given_back.append(True)

    with pytest.raises(Broken):
        asks.run(careful())
    assert given_back == [True]


def test_a_coroutine_that_will_not_end_is_left_behind():
    asks, over = continuous(Stepwise(breaks)), threading.Event()

    async def stubborn():
        while not over.is_set():
            try:
                await asks.submit(request(1, tokens=99))
            except asyncio.CancelledError:
                await asyncio.sleep(0.01)

    began = time.monotonic()
    with pytest.raises(Broken):
        asks.run(stubborn())
    over.set()
    assert time.monotonic() - began < 8


def test_what_the_coroutine_raises_comes_out_as_it_is_and_so_does_an_exit():
    async def fails(error):
        raise error

    error = KeyError("a")
    with pytest.raises(KeyError) as failed:
        continuous().run(fails(error))
    assert failed.value is error
    with pytest.raises(RuntimeError, match="SystemExit"):
        continuous().run(fails(SystemExit(3)))


@pytest.mark.parametrize("turns", [True, False])
def test_the_engine_is_told_whether_prompts_go_on(turns):
    asks = continuous(turns=turns)
    asks.run(asks.submit(request(1)))
    assert asks.engine.turns is turns


def test_tokens_are_counted_as_they_are_sampled():
    counted = []
    asks = continuous(on_tokens=counted.append)
    asks.run(all_of(asks.submit(request(n, tokens=3)) for n in range(4)))
    assert sum(counted) == 12


def test_what_asks_nothing_opens_no_engine(monkeypatch):
    """Such as rewards, which are scored between sampling and the update."""
    asks, opened = continuous(), []
    whole = asks.engine.open
    monkeypatch.setattr(asks.engine, "open", lambda *args, **more: opened.append(1) or whole(*args, **more))

    async def reward():
        await asyncio.sleep(0.01)
        return 3

    assert asks.run(reward()) == 3 and opened == []
    assert asks.run(asks.submit(request(5))).token_ids == (5, 5) and opened == [1]


class Slots(Stepwise):
    """Has memory for some sequences; those that have a slot get a token in a step, in the order in which they came."""

    def __init__(self, slots):
        super().__init__()
        self.slots = slots

    def step(self):
        waiting = dict([*self.running.items()][self.slots :])
        self.running = dict([*self.running.items()][: self.slots])
        done = super().step()
        self.running |= waiting
        return done

    def sampled(self):
        return {number: tokens for number, (_, tokens) in self.running.items()}


def drive(scheduler, until):
    """The steps until something has happened."""
    for steps in range(10_000):
        if until():
            return steps
        scheduler.step()
    raise AssertionError("never")


@pytest.mark.parametrize("memory", [8, 3])
def test_a_small_request_waits_for_one_step_behind_4096_of_another_key(memory):
    engine = Slots(memory)
    fair = Scheduler(engine, slots=8)
    many, few = Client(fair, key="many"), Client(fair, key="few")
    queued = [many.ask(request(seed, tokens=50)) for seed in range(4096)]
    for _ in range(60):
        fair.step()
    for _ in range(5):
        small = few.ask(request(9999, tokens=4))
        assert drive(fair, small.done) <= 1 + 4
        assert small.result().token_ids == (9999,) * 4
    begun = engine.added.count(0)
    assert begun == 1  # those with the most tokens have kept their slots
    found = [future.result() for future in queued if future.done()]
    assert found and all(set(each.token_ids) == {seed} and len(each.token_ids) == 50 for seed, each in enumerate(found))


def test_keys_have_equal_shares_and_one_that_is_alone_has_all():
    engine = Slots(8)
    fair = Scheduler(engine, slots=8)
    clients = {key: Client(fair, key=key) for key in "abc"}
    asked = {
        key: [clients[key].ask(request(ord(key), tokens=40)) for _ in range(6 + 10 * (key == "a"))] for key in "abc"
    }
    for _ in range(3):
        fair.step()
    shares = [engine.batches[-1].count(ord(key)) for key in "abc"]
    assert sorted(shares) == [2, 3, 3]
    for key in "bc":
        for future in asked[key]:
            future.cancel()
    for _ in range(2):
        fair.step()
    assert engine.batches[-1] == [ord("a")] * 8


def test_a_request_that_gave_its_slot_back_is_told_no_token_twice():
    engine, told = Slots(2), []
    fair = Scheduler(engine, slots=2)
    many, few = Client(fair, key="many"), Client(fair, key="few")
    asked = [many.ask(request(seed, tokens=6), on_new=lambda new: told.extend(new)) for seed in (1, 2)]
    for _ in range(3):
        fair.step()
    few.ask(request(3, tokens=2))
    drive(fair, lambda: all(future.done() for future in asked))
    assert engine.added == [1, 2, 3, 2] and sorted(told) == [1] * 6 + [2] * 6


def test_an_error_is_told_the_key_whose_requests_raise_it():
    engine = Slots(8)
    fair = Scheduler(engine, slots=8)
    step = engine.step

    def broken():
        if any(each.seed == 13 for each, _ in engine.running.values()):
            raise BROKEN
        return step()

    engine.step = broken
    bad, good = Client(fair, key="bad"), Client(fair, key="good")
    answers = [good.ask(request(1)), bad.ask(request(13)), good.ask(request(2))]
    drive(fair, lambda: all(answer.done() for answer in answers))
    assert answers[1].exception() is BROKEN
    assert [answer.result().token_ids for answer in answers[::2]] == [(1, 1), (2, 2)]


def test_tokens_come_as_they_are_sampled():
    engine, told = Slots(8), []
    asks = continuous(engine)
    done = asks.run(asks.submit(request(5, tokens=3), on_new=lambda new: told.append((len(engine.steps), [*new]))))
    assert told == [(1, [5]), (2, [5]), (3, [5])] and done.token_ids == (5, 5, 5)


def test_an_engine_that_tells_nothing_of_them_tells_all_at_the_end():
    told = []
    asks = continuous()
    asks.run(asks.submit(request(5, tokens=3), on_new=told.append))
    assert told == [(5, 5, 5)]
