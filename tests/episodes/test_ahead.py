"""Steps that are sampled ahead: ages, order and failures on a simulated clock, and ages counted by hand."""

import threading
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.episodes.ahead import Ahead, ages_of
from posttrain.episodes.sampler import Rollouts
from posttrain.errors import EngineError
from posttrain.types import StopReason, Trajectory, Turn
from tests.groups import group_of


@dataclass
class Clock:
    """An engine and a trainer whose work takes the time that a test says; threads wait until that time has come."""

    sampling_s: list[float]
    training_s: list[float]
    newest: bool  # whether an engine takes the newest weights that there are, or the oldest that it may
    at_once: int = 2
    now: float = 0.0
    published: int = -1
    most_running: int = 0
    versions: dict[int, int] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    due: list[tuple[float, int]] = field(default_factory=list)
    finished: set[int] = field(default_factory=set)

    sampler = None  # of rollouts

    def at_least(self, step):
        return SimpleNamespace(take=lambda taken: self.roll_out(taken, max(step, 0)))

    def close(self):
        with self.changed:
            self.finished |= {step for _, step in self.due}
            self.changed.notify_all()

    def check(self):
        raise ConnectionError("the trainers are gone")

    def publish(self, step):
        self.published = step

    def roll_out(self, step, least):
        assert least <= self.published, "these weights are not there yet"
        with self.changed:
            self.versions[step] = self.published if self.newest else least
            heappush(self.due, (self.now + self.sampling_s[step], step))
            self.most_running = max(self.most_running, len(self.due))
            self.changed.notify_all()
            self.changed.wait_for(lambda: step in self.finished)
        return step

    def advance(self):
        """To the next moment at which a step has been sampled."""
        with self.changed:
            at, step = heappop(self.due)
            self.now = max(self.now, at)
            self.finished.add(step)
            self.changed.notify_all()

    def settle(self, ahead):
        """Wait until each thread either sleeps or is done: real time that passes in no simulated time."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.due) == ahead._running or ahead._error, timeout=60)


def simulate(clock, steps, staleness):
    """The ages of all steps, and the time that the run took."""
    ages = []
    with Ahead(clock, clock, clock.publish, clock.check, staleness=staleness, steps=steps, at=0) as ahead:
        for step in range(steps):
            clock.settle(ahead)
            while step not in ahead._done:
                before = len(ahead._done)
                clock.advance()
                with ahead._changed:
                    ahead._changed.wait_for(lambda before=before: len(ahead._done) > before, timeout=60)
                clock.settle(ahead)
            assert ahead.take(step) == step
            ages.append(step - clock.versions[step])
            until = clock.now + clock.training_s[step]
            while clock.due and clock.due[0][0] <= until:
                before = len(ahead._done)
                clock.advance()
                with ahead._changed:
                    ahead._changed.wait_for(lambda before=before: len(ahead._done) > before, timeout=60)
                clock.settle(ahead)
            clock.now = until
            ahead.trained(step + 1)
    return ages, clock.now


TIMES = st.lists(st.floats(0.01, 50.0), min_size=9, max_size=9)


@settings(max_examples=60)
@given(TIMES, TIMES, st.integers(1, 4), st.booleans())
def test_no_step_is_older_than_allowed_and_none_is_lost(sampling_s, training_s, staleness, newest):
    clock = Clock(sampling_s, training_s, newest)
    ages, took = simulate(clock, 9, staleness)
    assert len(ages) == 9 and all(0 <= age <= staleness for age in ages)
    assert ages[0] == 0 and clock.most_running <= 2
    # never slower than in turn, and never faster than either part alone, of which two may be sampled at a time
    assert took <= sum(sampling_s) + sum(training_s) + 1e-6
    assert took >= max(sum(training_s), sum(sampling_s) / 2) - 1e-6


def test_with_one_step_of_staleness_sampling_and_training_overlap_by_hand():
    """Sampling takes 3, training 2: a step each 3 after the first, and the last is trained alone."""
    ages, took = simulate(Clock([3.0] * 4, [2.0] * 4, True), 4, 1)
    # step 0 is sampled from 0 to 3, step 1 (from the same weights) from 0 to 3 beside it; step 2 from 5, when
    # weights 1 are there, to 8; step 3 from 7, when weights 2 are there, to 10
    assert ages == [0, 1, 1, 1]
    assert took == pytest.approx(12.0)


def test_a_failure_is_raised_where_the_step_is_taken_and_nothing_more_begins():
    begun = []

    def roll_out(step, engine):
        begun.append(step)
        if step == 1:
            raise ValueError("of step 1")
        return step

    clock = Clock([], [], True)
    clock.roll_out = roll_out
    with Ahead(clock, clock, clock.publish, clock.check, staleness=1, steps=9, at=0, at_once=1) as ahead:
        assert ahead.take(0) == 0
        with pytest.raises(ValueError, match="of step 1"):
            ahead.take(1)
        ahead.trained(1)
        ahead.trained(2)
    assert begun == [0, 1]


def test_behind_an_error_of_the_engine_may_be_another():
    def roll_out(step, engine):
        raise EngineError("no weights")

    clock = Clock([], [], True)
    gone = pytest.raises(ConnectionError, match="the trainers are gone")
    clock.roll_out = roll_out
    with Ahead(clock, clock, clock.publish, clock.check, staleness=1, steps=9, at=0) as ahead, gone:
        ahead.take(0)


def test_a_run_that_ends_leaves_no_thread():
    clock = Clock([1.0] * 9, [1.0] * 9, True)
    with Ahead(clock, clock, clock.publish, clock.check, staleness=2, steps=9, at=0) as ahead:
        clock.settle(ahead)
    assert not any(thread.is_alive() for thread in ahead._threads) and len(ahead._threads) == 2


def test_in_turn_each_step_is_sampled_when_it_is_taken():
    asked, draws = [], count(7)
    sampler = SimpleNamespace(roll_out=lambda draw, further: asked.append((draw, next(further))) or "rolled")
    rollouts = Rollouts(sampler, draws, lambda rolled, sampler: (rolled, sampler))
    assert rollouts.take(3) == ("rolled", sampler) and asked == [(7, 8)]


def group(*turns):
    rows = tuple(
        Trajectory(tuple(Turn((1,), (2,) * n, (0.0,) * n, StopReason.STOP, "", False, versions) for n, versions in of))
        for of in turns
    )
    return group_of(rows, [0.0] * len(rows))


def test_ages_are_counted_by_token():
    rows = group([(4, ((0, "a.3"), (3, "a.5")))], [(2, ((0, "a.5"),)), (2, ((0, "a.5"),))])
    # three tokens are two steps old, five are none
    assert ages_of([rows], 5, 2) == {"staleness/mean": pytest.approx(3 * 2 / 8), "staleness/max": 2.0}
    assert ages_of([rows], 5, 0) == {}  # sampled in turn: versions count otherwise there
    with pytest.raises(EngineError, match="2 steps old, of 1 allowed"):
        ages_of([rows], 5, 1)


def test_an_engine_without_versions_has_no_ages():
    assert ages_of([group([(4, ())])], 5, 2) == {}
