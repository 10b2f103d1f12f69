import inspect
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.objectives.reward_models import centring, correlation, length_apart, overlap
from tests.references.rewards import pearson

numbers = st.lists(st.floats(-10, 10), min_size=3, max_size=8)


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_centring_pulls_both_rewards_to_each_other_s_negative():
    chosen, rejected = tensor([2.0, -1.0]).requires_grad_(), tensor([1.0, 1.0]).requires_grad_()
    found = centring(chosen, rejected)
    assert found.tolist() == [9.0, 0.0]
    found.sum().backward()
    assert chosen.grad.tolist() == rejected.grad.tolist() == [6.0, 0.0]


def test_correlation_by_hand():
    assert correlation(tensor([1.0, 2.0, 4.0]), tensor([3.0, 1.0, 2.0])).item() == pytest.approx(
        pearson([1.0, 2.0, 4.0], [3.0, 1.0, 2.0])
    )
    assert correlation(tensor([1.0, 2.0, 3.0]), tensor([2.0, 4.0, 6.0])).item() == pytest.approx(1.0)


@given(numbers, st.floats(-5, 5), st.floats(0.1, 5), st.randoms())
def test_correlation_does_not_depend_on_zero_or_scale(values, shift, scale, random):
    other = [random.uniform(-1, 1) for _ in values]
    if max(values) - min(values) < 1e-2:
        return
    plain = correlation(tensor(values), tensor(other)).item()
    moved = correlation(tensor([scale * v + shift for v in values]), tensor(other)).item()
    assert moved == pytest.approx(plain, abs=1e-6) and abs(plain) <= 1 + 1e-9


def test_what_does_not_vary_correlates_with_nothing_and_has_a_gradient_of_zero():
    still = tensor([2.0, 2.0, 2.0]).requires_grad_()
    found = correlation(still, tensor([1.0, 2.0, 3.0]))
    found.backward()
    assert found.item() == 0.0 and still.grad.tolist() == [0.0, 0.0, 0.0]


def test_length_goes_to_one_head_and_leaves_the_other_whichever_way_that_follows_it():
    n = tensor([1.0, 2.0, 4.0])
    quality, length = tensor([0.5, -1.0, 2.0]), tensor([1.0, 0.0, 3.0])
    expected = abs(pearson(quality.tolist(), n.tolist())) - pearson(length.tolist(), n.tolist())
    assert length_apart(quality, length, n).item() == pytest.approx(expected)
    assert length_apart(-quality, length, n).item() == pytest.approx(expected)
    assert length_apart(quality, -length, n).item() != pytest.approx(expected)


def test_rows_at_right_angles_do_not_overlap():
    assert overlap(tensor([1.0, 2.0]), tensor([2.0, -1.0])).item() == 0.0
    assert overlap(tensor([1.0, 2.0]), tensor([-2.0, -1.0])).item() == pytest.approx(4 / 5)
    assert overlap(tensor([10.0, 20.0]), tensor([-0.2, -0.1])).item() == pytest.approx(4 / 5)


@pytest.mark.parametrize("function", [centring, correlation, overlap])
def test_unequal_shapes_are_refused(function):
    with pytest.raises(ValueError, match="shape"):
        inspect.unwrap(function)(tensor([1.0, 2.0]), tensor([1.0]))  # as it runs outside tests


def test_the_gradient_of_a_correlation_is_its_slope():
    assert torch.autograd.gradcheck(
        correlation, (tensor([1.0, 2.0, 4.0]).requires_grad_(), tensor([3.0, 1.0, math.pi]))
    )
