"""Capped scores and sinks: weights by hand, gradients against autograd through the equation."""

import math

import pytest
import torch

from posttrain.fast_paths import without
from posttrain.models import attention
from posttrain.models.attention import FamilyAttention
from posttrain.models.scoring import Scoring, weights_of

FAMILIES = [(4, [3, 1, 5]), (0, [2, 6]), (3, []), (2, [2])]
LENGTH = 28


def test_weights_by_hand():
    scores, bias = torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([0.0, 0.0, -math.inf])
    # 2 tanh(z / 2), then the softmax of two of them with a sink of ln 2
    capped = [2 * math.tanh(0.5), 2 * math.tanh(1.5)]
    total = 2 + sum(map(math.exp, capped))
    found = weights_of(scores, bias, 2.0, torch.tensor([math.log(2)]))
    assert found.weights.tolist() == [pytest.approx([math.exp(capped[0]) / total, math.exp(capped[1]) / total, 0.0])]
    assert found.unspent.tolist() == [pytest.approx([2 / total])]
    assert found.slope.tolist() == [pytest.approx([1 - math.tanh(z / 2) ** 2 for z in (1, 3, 9)], abs=1e-6)]


def test_a_query_whose_keys_score_low_spends_its_weight_on_the_sink():
    found = weights_of(torch.full((1, 2), -50.0), torch.zeros(2), None, torch.zeros(1))
    assert found.weights.sum() < 1e-20 and found.unspent.item() == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_softmax_is_wide_and_what_multiplies_values_is_not(dtype):
    found = weights_of(torch.ones(2, 3, dtype=dtype), torch.zeros(3), 5.0, torch.zeros(1, dtype=dtype))
    assert (found.weights.dtype, found.slope.dtype, found.unspent.dtype) == (dtype, dtype, torch.float32)


def mask_of(families, window):
    """Who sees whom in a flat row, one pair of tokens at a time."""
    places = [
        (family, branch, place)
        for family, (prefix, lengths) in enumerate(families)
        for branch, (first, length) in enumerate([(0, prefix), *((prefix, length) for length in lengths)])
        for place in range(first, first + length)
    ]
    sees = [[f == g and c in (0, b) and 0 <= p - r < (window or 99) for g, c, r in places] for f, b, p in places]
    return torch.tensor(sees)


def by_the_equation(q, k, v, sinks, scoring):
    k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
    z = q @ k.transpose(2, 3) * scoring.scale
    if scoring.cap:
        z = scoring.cap * torch.tanh(z / scoring.cap)
    spent = z.masked_fill(~mask_of(FAMILIES, scoring.window), -torch.inf).exp()
    sink = 0 if sinks is None else sinks.exp()[None, :, None, None]
    return spent / (spent.sum(-1, keepdim=True) + sink) @ v


@pytest.fixture(params=["recomputed", "kept", "whole rows"])
def way(request, monkeypatch):
    """All ways to take the gradient; a device that prefers whole rows must not take them here."""
    if request.param == "whole rows":
        monkeypatch.setattr(attention, "_at_once", lambda device: True)
    with without(*(["recomputed attention"] if request.param == "kept" else [])):
        yield request.param


@pytest.mark.parametrize("materialize", [0, 2**30])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize(("cap", "sinks"), [(1.5, False), (None, True), (1.5, True)])
def test_attention_and_its_gradients_are_those_of_the_equation(way, cap, sinks, window, materialize, monkeypatch):
    monkeypatch.setattr("posttrain.models.scoring.MATERIALIZE", materialize)
    g = torch.Generator().manual_seed(0)
    q, k, v, upstream = (torch.randn(1, h, LENGTH, 8, generator=g, dtype=torch.float64) for h in (4, 2, 2, 4))
    a = torch.randn(4, generator=g, dtype=torch.float64).requires_grad_() if sinks else None
    row = [x.requires_grad_() for x in (q, k, v)]
    wanted = [*row, *([a] if sinks else [])]
    scoring = Scoring(0.8, window, cap, a)
    expected = by_the_equation(*row, a, scoring)
    found = FamilyAttention(FAMILIES).attend(0, *row, scoring)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    theirs, ours = (torch.autograd.grad(x, wanted, upstream) for x in (expected, found))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_in_bfloat16_the_sinks_gradient_is_summed_in_float32():
    """One thousand queries add a little each: rounded as they come, the sum would stop growing."""
    length = 1000
    q, k = (torch.zeros(1, 1, length, 1, dtype=torch.bfloat16) for _ in range(2))
    v, upstream = (torch.ones(1, 1, length, 1, dtype=torch.bfloat16) for _ in range(2))
    a = torch.zeros(1, dtype=torch.bfloat16, requires_grad=True)
    found = FamilyAttention([(length, [])]).attend(0, q.requires_grad_(), k, v, Scoring(1.0, sinks=a))
    found.backward(upstream)
    # n keys alike: each output is n / (n + 1), whose derivative by the sink is -n / (n + 1)^2
    expected = -sum(n / (n + 1) ** 2 for n in range(1, length + 1))
    assert a.grad.item() == pytest.approx(expected, rel=1e-2)
