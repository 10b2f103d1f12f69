import inspect
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.objectives.reward_models import rating_error, shares
from tests.references.rewards import pearson

numbers = st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=3, max_size=8)


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_error_is_the_mean_over_what_was_rated():
    predicted = tensor([[1.0, 5.0, 0.0], [2.0, 2.0, 2.0]]).requires_grad_()
    rated = tensor([[3.0, math.nan, 1.0], [2.0, math.nan, math.nan]])
    found = rating_error(predicted, rated, ~rated.isnan())
    assert found.tolist() == [(4.0 + 1.0) / 2, 0.0]
    found.sum().backward()
    assert predicted.grad.tolist() == [[-2.0, 0.0, -1.0], [0.0, 0.0, 0.0]]


def test_a_response_that_nobody_rated_and_other_shapes_are_refused():
    one = tensor([[1.0]])
    with pytest.raises(ValueError, match="without any rating"):
        rating_error(one, one, torch.tensor([[False]]))
    with pytest.raises(ValueError, match="one shape"):  # without the type checker of the tests, which sees it first
        inspect.unwrap(rating_error)(one, tensor([[1.0, 2.0]]), torch.tensor([[True]]))


@given(numbers)
def test_nothing_of_the_one_is_left_in_the_others(rows):
    first, apart = ([row[i] for row in rows] for i in (0, 1))
    if max(apart) - min(apart) < 0.1 or max(first) - min(first) < 0.1:
        return
    found = shares(tensor(rows), 1).tolist()
    assert found[1] == pytest.approx(1.0)
    left = [a - found[0] * b for a, b in rows]
    if max(left) - min(left) > 1e-6:
        assert pearson(left, apart) == pytest.approx(0.0, abs=1e-6)


def test_of_what_does_not_vary_nothing_is_taken():
    assert shares(tensor([[1.0, 2.0], [3.0, 2.0]]), 1).tolist() == [0.0, 0.0]
