import doctest
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from posttrain.objectives import values

NUMBERS = st.floats(-3, 3)
COMPLETIONS = st.lists(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=5), min_size=1, max_size=3)


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def close(actual, expected):
    torch.testing.assert_close(actual, tensor(expected), rtol=1e-10, atol=1e-10)


def flat(completions):
    """Rewards, values and rows of completions, each a list of (reward, value)."""
    row = torch.tensor([number for number, said in enumerate(completions) for _ in said])
    rewards, expected = ([token[i] for said in completions for token in said] for i in range(2))
    return tensor(rewards), tensor(expected), row


def test_returns_look_ahead_to_the_end_of_their_own_completion():
    rewards, row = tensor([1.0, 2.0, 4.0, 8.0, 16.0]), torch.tensor([0, 0, 1, 1, 1])
    close(values.returns(rewards, row), [3.0, 2.0, 28.0, 24.0, 16.0])
    close(values.returns(rewards, row, discount=0.5), [2.0, 2.0, 12.0, 16.0, 16.0])
    close(values.returns(rewards, row, discount=0.0), rewards.tolist())
    close(values.returns(rewards, row, discount=tensor([0.5, 9.0, 1.0, 0.0, 9.0])), [2.0, 2.0, 12.0, 8.0, 16.0])
    assert values.returns(tensor([]), torch.tensor([], dtype=torch.long)).tolist() == []


def test_the_last_token_of_each_completion():
    assert values.last_of_rows(torch.tensor([2, 2, 0, 1, 1])).tolist() == [False, True, True, False, True]


@given(COMPLETIONS, st.floats(0.1, 1), st.floats(0, 1))
def test_gae_is_the_sum_of_the_paper(completions, gamma, lam):
    expected = []
    for said in completions:
        for t in range(len(said)):
            total = 0.0
            for k in range(len(said) - t):
                reward, value = said[t + k]
                ahead = said[t + k + 1][1] if t + k + 1 < len(said) else 0.0
                total += (gamma * lam) ** k * (reward + gamma * ahead - value)
            expected.append(total)
    rewards, before, row = flat(completions)
    close(values.gae(rewards, before, row, discount=gamma, lam=lam), expected)
    close(values.gae(rewards, before, row, discount=gamma, lam=torch.full_like(rewards, lam)), expected)


@given(COMPLETIONS, st.floats(0.1, 1))
def test_with_lambda_one_it_is_the_return_less_the_value(completions, gamma):
    rewards, before, row = flat(completions)
    expected = values.returns(rewards, row, discount=gamma) - before
    close(values.gae(rewards, before, row, discount=gamma, lam=1.0), expected.tolist())


@given(COMPLETIONS)
def test_a_critic_that_is_right_leaves_nothing(completions):
    rewards, _, row = flat(completions)
    for lam in (0.0, 0.7, 1.0):
        close(values.gae(rewards, values.returns(rewards, row), row, lam=lam), [0.0] * len(row))


def test_a_lambda_by_length():
    row = torch.tensor([0] * 40 + [1] * 5)
    found = values.length_adaptive_lambda(row, 0.05)
    assert found[0].item() == pytest.approx(1 - 1 / (0.05 * 40)) and found[39] == found[0]
    assert not found[40:].any()  # 1 - 1/0.25 would be below 0
    with pytest.raises(ValueError, match="alpha must be above 0"):
        values.length_adaptive_lambda(row, 0.0)


def test_what_a_step_changed_is_that_of_all_its_tokens():
    step, row = torch.tensor([0, 0, 1, 2, 0, 0, 0]), torch.tensor([0, 0, 0, 0, 1, 1, 1])
    worth, earned = tensor([0.5, 0.5, 0.75, 0.25, 0.5, 0.5, 0.5]), tensor([1.0] * 4 + [0.0] * 3)
    close(values.step_gains(worth, step, row, earned), [0.25, 0.25, -0.5, 0.75, -0.5, -0.5, -0.5])


def test_steps_of_neighbouring_completions_are_not_one():
    found = values.step_gains(tensor([0.5, 0.25]), torch.tensor([0, 0]), torch.tensor([0, 1]), tensor([1.0, 0.0]))
    close(found, [0.5, -0.25])


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=8), st.floats(0.05, 1))
def test_the_value_loss_in_plain_floats(tokens, clip):
    now, old, target = tensor(tokens).unbind(1)
    found = values.clipped_value_loss(now, old, target, clip=clip)
    expected, held = [], []
    for v, before, goal in tokens:
        near = min(max(v, before - clip), before + clip)
        expected.append(0.5 * max((v - goal) ** 2, (near - goal) ** 2))
        held.append(float((near - goal) ** 2 > (v - goal) ** 2 and abs(v - before) > clip))
    close(found.loss, expected)
    assert found.clipped.tolist() == held


def test_the_gradient_of_the_value_loss_reaches_the_values_alone_and_none_where_the_clip_holds():
    now, old, target = (tensor(x).requires_grad_() for x in ([1.0, 0.1, 1.0], [0.0, 0.0, 0.0], [2.0, 2.0, -2.0]))
    found = values.clipped_value_loss(now, old, target, clip=0.5)
    assert torch.autograd.grad(found.loss.sum(), (now, old, target), allow_unused=True) == (
        pytest.approx([0.0, -1.9, 3.0]),
        None,
        None,
    )
    assert found.clipped.tolist() == [1.0, 0.0, 0.0]
    close(values.clipped_value_loss(now, old, target, clip=math.inf).loss.detach(), [0.5, 1.805, 4.5])


def test_a_clip_that_does_not_hold_is_not_counted():
    near = torch.linspace(1e-9, 2e-9, 50, dtype=torch.float64)  # what is taken from 0.7 and put back is not quite these
    back = 0.7 + (near - 0.7)
    assert (back > near).any()
    found = values.clipped_value_loss(near, torch.full_like(near, 0.7), -near, clip=math.inf)
    assert not found.clipped.any()


def test_explained_variance():
    earned = tensor([0.0, 1.0, 2.0])
    assert values.explained_variance(earned, earned) == 1.0
    assert values.explained_variance(tensor([5.0, 5.0, 5.0]), earned) == 0.0
    assert values.explained_variance(-earned, earned) == -3.0
    assert values.explained_variance(earned, tensor([1.0, 1.0, 1.0])) == 0.0
    assert values.explained_variance(earned, tensor([0.1, 0.1 + 1e-17, 0.1 - 1e-16])) == 0.0  # rounding


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: values.gae(x, x[:1], torch.tensor([0, 0])),
        lambda x: values.step_gains(x, torch.tensor([0, 0]), torch.tensor([0, 0]), x[:1]),
        lambda x: values.clipped_value_loss(x, x, x[:1], clip=0.2),
    ],
)
def test_unequal_shapes_are_refused_and_not_broadcast(ask):
    with pytest.raises((ValueError, TypeCheckError)):
        ask(tensor([0.0, 1.0]))


def test_examples():
    found = doctest.testmod(values)
    assert found.attempted and not found.failed
