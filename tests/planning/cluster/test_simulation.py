"""The simulated clock: age, conservation, the closed form, and what more of a thing may not make slower."""

from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.planning.cluster.coefficients import Costs, Decoding, Updating, Workload
from posttrain.planning.cluster.simulation import simulate
from tests.planning.cluster.closed_form import synchronous

STEPS = 6


@st.composite
def clusters(draw):
    """Any cluster, work and lengths."""
    prompts, completions = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    staleness = draw(st.integers(0, 4))
    size = st.floats(0.0, 2.0)
    decoding = Decoding(
        draw(st.floats(0.01, 2.0)),
        draw(size),
        draw(st.floats(0.0, 0.1)),
        draw(size),
        draw(size),
        draw(st.integers(1, 9)),
    )
    updating = Updating(draw(st.integers(1, 3)), draw(size), row=draw(size), begin=draw(size))
    costs = Costs(draw(st.integers(1, 4)), decoding, updating, sync=draw(size))
    work = Workload(prompts, completions, 5, 4.0, 0.5, 40, 50, scoring_seconds=draw(size))
    one = st.tuples(*[st.integers(1, 40)] * completions)
    number = (STEPS + staleness) * prompts
    return costs, work, staleness, draw(st.lists(one, min_size=number, max_size=number))


@settings(max_examples=150, deadline=None)
@given(clusters())
def test_every_group_is_trained_once_in_order_and_no_older_than_allowed(case):
    costs, work, staleness, lengths = case
    found = simulate(costs, work, steps=STEPS, max_staleness=staleness, lengths=lengths)
    trained = [number for update in found.updates for number in update.groups]
    assert trained == list(range(STEPS * work.prompts))
    for update in found.updates:
        assert update.trained == sum(sum(lengths[number]) for number in update.groups)
        for number, age in zip(update.groups, update.ages, strict=True):
            group = found.groups[number]
            assert 0 <= age <= staleness and age == update.version - group.version
            # sampled after the weights of its version were there, and trained after it was scored
            if group.version:
                assert group.started >= found.updates[group.version - 1].updated
            assert group.started < group.finished and group.left == 0
            assert group.finished + work.scoring_seconds <= update.ready + 1e-9


@settings(max_examples=100, deadline=None)
@given(clusters())
def test_updates_do_not_overlap_and_take_what_they_cost(case):
    costs, work, staleness, lengths = case
    found = simulate(costs, work, steps=STEPS, max_staleness=staleness, lengths=lengths)
    before = 0.0
    for update in found.updates:
        batch = [lengths[number] for number in update.groups]
        assert update.began >= max(before, update.ready) - 1e-9
        assert update.updated - update.began == pytest.approx(costs.update(work, batch))
        assert update.synced - update.updated == pytest.approx(costs.sync)
        before = update.synced


@settings(max_examples=100, deadline=None)
@given(clusters())
def test_without_staleness_a_step_equals_the_closed_form(case):
    costs, work, _, lengths = case
    costs = replace(costs, decoding=replace(costs.decoding, slots=100))
    found = simulate(costs, work, steps=STEPS, lengths=lengths)
    before = 0.0
    for step, update in enumerate(found.updates):
        batch = lengths[step * work.prompts : (step + 1) * work.prompts]
        assert update.synced - before == pytest.approx(synchronous(costs, work, batch))
        before = update.synced


def test_with_one_sampler_and_equal_lengths_the_slower_side_decides():
    """Decoding 4 steps of 1 s, training 3 s, no sync: 7 s in turn; ahead, 4 s, after the first."""
    costs = Costs(1, Decoding(1.0, 0.0), Updating(1, 0.0, begin=3.0))
    work = Workload(1, 1, 1, 4.0, 0.0, 4, 100)
    in_turn = simulate(costs, work, steps=5)
    assert [update.synced for update in in_turn.updates] == pytest.approx([7, 14, 21, 28, 35])
    one = replace(costs, decoding=Decoding(1.0, 0.0, slots=1))
    ahead = simulate(one, work, steps=5, max_staleness=1)
    assert [update.updated for update in ahead.updates] == pytest.approx([7, 11, 15, 19, 23])
    slow = replace(one, updating=Updating(1, 0.0, begin=6.0))
    trained = simulate(slow, work, steps=5, max_staleness=1)
    assert [update.updated for update in trained.updates] == pytest.approx([10, 16, 22, 28, 34])


