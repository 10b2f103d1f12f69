"""Values and gradients against plain floats are in tests/algorithms/test_online.py (sapo, gmpo)."""

import doctest
import math

import pytest
import torch

from posttrain.objectives import policy as surrogates


def test_a_gate_has_the_slope_of_the_ratio_at_one_and_a_smaller_one_to_both_sides():
    def slope(ratio: float, advantage: float) -> float:
        logprob = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
        words = {"tau_positive": 1.0, "tau_negative": 2.0}
        loss = surrogates.soft_gated_surrogate(
            logprob, torch.zeros(1, dtype=torch.float64), torch.tensor([advantage], dtype=torch.float64), **words
        ).loss
        return torch.autograd.grad(loss.sum(), logprob)[0].item() / -(ratio * advantage)

    assert slope(1.0, 1.0) == pytest.approx(1.0) and slope(1.0, -1.0) == pytest.approx(1.0)
    assert slope(3.0, 1.0) == pytest.approx(0.42, abs=0.005) and slope(0.2, 1.0) == pytest.approx(0.86, abs=0.005)
    assert slope(3.0, -1.0) < slope(3.0, 1.0)


def test_a_geometric_mean_is_clipped_on_the_side_of_the_advantage_only():
    logs, row = torch.tensor([1.0, -1.0, 0.1, 1.0], dtype=torch.float64), torch.tensor([0, 0, 0, 1])
    zeros, words = torch.zeros(4, dtype=torch.float64), {"clip_low": 0.2, "clip_high": 0.4}
    for sign, kept in ((1.0, [(0.4 - 1.0 + 0.1) / 3, 0.4]), (-1.0, [(1.0 - 0.2 + 0.1) / 3, 1.0])):
        found = surrogates.geometric_surrogate(logs, zeros, sign * torch.ones_like(zeros), row, **words)
        assert found.ratio.tolist() == pytest.approx([math.exp(kept[i]) for i in row.tolist()])
        assert found.loss.tolist() == pytest.approx([-sign * math.exp(kept[i]) for i in row.tolist()])
        assert found.clipped.tolist() == ([1, 0, 0, 1] if sign > 0 else [0, 1, 0, 0])


def test_docstring_examples_run():
    results = doctest.testmod(surrogates)
    assert results.failed == 0 and results.attempted > 0
