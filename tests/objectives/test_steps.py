"""What a row earns besides its steps, and which steps a token is advantaged by."""

import doctest

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.objectives import shaping
from posttrain.objectives.reward_models import step_correctness
from posttrain.objectives.shaping import outcome_rewards, process_advantages
from tests.references import process as reference


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def rows(*lengths: int) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def test_what_is_left_is_what_steps_do_not_pay():
    found = outcome_rewards(tensor([2.0, -1.0, 0.5]), tensor([0.5, 0.0, 0.25, 1.0, -2.0]), rows(3, 2, 0))
    assert found.tolist() == [1.25, 0.0, 0.5]


@pytest.mark.parametrize("size", [3, 7, 49])
def test_a_row_that_earns_by_its_steps_alone_has_nothing_left_and_no_rounding(size):
    parts = [1 / size] * size
    total = outcome_rewards(tensor([sum(parts)]), tensor(parts[::-1]), rows(size))
    assert total.tolist() == [0.0]
    assert outcome_rewards(tensor([0.1 + 0.2 + 0.3]), tensor([0.3, 0.2]), rows(2)).item() == 0.1


def test_a_row_without_steps_keeps_its_reward_to_the_last_bit():
    rewards = tensor([1 / 3, 2 / 7])
    assert torch.equal(outcome_rewards(rewards, tensor([0.0, 0.0, 0.1]), rows(2, 1))[:1], rewards[:1])


@given(st.lists(st.lists(st.floats(-2, 2), min_size=1, max_size=5), min_size=1, max_size=4), st.data())
def test_steps_and_what_is_left_are_the_reward(paid, data):
    rewards = tensor([data.draw(st.floats(-3, 3)) for _ in paid])
    step_N, row_N = tensor([x for row in paid for x in row]), rows(*map(len, paid))
    left = outcome_rewards(rewards, step_N, row_N)
    for number, row in enumerate(paid):
        assert left[number].item() + sum(row) == pytest.approx(rewards[number].item(), abs=1e-11)


@given(st.lists(st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=6), min_size=1, max_size=4))
def test_a_token_has_the_steps_that_end_at_it_or_later(normalised):
    found = process_advantages(tensor([x for row in normalised for x in row]), rows(*map(len, normalised)))
    expected = [value for row in normalised for value in reference.from_here(row)]
    torch.testing.assert_close(found, tensor(expected), rtol=1e-9, atol=1e-9)


def test_docstring_examples_run():
    assert doctest.testmod(shaping).failed == 0


@given(st.lists(st.tuples(st.floats(-20, 20), st.one_of(st.booleans(), st.floats(0, 1))), min_size=1))
def test_the_loss_of_a_step_is_that_of_its_probability(steps_):
    logits, right = zip(*steps_, strict=True)
    found = step_correctness(tensor(logits), tensor(right))
    assert found.tolist() == pytest.approx([reference.correctness(*one) for one in steps_], rel=1e-6, abs=1e-8)


def test_a_wrong_step_pulls_its_logit_down_and_shapes_must_agree():
    logits = torch.tensor([0.0, 0.0], requires_grad=True)
    step_correctness(logits, torch.tensor([True, False])).sum().backward()
    assert logits.grad is not None and logits.grad.tolist() == [-0.5, 0.5]
    logits.grad = None
    step_correctness(logits, torch.tensor([0.75, 0.25])).sum().backward()
    assert logits.grad is not None and logits.grad.tolist() == [-0.25, 0.25]
    with pytest.raises(ValueError, match="right_S"):
        step_correctness(torch.zeros(2), torch.tensor([True]))
