import doctest

import pytest
import torch

from posttrain.objectives import advantages as outcomes
from posttrain.objectives.advantages import group_normalised


def test_a_score_that_does_not_apply_does_not_count():
    nan = float("nan")
    known = group_normalised(torch.tensor([1.0, 0.0, 0.5]))
    found = outcomes.applicable_normalised(torch.tensor([[1.0, nan, 0.0, 0.5], [nan, 0.5, nan, nan], [nan] * 4]))
    torch.testing.assert_close(found[0], torch.tensor([known[0], 0.0, known[1], known[2]]))
    assert not found[1:].any()
    assert not outcomes.applicable_normalised(torch.tensor([0.1, nan, 0.1, 0.1]), epsilon=0.0).any()


def test_a_group_in_which_nothing_is_right_has_no_success_rate_to_divide_by():
    rewards = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [-1.0, 0.5, 0.0]])
    found = outcomes.by_success_rate(rewards)
    assert found.tolist() == [
        [0.0] * 3,
        [0.0] * 3,
        [pytest.approx(2.0), pytest.approx(-1.0), pytest.approx(-1.0)],
        [0.0] * 3,
    ]


def test_pass_at_one_is_the_population_normalised_reward_and_k_has_bounds():
    right = torch.tensor([True, False, False, True, False])
    expected = (right.double() - 0.4) / (0.4 * 0.6) ** 0.5
    torch.testing.assert_close(outcomes.pass_at_k(right, 1), expected)
    assert not outcomes.pass_at_k(right, 4).any()  # every set of four has a right one
    assert not outcomes.pass_at_k(torch.zeros(5, dtype=torch.bool), 2).any()
    for k in (0, 6):
        with pytest.raises(ValueError, match="so k is 1 to 5"):
            outcomes.pass_at_k(right, k)


def test_docstring_examples_run():
    results = doctest.testmod(outcomes)
    assert results.failed == 0 and results.attempted > 0