def test_a_sync_stops_samplers_and_they_read_their_cache_again():
    """Group 1 starts with group 0 and would be done at 6; the sync takes 5, and its cache 0.5 a token to read again."""
    costs = Costs(2, Decoding(1.0, 0.0, prompt=0.0), Updating(1, 0.0, begin=1.0), sync=5.0)
    work = Workload(1, 1, 10, 4.0, 0.0, 4, 100)
    found = simulate(costs, work, steps=2, max_staleness=1, lengths=[(2,), (6,), (1,)])
    assert found.updates[0].updated == pytest.approx(3)
    assert found.groups[1].finished == pytest.approx(6 + 5)
    again = replace(costs, decoding=Decoding(1.0, 0.0, prompt=0.5))
    found = simulate(again, work, steps=2, max_staleness=1, lengths=[(2,), (6,), (1,)])
    # both read a prompt of 10 tokens for 5 s; the update is done at 5 + 2 + 1, when group 1 has 3 tokens and its prompt
    assert found.groups[1].finished == pytest.approx(5 + 6 + 5 + 0.5 * 13)


def test_age_counts_from_the_first_completion_of_a_group():
    """One slot: group 1 starts at 4, before the update of group 0 is done, its second completion at 6, after that."""
    costs = Costs(1, Decoding(1.0, 0.0, slots=1), Updating(1, 0.0, begin=1.0))
    work = Workload(1, 2, 1, 2.0, 0.0, 4, 100)
    found = simulate(costs, work, steps=2, max_staleness=1, lengths=[(2, 2)] * 3)
    assert found.groups[1].started == 4 and found.updates[0].updated == 5
    assert [update.ages for update in found.updates] == [(0,), (1,)]


def test_sequences_wait_for_a_slot():
    """Two of three start; the third when the shorter one is done at 2: 2 + 4."""
    costs = Costs(1, Decoding(1.0, 0.0, slots=2), Updating(1, 0.0))
    work = Workload(1, 3, 1, 4.0, 0.0, 4, 100)
    assert simulate(costs, work, steps=1, lengths=[(2, 5, 4)]).updates[0].ready == pytest.approx(6)


def test_seconds_of_sampling_are_those_of_the_mean_sampler():
    costs = Costs(2, Decoding(1.0, 0.0), Updating(1, 0.0, begin=3.0))
    work = Workload(2, 1, 1, 4.0, 0.0, 9, 100)
    assert simulate(costs, work, steps=1, lengths=[(2,), (6,)]).sampling == pytest.approx((4,))


def duration(costs, work, staleness, steps=12):
    lengths = list(islice(work.groups(3), (steps + staleness) * work.prompts))
    return simulate(costs, work, steps=steps, max_staleness=staleness, lengths=lengths).updates[-1].synced


WORK = Workload(16, 4, prompt_tokens=50, mean_tokens=200.0, spread=1.0, max_tokens=2000, microbatch_tokens=4096)
COSTS = Costs(4, Decoding(0.02, 1e-3, 1e-6, 1e-4, slots=16), Updating(4, 2e-3, begin=0.5), sync=0.3)


def test_more_staleness_samplers_or_slots_take_no_longer():
    by_age = [duration(COSTS, WORK, staleness) for staleness in (0, 1, 2, 4)]
    assert by_age == sorted(by_age, reverse=True) and by_age[0] > 1.3 * by_age[-1]
    for staleness in (0, 2):
        by_samplers = [duration(replace(COSTS, samplers=number), WORK, staleness) for number in (2, 4, 8)]
        assert by_samplers == sorted(by_samplers, reverse=True)


@pytest.mark.parametrize("staleness", [0, 2])
def test_slower_parts_take_longer(staleness):
    now = duration(COSTS, WORK, staleness)
    slow = replace(COSTS.decoding, step=0.04), replace(COSTS.decoding, cached=1e-5), replace(COSTS.decoding, slots=4)
    assert all(duration(replace(COSTS, decoding=decoding), WORK, staleness) > now for decoding in slow)
    assert duration(replace(COSTS, sync=3.0), WORK, staleness) > now
    assert duration(replace(COSTS, updating=Updating(4, 2e-2)), WORK, staleness) > now
    assert duration(COSTS, replace(WORK, scoring_seconds=5.0), 0) > duration(COSTS, WORK, 0)
