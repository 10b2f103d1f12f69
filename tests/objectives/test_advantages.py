import doctest

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from posttrain.objectives import advantages
from tests.references import advantages as reference

FUNCTIONS = [advantages.mean_centred, advantages.leave_one_out, advantages.group_normalised]
REWARDS = st.lists(st.integers(-8, 8).map(lambda n: n / 4), min_size=2, max_size=9)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def close(actual, expected):
    torch.testing.assert_close(actual, tensor(expected), rtol=1e-11, atol=1e-11)


@given(REWARDS)
def test_matches_the_papers_written_with_floats(rewards):
    close(advantages.mean_centred(tensor(rewards)), reference.mean_centred(rewards))
    close(advantages.leave_one_out(tensor(rewards)), reference.leave_one_out(rewards))
    for epsilon, ddof in ((1e-4, 1), (0.5, 0)):
        actual = advantages.group_normalised(tensor(rewards), epsilon=epsilon, ddof=ddof)
        close(actual, reference.group_normalised(rewards, epsilon, ddof))


def test_the_default_divides_by_the_samples_standard_deviation():
    # mean 1/4, squared deviations 9/16 + 3/16 = 3/4, divided by G - 1 = 3: std 1/2.
    expected = [0.75 / 0.5001, -0.25 / 0.5001, -0.25 / 0.5001, -0.25 / 0.5001]
    close(advantages.group_normalised(tensor([1.0, 0.0, 0.0, 0.0])), expected)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("reward", [0.0, 0.1, 1 / 3, -7.3, 1e6 + 0.1])
@pytest.mark.parametrize("size", [2, 3, 7])
def test_equal_rewards_give_exactly_zero(function, reward, size):
    for dtype in (torch.float32, torch.float64):
        assert torch.equal(function(torch.full((size,), reward, dtype=dtype)), torch.zeros(size, dtype=dtype))


def test_equal_rewards_give_zero_without_an_epsilon_too():
    assert advantages.group_normalised(tensor([1.0, 1.0]), epsilon=0.0).tolist() == [0.0, 0.0]


@given(REWARDS, st.integers(-4, 4))
def test_a_shift_of_all_rewards_changes_nothing(rewards, shift):
    for function in FUNCTIONS:
        close(function(tensor(rewards) + shift), function(tensor(rewards)).tolist())


@given(REWARDS, st.sampled_from([0.25, 2.0, 16.0]))
def test_a_scale_passes_through_the_means_and_vanishes_in_the_normalised(rewards, scale):
    rewards = tensor(rewards)
    for function in (advantages.mean_centred, advantages.leave_one_out):
        close(function(rewards * scale), (function(rewards) * scale).tolist())
    normalised = advantages.group_normalised(rewards, epsilon=0.0)
    close(advantages.group_normalised(rewards * scale, epsilon=0.0), normalised.tolist())


@given(REWARDS.flatmap(lambda rewards: st.tuples(st.just(rewards), st.permutations(range(len(rewards))))))
def test_the_order_within_a_group_does_not_matter(case):
    rewards, order = case
    for function in FUNCTIONS:
        close(function(tensor(rewards)[order]), function(tensor(rewards))[order].tolist())


@given(REWARDS)
def test_advantages_sum_to_zero_and_keep_the_order_of_the_rewards(rewards):
    assume(len(set(rewards)) > 1)
    best, worst = rewards.index(max(rewards)), rewards.index(min(rewards))
    for function in FUNCTIONS:
        values = function(tensor(rewards))
        assert values.sum().item() == pytest.approx(0.0, abs=1e-9)
        assert values[best] > 0 > values[worst]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_group_never_sees_another_groups_rewards(function):
    batch = tensor([[1.0, 0.0, 0.0], [5.0, 5.0, 5.0], [2.0, 0.0, 4.0]])
    for group, row in zip(batch, function(batch), strict=True):
        assert torch.equal(function(group), row)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_group_of_one_is_refused(function):
    with pytest.raises(ValueError, match=r"at least 2 completions; got rewards of shape \(4, 1\)"):
        function(torch.zeros(4, 1))


def test_a_bucket_is_all_rows_of_one_kind():
    rewards = tensor([1.0, 0.0, 0.0, 0.0, 3.0, 5.0])
    found = advantages.bucket_normalised(rewards, ["a", "a", "b", "b", "a", "a"], epsilon=0.5)
    close(found[[0, 1, 4, 5]], reference.group_normalised([1.0, 0.0, 3.0, 5.0], 0.5, 1))
    assert not found[2:4].any()  # its kind earned nothing, so nothing is better


def test_a_row_that_is_alone_in_its_bucket_is_compared_with_nothing():
    found = advantages.bucket_normalised(tensor([1.0, 0.0, 4.0]), ["a", "a", "b"], epsilon=0.0)
    close(found, [0.5**0.5, -(0.5**0.5), 0.0])
    with pytest.raises(ValueError, match="3 rows need as many buckets; got 1"):
        advantages.bucket_normalised(tensor([1.0, 0.0, 4.0]), ["a"])


@given(REWARDS)
def test_the_batch_s_normalisation_is_a_group_s_of_everything(rewards):
    expected = reference.group_normalised(rewards, 1e-4, 1)
    close(advantages.batch_normalised(tensor(rewards)), expected)
    assert advantages.batch_normalised(tensor(rewards[:1])).tolist() == [0.0]
    assert advantages.batch_normalised(tensor([])).tolist() == []


def test_docstring_examples_run():
    results = doctest.testmod(advantages, extraglobs={"torch": torch})
    assert results.failed == 0 and results.attempted > 0


ROWS = st.lists(st.tuples(st.integers(-8, 8).map(lambda n: n / 4), st.sampled_from("abc")), min_size=1, max_size=12)


@given(ROWS, st.sampled_from([0.25, 0.5, 0.95]))
def test_moving_baselines_are_the_paper_written_with_floats(rows, decay):
    returns, keys = (list(column) for column in zip(*rows, strict=True))
    found, after = advantages.moving_baselines(tensor(returns), keys, {}, decay=decay)
    expected = reference.moving(returns, keys, decay)
    close(found, expected)
    last = {key: expected[i] for i, key in enumerate(keys)}
    assert after == pytest.approx(last, rel=1e-11, abs=1e-11)


@given(ROWS, st.integers(0, 12))
def test_moving_baselines_go_on_where_they_stopped_to_the_last_bit(rows, cut):
    returns, keys = (list(column) for column in zip(*rows, strict=True))
    whole, after = advantages.moving_baselines(tensor(returns), keys, {}, decay=0.95)
    first, between = advantages.moving_baselines(tensor(returns[:cut]), keys[:cut], {}, decay=0.95)
    kept = dict(between)
    second, last = advantages.moving_baselines(tensor(returns[cut:]), keys[cut:], between, decay=0.95)
    assert torch.equal(torch.cat([first, second]), whole) and last == after
    assert between == kept  # what was there before stays as it is


def test_moving_baselines_by_hand():
    found, after = advantages.moving_baselines(
        tensor([1.0, -1.0, 1.0, 0.0]), ["x", "o", "x", "o"], {"o": -1.0}, decay=0.75
    )
    close(found, [0.25, -1.0, 0.4375, -0.75])
    assert after == {"o": -0.75, "x": 0.4375}
    with pytest.raises(ValueError, match="zip"):
        advantages.moving_baselines(tensor([1.0, 2.0]), ["x"], {}, decay=0.5)
