import doctest
import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from posttrain.objectives import likelihood, reduce


def test_its_token_mean_is_torchs_cross_entropy_in_value_and_gradient():
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 11, generator=g, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(11, (6,), generator=g)
    logprobs = logits.log_softmax(-1)[torch.arange(6), targets]
    ours = reduce.token_mean(likelihood.negative_log_likelihood(logprobs), denominator=6)
    theirs = cross_entropy(logits, targets)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(ours, logits)
    torch.testing.assert_close(gradient, torch.autograd.grad(theirs, logits)[0], rtol=1e-12, atol=1e-12)


def test_dft_weighs_each_token_by_a_probability_without_a_gradient():
    logprobs = torch.tensor([0.5, 0.01], dtype=torch.float64).log().requires_grad_()
    loss = likelihood.probability_weighted(logprobs)
    assert loss.tolist() == pytest.approx([-0.5 * math.log(0.5), -0.01 * math.log(0.01)])
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    assert gradient.tolist() == pytest.approx([-0.5, -0.01])


def test_docstring_examples_run():
    results = doctest.testmod(likelihood)
    assert results.failed == 0 and results.attempted > 0
