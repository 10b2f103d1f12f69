"""Groups in the order in which they finish, on a simulated clock: ages, what is dropped, draws, and failures."""

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.episodes.ahead import Ahead
from posttrain.episodes.sampler import Finished
from posttrain.errors import EngineError


@dataclass
class World:
    """Samples groups whose work takes as many training steps as a test says; nothing passes but those steps."""

    lengths: list[int]  # of the groups, by draw, again and again
    prompts: int = 2  # groups that a step is trained on
    refills: int = 0
    refused: frozenset[int] = frozenset()  # draws that are not accepted
    draws: "count[int]" = field(default_factory=count)
    published: int = -1
    began: dict[int, int] = field(default_factory=dict)
    due: dict[int, tuple[int, asyncio.Future]] = field(default_factory=dict)
    cancelled: list[int] = field(default_factory=list)
    told: list[tuple[int, int]] = field(default_factory=list)  # groups of a step, and those that had begun
    loop: asyncio.AbstractEventLoop | None = None
    task: object = None
    players: object = field(default_factory=lambda: SimpleNamespace(policy_chat=None))

    @property
    def most(self):
        return self.prompts * (1 + self.refills)

    def at_least(self, step):
        self.least = step
        return self

    def close(self):
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.task.cancel)

    def check(self):
        raise ConnectionError("the trainers are gone")

    def publish(self, step):
        self.published = step

    @property
    def sampler(self):
        return self

    def asks(self):
        return self

    @property
    def scheduler(self):
        return self

    def run(self, asks, coroutine):
        self.loop = asyncio.new_event_loop()
        self.task = self.loop.create_task(coroutine)
        self.loop.run_until_complete(self.task)

    async def one(self, draw, asks):
        self.began[draw] = self.published
        future = asyncio.get_running_loop().create_future()
        length = self.lengths[draw % len(self.lengths)]
        if length > 0:
            self.due[draw] = self.published + length, future
            try:
                await future
            except asyncio.CancelledError:
                self.cancelled.append(draw)
                raise
            finally:
                del self.due[draw]
        return Finished(draw, f"group {draw}", None if draw in self.refused else f"group {draw}")

    def rolled(self, finished, evicted, begun):
        self.told.append((len(finished), begun))
        return [each.draw for each in finished], evicted

    def given(self, rolled, sampler):
        return rolled

    def finish(self, step):
        """Let all finish that are due at a step, one after another, and wait until the pool has heard of them."""

        async def let():
            for _, future in [each for _, each in sorted(self.due.items()) if each[0] <= step and not each[1].done()]:
                future.set_result(None)
            for _ in range(20):  # rounds of the event loop: whoever was woken has begun what may begin
                await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(let(), self.loop).result(10)


def played(world, steps, staleness):
    """Of each step the draws that it trained on, and those that were dropped before it."""
    found = []
    with Ahead(
        world, world, world.publish, world.check, evict=True, staleness=staleness, steps=steps, at=0
    ) as rollouts:
        while world.loop is None or not world.loop.is_running():
            threading.Event().wait(0.001)
        for step in range(steps):
            at = step
            world.finish(-1)  # what can begin has begun
            world.finish(at)
            while not rollouts._enough():  # the trainer waits: time passes
                at += 1
                world.finish(at)
            found.append(rollouts.take(step))
            rollouts.trained(step + 1)
    assert not any(thread.is_alive() for thread in rollouts._threads)
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.integers(1, 4), st.integers(1, 3))
def test_no_group_is_older_than_allowed_and_each_is_trained_or_dropped_once(lengths, staleness, groups):
    world = World(lengths, groups)
    found = played(world, 8, staleness)
    for step, (trained, _) in enumerate(found):
        assert len(trained) == groups
        assert all(0 <= step - world.began[draw] <= staleness for draw in trained)
    told = Counter(draw for trained, evicted in found for draw in (*trained, *evicted))
    assert set(told.values()) == {1}
    # nothing but what is trained, dropped or under way was begun, and never more than the steps ahead need
    assert len(world.began) - len(told) <= (staleness + 1) * groups
    assert {*world.cancelled} <= {*world.began}


def test_a_long_group_is_passed_by_and_dropped_when_it_would_be_too_old():
    """K = 1, two groups a step: 0 takes for ever. By hand: four may be under way, and three of them finish at once."""
    world = World([100, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    found = played(world, 3, 1)
    assert found[0] == ([1, 2], [])
    assert found[1] == ([3, 4], [])
    # in step 2 draw 0, of step 0, would be two steps old
    assert found[2] == ([5, 6], [0]) and world.cancelled[0] == 0


def test_what_has_finished_and_waits_is_dropped_as_well():
    """Draw 0 finishes in step 1, after draw 2, which step 1 has; in step 2 it would be two steps old."""
    world = World([1, *[0] * 11], prompts=1)
    assert played(world, 3, 1) == [([1], []), ([2], []), ([3], [0])]
    assert world.cancelled == []


def test_groups_that_are_not_accepted_are_sampled_again_up_to_a_number():
    world = World([0], prompts=2, refills=1, refused=frozenset({0, 1, 3, 4, 5, 6, 7}))
    found = played(world, 2, 1)
    assert found[0] == ([0, 1, 2, 3], [])  # four at most, of which one is accepted
    assert found[1] == ([4, 5, 6, 7], [])


def test_what_is_not_accepted_is_not_sampled_without_bound():
    """Nothing is accepted, and all finishes at once: two steps may have four groups each."""
    world = World([0], prompts=2, refills=1, refused=frozenset(range(100)))
    with Ahead(world, world, world.publish, world.check, evict=True, staleness=1, steps=9, at=0) as rollouts:
        while world.loop is None or not world.loop.is_running():
            threading.Event().wait(0.001)
        for _ in range(5):
            world.finish(-1)
        assert len(world.began) == 8
        assert rollouts.take(0)[0] == [0, 1, 2, 3]
    assert world.told == [(4, 8)]


def test_groups_that_are_under_way_have_begun():
    world = World([0, 0, 9, 9], prompts=2)
    played(world, 1, 1)
    assert world.told == [(2, 2)]  # the only step has no others
    world = World([0, 0, 9, 9], prompts=2)
    played(world, 2, 1)
    assert world.told[0] == (2, 4)


def test_nothing_is_begun_that_no_step_needs():
    world = World([0], prompts=3)
    played(world, 4, 4)
    assert sorted(world.began) == list(range(12))


@pytest.mark.parametrize(("error", "says"), [(ValueError("of a reward"), "of a reward"), (EngineError("x"), "gone")])
def test_a_failure_is_raised_where_a_step_is_taken(error, says):
    world = World([0])

    async def broken(draw, asks):
        raise error

    world.one = broken
    with (
        Ahead(world, world, world.publish, world.check, evict=True, staleness=1, steps=3, at=0) as rollouts,
        pytest.raises((ValueError, ConnectionError), match=says),
    ):
        rollouts.take(0)
