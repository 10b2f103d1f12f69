"""The cross entropy of an implicit reward against the same in plain floats."""

import math

import pytest
import torch

from posttrain.objectives.reward_models import implicit_reward_loss
from tests.references import recent

ROWS = [([-1.0, -2.0, -0.5], [-1.5, -1.0, -0.25], 1.0), ([-3.0], [-1.0], 0.0), ([-0.1, -0.2], [-0.1, -2.2], 0.25)]


def flat(rows):
    said, reference = (torch.tensor([x for row in rows for x in row[i]], dtype=torch.float64) for i in (0, 1))
    labels = torch.tensor([row[2] for row in rows for _ in row[0]], dtype=torch.float64)
    return said, reference, labels, torch.tensor([n for n, row in enumerate(rows) for _ in row[0]])


def test_each_token_has_the_cross_entropy_of_its_response():
    *columns, row = flat(ROWS)
    found = implicit_reward_loss(*columns, row, beta=0.7)
    expected = recent.implicit_reward_loss(ROWS, beta=0.7)
    assert found.tolist() == pytest.approx([expected[n] for n in row.tolist()], rel=1e-12)


def test_the_gradient_is_sigmoid_less_label_and_reaches_the_model_alone():
    said, reference, labels, row = flat(ROWS)
    for leaf in (said, reference, labels):
        leaf.requires_grad_()
    loss = implicit_reward_loss(said, reference, labels, row, beta=0.7)
    first_N = torch.tensor([1.0, 0, 0, 1, 1, 0], dtype=torch.float64)
    found = torch.autograd.grad((loss * first_N).sum(), [said, reference, labels], allow_unused=True)
    expected = []
    for logprobs, behind, label in ROWS:
        logit = 0.7 * sum(a - b for a, b in zip(logprobs, behind, strict=True))
        expected += [0.7 * (1 / (1 + math.exp(-logit)) - label)] * len(logprobs)
    assert found[0].tolist() == pytest.approx(expected) and found[1] is None and found[2] is None


def test_nothing_has_no_loss_and_a_reward_of_any_size_a_finite_one():
    none = torch.zeros(0, dtype=torch.float64)
    assert implicit_reward_loss(none, none, none, none.long(), beta=1.0).shape == (0,)
    far = torch.tensor([1e4, -1e4], dtype=torch.float64)
    zero, label = torch.zeros(2, dtype=torch.float64), torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert implicit_reward_loss(far, zero, label, torch.arange(2), beta=1.0).tolist() == [1e4, 1e4]
    with pytest.raises(ValueError, match="implicit_reward_loss"):
        implicit_reward_loss(far, zero[:1], label, torch.arange(2), beta=1.0)
