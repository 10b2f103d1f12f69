"""The supervised loss in plain floats, its gradient, and a step that follows it."""

import math

import pytest
import torch

from posttrain.algorithms.algorithm import Counts
from posttrain.data.packing import Example
from posttrain.errors import TrainingError
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.supervised import NLL, supervised_batch
from tests.tiny import plain_logits, tiny_llama
from tests.training.steps import learner_of, supervised_loss, supervised_step

EXAMPLES = [
    Example.whole([5, 9, 3, 4, 8, 1], [False, False, False, True, True, True]),
    Example.whole([7, 2, 11, 1], [False, False, True, True]),
    Example.whole([6, 6, 12, 13, 1, 20, 21, 22, 1], [False, False, True, True, True, False, False, True, True]),
]


def by_hand(model) -> float:
    """Cross entropy of what is learned, one float at a time, over all learned tokens of the batch."""
    total, count = 0.0, 0
    for example in EXAMPLES:
        ids = list(example.continuation)
        logits = plain_logits(model, ids).tolist()
        for at, (token, learned) in enumerate(zip(ids, example.learned, strict=True)):
            if learned:
                row = logits[at - 1]
                total += math.log(sum(math.exp(z) for z in row)) - row[token]
                count += 1
    assert count == 10
    return total / count


@pytest.mark.parametrize("microbatch_tokens", [9, 12, 100])
def test_loss_is_the_mean_over_all_learned_tokens_however_the_batch_is_cut(microbatch_tokens):
    model = tiny_llama(dtype=torch.float64)
    expected = by_hand(model)
    options = {"microbatch_tokens": microbatch_tokens}
    assert supervised_loss(model, EXAMPLES, **options) == pytest.approx(expected, rel=1e-5)
    found = supervised_step(model, MasterAdamW(model.trainable()), EXAMPLES, lr=0.0, **options)
    assert found["loss"] == pytest.approx(expected, rel=1e-5)
    assert supervised_batch(EXAMPLES).counts == Counts(len(EXAMPLES), 10)


def test_a_weight_is_a_factor_of_the_loss():
    model = tiny_llama(dtype=torch.float64)
    learner = learner_of(model, microbatch_tokens=100)
    found = [learner.forward(supervised_batch(EXAMPLES), NLL(weight))["loss"] for weight in (1.0, 0.3)]
    assert found == pytest.approx([by_hand(model), 0.3 * by_hand(model)], rel=1e-5)


def test_a_step_goes_down_the_slope():
    model = tiny_llama(dtype=torch.float64)
    optimizer = MasterAdamW(model.trainable(), max_grad_norm=math.inf)
    before = supervised_loss(model, EXAMPLES, microbatch_tokens=100)
    weights = {name: p.detach().clone() for name, p in model.trainable()}
    found = supervised_step(model, optimizer, EXAMPLES, lr=1e-6, microbatch_tokens=100)
    after = supervised_loss(model, EXAMPLES, microbatch_tokens=100)
    # Adam's first step is lr * sign(gradient), so the loss falls by lr times the sum of the gradient's magnitudes
    plain = tiny_llama(dtype=torch.float64)
    loss = sum(
        -torch.log_softmax(logits_with_gradient(plain, e)[at - 1], -1)[token]
        for e in EXAMPLES
        for at, (token, learned) in enumerate(zip(e.continuation, e.learned, strict=True))
        if learned
    )
    (loss / 10).backward()
    steep = sum(p.grad.abs().sum().item() for _, p in plain.trainable())
    assert before - after == pytest.approx(1e-6 * steep, rel=0.02)
    length = math.sqrt(sum(p.grad.square().sum().item() for _, p in plain.trainable()))
    assert found["grad_norm"] == pytest.approx(length, rel=1e-5)
    assert any(not torch.equal(weights[name], p) for name, p in model.trainable())


def logits_with_gradient(model, example):
    from posttrain.models.attention import FamilyAttention

    ids = torch.tensor([example.continuation])
    hidden = model.hidden(ids, torch.arange(ids.shape[1])[None], FamilyAttention([(0, [ids.shape[1]])]))[0]
    return hidden @ model.head.T


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_learn_the_examples(dtype):
    model = tiny_llama(dtype=dtype)
    optimizer = MasterAdamW(model.trainable())
    losses = [supervised_step(model, optimizer, EXAMPLES, lr=0.01, microbatch_tokens=20)["loss"] for _ in range(20)]
    assert losses[0] > 3 and losses[-1] < 0.3


def test_measuring_the_loss_trains_nothing_and_keeps_nothing_for_it(monkeypatch):
    model, watched = tiny_llama(), []
    states = type(model).states

    def watch(self, row):
        watched.append(torch.is_grad_enabled())
        return states(self, row)

    monkeypatch.setattr(type(model), "states", watch)
    supervised_loss(model, EXAMPLES, microbatch_tokens=100)
    assert all(p.grad is None for _, p in model.trainable())
    assert watched == [False]


def test_a_loss_that_is_not_finite_stops_before_the_weights_are_touched():
    model = tiny_llama()
    with torch.no_grad():
        model.network.model.norm.weight[0] = math.nan
    before = {name: p.detach().clone() for name, p in model.trainable()}
    with pytest.raises(TrainingError, match=r"the loss is nan for examples \[\d"):
        supervised_step(model, MasterAdamW(model.trainable()), EXAMPLES, lr=0.1, microbatch_tokens=9)
    for name, p in model.trainable():
        torch.testing.assert_close(p.detach(), before[name], rtol=0, atol=0, equal_nan=True)
