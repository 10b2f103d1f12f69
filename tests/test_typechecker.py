"""Shape annotations are checked while tests run: a wrong shape in any room turns a test red."""

import pytest
import torch
from jaxtyping import TypeCheckError

from posttrain.objectives import reduce


def test_a_wrong_shape_is_an_error():
    with pytest.raises(TypeCheckError, match="length_N"):
        reduce.sequence_mean(torch.ones(3), torch.zeros(3, 1, dtype=torch.long), 1.0)


def test_a_wrong_dtype_is_an_error():
    with pytest.raises(TypeCheckError, match="length_N"):
        reduce.sequence_mean(torch.ones(3), torch.zeros(3), 1.0)


def test_two_arguments_that_share_a_letter_share_a_length():
    with pytest.raises(TypeCheckError, match="length_N"):
        reduce.sequence_mean(torch.ones(3), torch.zeros(4, dtype=torch.long), 1.0)


def test_annotations_without_a_shape_are_left_to_the_static_checker():
    assert reduce.token_mean(torch.ones(2), denominator=2).item() == 1.0
