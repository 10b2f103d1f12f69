import doctest
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.objectives import pairwise
from posttrain.objectives.pairwise import bradley_terry, implicit_reward, log_odds, prospect, squared_distance, wins
from tests.references import pairwise as reference

REWARDS = st.lists(st.tuples(*[st.floats(-4, 4)] * 3), min_size=1, max_size=5)


def columns(rows):
    return [torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True)]


@given(REWARDS, st.floats(0, 0.49))
def test_matches_the_equation_written_with_floats(rows, smoothing):
    chosen, rejected, margin = columns(rows)
    expected = reference.bradley_terry(*zip(*rows, strict=True), smoothing)
    found = bradley_terry(chosen, rejected, margin_B=margin, label_smoothing=smoothing)
    assert found.tolist() == pytest.approx(expected, rel=1e-9)


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=1, max_size=6))
def test_a_tie_is_half_a_win_whichever_of_the_two_is_called_first(rows):
    one, other = columns(rows)
    assert wins(one, other).tolist() == [1.0 if a > b else 0.5 if a == b else 0.0 for a, b in rows]
    assert (wins(one, other) + wins(other, one)).tolist() == [1.0] * len(rows)


def test_wins_carry_no_gradient_know_infinity_and_ask_for_one_shape():
    one = torch.tensor([math.inf, -math.inf, math.inf], requires_grad=True)
    found = wins(one, torch.tensor([math.inf, 0.0, 0.0]))
    assert found.tolist() == [0.5, 0.0, 1.0] and not found.requires_grad
    with pytest.raises(ValueError, match="one_B"):
        wins(torch.zeros(2), torch.zeros(1))


def test_even_odds_cost_the_logarithm_of_two_and_far_apart_ones_stay_finite():
    found = bradley_terry(torch.tensor([1.0, 500.0, -500.0]), torch.tensor([1.0, -500.0, 500.0]))
    assert found.tolist() == pytest.approx([math.log(2), 0.0, 1000.0])


def test_the_gradient_is_how_likely_the_other_choice_was_thought():
    chosen, rejected = (torch.tensor([x], dtype=torch.float64, requires_grad=True) for x in (0.7, -0.2))
    bradley_terry(chosen, rejected).sum().backward()
    other = 1 / (1 + math.exp(0.9))
    assert (chosen.grad.item(), rejected.grad.item()) == pytest.approx((-other, other))


def test_smoothing_puts_the_minimum_where_the_odds_are_those_of_the_labels():
    h = torch.tensor([math.log(0.9 / 0.1)], dtype=torch.float64, requires_grad=True)
    bradley_terry(h, torch.zeros_like(h), label_smoothing=0.1).sum().backward()
    assert h.grad.item() == pytest.approx(0.0, abs=1e-12)


@given(REWARDS, st.floats(-3, 3))
def test_only_differences_count(rows, shift):
    chosen, rejected, _ = columns(rows)
    torch.testing.assert_close(bradley_terry(chosen + shift, rejected + shift), bradley_terry(chosen, rejected))


def test_the_implicit_reward_is_beta_times_the_log_ratio_and_only_the_policy_learns():
    logprob, anchor = torch.tensor([-3.0, -1.0], requires_grad=True), torch.tensor([-5.0, -0.5])
    found = implicit_reward(logprob, anchor, 0.1)
    assert found.tolist() == pytest.approx([0.2, -0.05])
    found.sum().backward()
    assert logprob.grad.tolist() == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize("smoothing", [-0.1, 0.5, math.nan])
def test_a_smoothing_that_is_none_is_refused(smoothing):
    with pytest.raises(ValueError, match="label_smoothing"):
        bradley_terry(torch.zeros(1), torch.zeros(1), label_smoothing=smoothing)


def test_unequal_shapes_are_refused_and_not_broadcast():
    with pytest.raises(ValueError, match="rejected_B"):
        bradley_terry(torch.zeros(3), torch.zeros(1))
    with pytest.raises(ValueError, match="margin_B"):
        bradley_terry(torch.zeros(3), torch.zeros(3), margin_B=torch.zeros(1))
    with pytest.raises(ValueError, match="reference_B"):
        implicit_reward(torch.zeros(3), torch.zeros(1), 0.1)


def test_a_squared_distance_pulls_back_what_went_too_far():
    value = torch.tensor([7.0, 3.0], requires_grad=True)
    found = squared_distance(value, 5.0)
    found.sum().backward()
    assert (found.tolist(), value.grad.tolist()) == ([4.0, 4.0], [4.0, -4.0])


@pytest.mark.parametrize("probability", [1e-12, 0.2, 0.4999, 0.5001, 0.9, 1 - 1e-9])
def test_log_odds_are_exact_at_both_ends(probability):
    x = torch.tensor([math.log(probability)], dtype=torch.float64, requires_grad=True)
    found = log_odds(x)
    at = min(probability, 1 - 1e-7)  # as near to 1 as it goes
    assert found.item() == pytest.approx(math.log(at) - math.log1p(-at), rel=1e-6)
    (grad,) = torch.autograd.grad(found.sum(), x)
    assert grad.item() == pytest.approx(1 / (1 - probability) if probability == at else 0.0, rel=1e-6)


def test_the_odds_of_what_is_certain_are_finite_and_so_is_their_gradient():
    x = torch.zeros(1, requires_grad=True)
    found = log_odds(x)
    found.sum().backward()
    assert 15 < found.item() < 17 and x.grad.isfinite().all()


def test_gains_and_losses_count_from_the_reference_point_and_lose_weight_far_from_it():
    reward = torch.tensor([1.0, 1.0, 30.0, 30.0], dtype=torch.float64, requires_grad=True)
    good = torch.tensor([True, False, True, False])
    found = prospect(reward, good, 1.0, good=2.0, bad=3.0)
    found.sum().backward()
    assert found.tolist() == pytest.approx([1.0, 1.5, 0.0, 3.0], abs=1e-9)
    assert reward.grad.tolist() == pytest.approx([-0.5, 0.75, 0.0, 0.0], abs=1e-9)
    with pytest.raises(ValueError, match="good_B"):
        prospect(reward, good[:1], 0.0, good=1.0, bad=1.0)


def test_docstring_examples_run():
    results = doctest.testmod(pairwise)
    assert results.failed == 0 and results.attempted > 0


def test_log_odds_do_not_cancel_in_single_precision():
    assert log_odds(torch.tensor([-2e-7])).item() == pytest.approx(-math.log(2e-7), abs=1e-3)
