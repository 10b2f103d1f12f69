"""The cost model against arithmetic by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.planning.cluster.coefficients import Costs, Decoding, Updating
from posttrain.planning.cluster.workload import Workload
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
    """950 tokens are 10 rows of 95; of 4 trainers two have three rows: 3 (95 x 0.1 + 7 x 0.01 + 2) + 9."""
    updating = Updating(4, token=0.1, square=0.01, row=2.0, begin=9.0)
    assert updating.seconds(950, 70.0, 100) == pytest.approx(3 * (9.5 + 0.07 + 2) + 9)


def test_communication_of_a_row_may_be_hidden_behind_its_computation():
    assert Updating(1, token=0.1, row=4.0, hidden=True).seconds(100, 0.0, 100) == pytest.approx(10)
    assert Updating(1, token=0.1, row=40.0, hidden=True).seconds(100, 0.0, 100) == pytest.approx(40)
    assert Updating(1, token=0.1, row=4.0).seconds(100, 0.0, 100) == pytest.approx(14)


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
