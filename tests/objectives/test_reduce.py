import doctest
import inspect
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.objectives import reduce

LENGTHS = st.lists(st.integers(1, 5), min_size=2, max_size=6)


def flat(lengths, seed: int = 0):
    """Random values for sequences of these lengths, and the length of each token's sequence."""
    g = torch.Generator().manual_seed(seed)
    length = torch.repeat_interleave(torch.tensor(lengths), torch.tensor(lengths))
    return torch.randn(len(length), generator=g, dtype=torch.float64), length


def test_token_mean_weighs_every_token_the_same():
    assert reduce.token_mean(torch.tensor([1.0, 2.0, 6.0]), denominator=3).item() == 3.0
    assert reduce.token_mean(torch.tensor([1.0, 2.0, 6.0]), denominator=18).item() == 0.5


def test_sequence_mean_weighs_every_sequence_the_same():
    # Sequence 0 has 3, 5 and 7, of mean 5; sequence 1 has 1; sequence 2 has 2 and 4, of mean 3. In any order.
    values, length = torch.tensor([3.0, 1.0, 5.0, 2.0, 7.0, 4.0]), torch.tensor([3, 1, 3, 2, 3, 2])
    assert reduce.sequence_mean(values, length, denominator=3).item() == pytest.approx(3.0)
    assert reduce.sequence_mean(values, length, denominator=9).item() == pytest.approx(1.0)


@given(LENGTHS)
def test_sequence_mean_matches_plain_floats(lengths):
    values, length = flat(lengths)
    pieces = values.split(lengths)
    expected = math.fsum(sum(piece.tolist()) / len(piece) for piece in pieces) / len(lengths)
    assert reduce.sequence_mean(values, length, denominator=len(lengths)).item() == pytest.approx(expected, rel=1e-12)


def test_the_gradient_of_a_token_is_its_weight():
    values, length = flat([1, 4])
    values.requires_grad_()
    (gradient,) = torch.autograd.grad(reduce.sequence_mean(values, length, denominator=2), values)
    assert gradient.tolist() == [0.5, 0.125, 0.125, 0.125, 0.125]
    (gradient,) = torch.autograd.grad(reduce.token_mean(values, denominator=5), values)
    assert gradient.tolist() == pytest.approx([0.2] * 5)


@given(LENGTHS, st.data())
def test_no_cut_changes_loss_or_gradient(lengths, data):
    """The whole batch at once equals the sum over any micro-batches, which may cut sequences, with its denominators."""
    values, length = flat(lengths)
    values.requires_grad_()
    start = data.draw(st.integers(0, len(values)))
    parts = [(values[:start], length[:start]), (values[start:], length[start:])]
    for whole, pieces in (
        (
            reduce.sequence_mean(values, length, denominator=len(lengths)),
            [reduce.sequence_mean(v, n, denominator=len(lengths)) for v, n in parts],
        ),
        (
            reduce.token_mean(values, denominator=sum(lengths)),
            [reduce.token_mean(v, denominator=sum(lengths)) for v, _ in parts],
        ),
    ):
        torch.testing.assert_close(sum(pieces), whole, rtol=1e-12, atol=1e-12)
        (expected,) = torch.autograd.grad(whole, values)
        (actual,) = torch.autograd.grad(sum(pieces), values)
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_nothing_in_the_padding_reaches_loss_or_gradient(poison):
    mask = torch.tensor([[True, True, False], [True, False, False]])
    logprobs = torch.tensor([[-1.0, -2.0, poison], [-3.0, poison, poison]], requires_grad=True)
    row = reduce.rows(mask)
    loss = reduce.sequence_mean(logprobs[mask].exp(), row.bincount()[row], denominator=2)
    assert loss.item() == pytest.approx(((math.exp(-1) + math.exp(-2)) / 2 + math.exp(-3)) / 2)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    expected = [[math.exp(-1) / 4, math.exp(-2) / 4, 0.0], [math.exp(-3) / 2, 0.0, 0.0]]
    torch.testing.assert_close(gradient, torch.tensor(expected))


def test_rows_names_the_sequence_of_each_chosen_token():
    mask = torch.tensor([[False, True, True], [False, False, False], [True, False, True]])
    assert reduce.rows(mask).tolist() == [0, 0, 2, 2]


def test_a_sequence_without_tokens_counts_in_the_denominator_alone():
    assert reduce.sequence_mean(torch.tensor([4.0]), torch.tensor([1]), denominator=2).item() == 2.0


@pytest.mark.parametrize("denominator", [0, -1, math.nan])
def test_a_denominator_that_counts_nothing_is_refused(denominator):
    with pytest.raises(ValueError, match="above 0; got"):
        reduce.token_mean(torch.ones(2), denominator)
    with pytest.raises(ValueError, match="above 0; got"):
        reduce.sequence_mean(torch.ones(2), torch.ones(2, dtype=torch.long), denominator)


def test_one_value_for_many_tokens_is_refused_where_no_annotation_is_checked():
    unchecked = inspect.unwrap(reduce.sequence_mean)  # as it runs outside tests
    with pytest.raises(ValueError, match=r"values_N \(1,\), length_N \(2,\)"):
        unchecked(torch.ones(1), torch.tensor([1, 1]), 2.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_length_is_a_count_and_changes_no_dtype(dtype):
    assert reduce.sequence_mean(torch.ones(3, dtype=dtype), torch.tensor([2, 2, 1]), 2.0).dtype == dtype


def test_docstring_examples_run():
    results = doctest.testmod(reduce, extraglobs={"torch": torch})
    assert results.failed == 0 and results.attempted > 0
