"""Pairs in plain floats, however the batch is cut, and updates that follow them."""

import math

import pytest
import torch

from posttrain.algorithms.dpo import DPO
from posttrain.algorithms.tdpo import TDPO
from posttrain.data.packing import Example, Pair
from posttrain.models.reference import reference_for
from posttrain.training.optimizer import MasterAdamW
from tests.references import pairwise as reference
from tests.references import preferences
from tests.tiny import plain_logits, tiny_llama
from tests.training.steps import PreferenceSteps


def response(prompt: tuple[int, ...], *tokens: int, unlearned: int = 0) -> Example:
    return Example(prompt, tokens, tuple(i >= unlearned for i in range(len(tokens))))


PAIRS = [
    Pair(response((5, 9, 3), 4, 8, 1), response((5, 9, 3), 7, 1)),
    Pair(response((2, 2), 11, 1), response((2, 2), 12, 13, 14, 1, unlearned=1)),
    Pair(response((2, 2), 15, 1), response((2, 2), 16, 1)),
]


def logprobs(model, example: Example) -> list[float]:
    """Of what is learned, in float64, one sequence at a time."""
    ids = [*example.prefix, *example.continuation]
    rows = plain_logits(model, ids).log_softmax(-1)
    return [rows[at - 1, ids[at]].item() for at, learned in enumerate(example.learned, len(example.prefix)) if learned]


@pytest.mark.parametrize("microbatch_tokens", [8, 10, 100])
def test_dpo_by_hand_however_the_batch_is_cut(microbatch_tokens):
    model, anchor = tiny_llama(dtype=torch.float64), tiny_llama(seed=1, dtype=torch.float64)
    by_hand = [tuple(list(zip(logprobs(model, e), logprobs(anchor, e), strict=True)) for e in pair) for pair in PAIRS]
    expected = reference.dpo(by_hand, beta=0.3, smoothing=0.1)
    steps = PreferenceSteps(model, DPO(0.3, 0.1), reference_for(anchor), microbatch_tokens=microbatch_tokens)
    found = steps.judge(PAIRS)
    assert found["loss"] == pytest.approx(expected, rel=1e-5)
    assert found["length/rejected"] == pytest.approx((2 + 3 + 2) / 3)
    for side in ("chosen", "rejected"):
        summed = sum(sum(logprobs(model, getattr(pair, side))) for pair in PAIRS) / 3
        assert found[f"logprob/{side}"] == pytest.approx(summed, rel=1e-5)
    longer = [Pair(PAIRS[0].chosen, PAIRS[0].rejected)]
    alone = steps.judge(longer)
    assert (alone["length/chosen"], alone["length/rejected"]) == (3.0, 2.0)
    stepped = steps.step(PAIRS, lr=0.0)
    assert stepped["loss"] == pytest.approx(expected, rel=1e-5)
    assert stepped["margin"] == pytest.approx(found["margin"], rel=1e-5)


def divergence(model, anchor, example: Example) -> float:
    """KL(anchor || model) along what is learned, in float64, one sequence at a time."""
    ids = [*example.prefix, *example.continuation]
    p, q = (plain_logits(m, ids).log_softmax(-1) for m in (model, anchor))
    by_token = (q.exp() * (q - p)).sum(-1)
    at = range(len(example.prefix), len(ids))
    return sum(by_token[i - 1].item() for i, learned in zip(at, example.learned, strict=True) if learned)


@pytest.mark.parametrize("microbatch_tokens", [8, 100])
def test_tdpo_by_hand_however_the_batch_is_cut(microbatch_tokens):
    model, anchor = tiny_llama(dtype=torch.float64), tiny_llama(seed=1, dtype=torch.float64)

    def said(example):
        tokens = list(zip(logprobs(model, example), logprobs(anchor, example), strict=True))
        return {"tokens": tokens, "divergence": divergence(model, anchor, example)}

    by_hand = [tuple(said(example) for example in pair) for pair in PAIRS]
    steps = PreferenceSteps(model, TDPO(beta=0.3), reference_for(anchor), microbatch_tokens=microbatch_tokens)
    found = steps.judge(PAIRS)
    assert found["loss"] == pytest.approx(sum(preferences.tdpo2(*p, beta=0.3) for p in by_hand) / 3, rel=1e-5)
    for side, name in enumerate(("chosen", "rejected")):
        expected = sum(pair[side]["divergence"] for pair in by_hand) / 3
        assert found[f"divergence/{name}"] == pytest.approx(expected, rel=1e-4)


def test_tdpo_learns_the_pairs():
    model = tiny_llama()
    steps = PreferenceSteps(model, TDPO(), reference_for(model))
    for _ in range(30):
        steps.step(PAIRS, lr=3e-3)
    assert steps.judge(PAIRS)["accuracy"] == 1.0


def gradients(microbatch_tokens: int) -> dict[str, torch.Tensor]:
    """Of a first step whose Adam does nothing but remember them."""
    model = tiny_llama(dtype=torch.float64)
    optimizer = MasterAdamW(model.trainable(), max_grad_norm=math.inf)
    anchor = reference_for(tiny_llama(seed=1, dtype=torch.float64))
    PreferenceSteps(model, DPO(), anchor, optimizer=optimizer, microbatch_tokens=microbatch_tokens).step(PAIRS, lr=0.0)
    masters = optimizer.named_masters()
    return {name: optimizer.adam.state[master]["exp_avg"] for name, master in masters.items()}


def test_gradients_do_not_depend_on_the_cut():
    whole, cut = gradients(100), gradients(8)
    for name, gradient in whole.items():
        # transformers takes its norms in float32, which is what limits this
        assert (cut[name] - gradient).norm() < 1e-6 * gradient.norm()


def test_dpo_learns_the_pairs_and_leaves_the_reference_alone():
    model = tiny_llama()
    steps = PreferenceSteps(model, DPO(), reference_for(model))
    before = steps.judge(PAIRS)
    assert before["loss"] == pytest.approx(math.log(2), rel=1e-4) and before["accuracy"] == 0.5
    for _ in range(30):
        steps.step(PAIRS, lr=3e-3)
    after = steps.judge(PAIRS)
    assert after["accuracy"] == 1.0 and after["loss"] < 0.5
    assert after["margin"] == pytest.approx(after["reward/chosen"] - after["reward/rejected"], rel=1e-4)


def test_judging_pairs_keeps_nothing_for_a_backward_pass(monkeypatch):
    seen, model = [], tiny_llama()
    plain = type(model).logprobs
    monkeypatch.setattr(type(model), "logprobs", lambda *args: seen.append(torch.is_grad_enabled()) or plain(*args))
    PreferenceSteps(model, DPO(), reference_for(model)).judge(PAIRS)
    assert seen == [False, False]  # the reference and the policy
