"""The cost model against arithmetic by hand; lengths of completions, and what a batch of them has."""

from itertools import islice
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.planning.cluster.coefficients import Costs, Decoding, Updating, Workload
from tests.planning.cluster.closed_form import shares, synchronous

DECODING = Decoding(step=1.0, sequence=0.1, cached=0.01, prompt=0.5, begin=3.0, slots=4)
WORK = Workload(2, 2, prompt_tokens=10, mean_tokens=3.0, spread=0.0, max_tokens=9, microbatch_tokens=100)


def test_a_decoding_step_is_weights_arithmetic_and_cache():
    """Two sequences, 20 tokens cached: 1 + 0.2 + 0.2 at the start; three steps add 0.02 (0 + 3) / 2 x 3 = 0.09."""
    assert DECODING.seconds(3, 2, 20) == pytest.approx(3 * 1.4 + 0.01 * 2 * 9 / 2)


@given(
    st.floats(0, 1e4), st.integers(1, 256), st.floats(0, 1e6), st.floats(0, 1), st.floats(1e-6, 1), st.floats(0, 1e-3)
)
def test_steps_undo_seconds(steps, sequences, tokens, step, sequence, cached):
    decoding = Decoding(step, sequence, cached)
    assert decoding.steps(decoding.seconds(steps, sequences, tokens), sequences, tokens) == pytest.approx(steps)


def test_an_update_takes_as_long_as_its_slowest_rank():
    """950 tokens are 10 rows of 95; of 4 trainers two have three rows: 3 (95 x 0.1 + 7 x 0.01) + 9."""
    updating = Updating(4, token=0.1, square=0.01, row=2.0, begin=9.0)
    assert updating.seconds(950, 70.0, 100) == pytest.approx(3 * (9.5 + 0.07) + 9)


def test_communication_of_a_row_is_hidden_behind_its_computation():
    assert Updating(1, token=0.1, row=4.0).seconds(100, 0.0, 100) == pytest.approx(10)
    assert Updating(1, token=0.1, row=40.0).seconds(100, 0.0, 100) == pytest.approx(40)


def test_a_synchronous_step_is_the_slowest_sampler_then_scoring_update_and_sync():
    """Sampler 0 has lengths 3 and 5: begin 3, prompt 10 x 0.5, steps 5 + 0.1 x 8, cache 0.01 (30 + 4.5 + 50 + 12.5)."""
    costs = Costs(2, DECODING, Updating(1, token=0.1), sync=2.0)
    work = Workload(2, 2, 10, 3.0, 0.0, 9, 1000, scoring_seconds=1.0)
    sampling = 3 + 5 + 5 + 0.8 + 0.97
    assert synchronous(costs, work, [(3, 5), (1, 2)]) == pytest.approx(sampling + 1 + 0.1 * (11 + 20) + 2)


def test_closed_form_refuses_sequences_that_wait_for_a_slot():
    with pytest.raises(AssertionError):
        synchronous(Costs(1, DECODING, Updating(1, 0.1)), WORK, [(1,) * 5])


def test_a_sampler_without_sequences_takes_no_time():
    costs = Costs(3, DECODING, Updating(1, token=0.0))
    two = Costs(2, DECODING, Updating(1, token=0.0))
    assert synchronous(costs, WORK, [(3, 5)]) == synchronous(two, WORK, [(3, 5)])


def test_shares_are_equal_and_keep_groups_together():
    assert shares([(1, 2), (3, 4), (5, 6)], 2) == [[(0, 1), (0, 2), (1, 3)], [(1, 4), (2, 5), (2, 6)]]
    assert [len(share) for share in shares([(1,) * 10], 4)] == [3, 3, 3, 1]


LONG = Workload(64, 8, prompt_tokens=100, mean_tokens=500.0, spread=0.8, max_tokens=10**6, microbatch_tokens=4096)


def test_lengths_have_the_mean_that_is_asked_for():
    """Of 32,000 draws the mean is within 2%: their standard deviation is 0.95 of the mean, 0.5% of that of the mean."""
    drawn = [length for group in islice(LONG.groups(), 4000) for length in group]
    assert fmean(drawn) == pytest.approx(500, rel=0.02)
    squares = fmean(length**2 for length in drawn)
    assert squares / fmean(drawn) == pytest.approx(500 * 2.718281828**0.64, rel=0.08)  # mean exp(s^2)


def test_lengths_are_cut_and_without_spread_alike():
    cut = Workload(2, 4, 10, 500.0, 0.8, max_tokens=600, microbatch_tokens=4096)
    drawn = [length for group in islice(cut.groups(), 500) for length in group]
    assert max(drawn) == 600 and min(drawn) >= 1
    same = Workload(2, 4, 10, 500.0, 0.0, max_tokens=600, microbatch_tokens=4096)
    assert list(islice(same.groups(), 2)) == [(500,) * 4] * 2


def test_groups_repeat_themselves_with_a_seed():
    assert list(islice(LONG.groups(1), 3)) == list(islice(LONG.groups(1), 3)) != list(islice(LONG.groups(2), 3))


def test_a_sequence_under_way_is_met_at_its_middle_and_in_proportion_to_its_length():
    assert LONG.resident() == pytest.approx(100 + 500 * 2.718281828**0.64 / 2)
    assert Workload(1, 1, 10, 300.0, 0.0, 600, 4096).resident() == 10 + 150
    assert Workload(1, 1, 10, 300.0, 2.0, 600, 4096).resident() == 10 + 300  # no longer than the longest


def test_a_prompt_is_trained_once_for_its_group_and_read_by_every_completion():
    squares = (12**2 + 13**2 - 10**2) + (14**2 + 11**2 - 10**2)

    def seconds(**of):
        work = Workload(2, 2, prompt_tokens=10, mean_tokens=3.0, spread=0.0, max_tokens=9, microbatch_tokens=100)
        return Costs(1, DECODING, Updating(1, **of)).update(work, [(2, 3), (4, 1)])

    assert seconds(token=1.0) == 2 * 10 + 10 and seconds(token=0.0, square=1.0) == squares
