"""Single responses, good or bad, in plain floats; what the policy's distance is read from; and what is learned."""

import math

import pytest
import torch

from posttrain.algorithms.kto import KTO
from posttrain.data.packing import Example, Labelled
from posttrain.models.reference import reference_for
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.unpaired import divergence_of
from tests.references import preferences
from tests.tiny import tiny_llama
from tests.training.steps import PreferenceSteps, learner_of
from tests.training.test_pairwise import PAIRS, logprobs

UNITS = [tuple(map(Labelled, pair, (True, False))) for pair in PAIRS]
BATCH = [judged for unit in UNITS for judged in unit]
MODEL, ANCHOR = tiny_llama(dtype=torch.float64), tiny_llama(seed=1, dtype=torch.float64)


def by_hand_divergence(model, anchor, batch) -> float:
    """The prompts are A, B and B's: A is given what was said to B, and B what was said to A, over and over."""
    first, *rest = [[j.example for j in batch if j.example.prefix == prompt] for prompt in ((5, 9, 3), (2, 2))]
    (second,) = rest
    longest = max(len(j.example.prefix) + len(j.example.continuation) for j in batch)
    ratios = []
    for mine, theirs in ((first, second), (second, first)):
        for number, example in enumerate(mine):
            other = (theirs * len(mine))[number]
            room = longest - len(example.prefix)
            moved = Example(example.prefix, other.continuation[:room], other.learned[:room])
            ratios.append(sum(logprobs(model, moved)) - sum(logprobs(anchor, moved)))
    return max(0.0, sum(ratios) / len(ratios))


def apart(model, anchor, batch, microbatch_tokens):
    learner = learner_of(model, reference=reference_for(anchor), microbatch_tokens=microbatch_tokens)
    return divergence_of(learner, lambda examples: learner.logprobs(examples, "reference"), batch)


def judge(model, algorithm, anchor, units, microbatch_tokens):
    steps = PreferenceSteps(model, algorithm, reference_for(anchor), microbatch_tokens=microbatch_tokens)
    return steps.judge(units)


@pytest.mark.parametrize("microbatch_tokens", [8, 11, 100])
@pytest.mark.parametrize("models", [(MODEL, ANCHOR), (ANCHOR, MODEL)], ids=["below", "above"])
def test_the_divergence_by_hand_however_the_batch_is_cut(models, microbatch_tokens):
    model, anchor = models
    found = apart(model, anchor, BATCH, microbatch_tokens)
    expected = by_hand_divergence(model, anchor, BATCH)
    assert found == pytest.approx(expected, rel=1e-5)


def test_one_of_the_two_is_above_zero_and_the_other_is_held_there():
    found = [by_hand_divergence(*models, BATCH) for models in ((MODEL, ANCHOR), (ANCHOR, MODEL))]
    assert min(found) == 0.0 < max(found)


def test_a_batch_of_one_prompt_has_no_divergence():
    alone = [judged for judged in BATCH if judged.example.prefix == BATCH[0].example.prefix]
    for model, anchor in ((MODEL, ANCHOR), (ANCHOR, MODEL)):
        assert apart(model, anchor, alone, 100) == 0.0


@pytest.mark.parametrize("microbatch_tokens", [8, 100])
def test_kto_by_hand_however_the_batch_is_cut(microbatch_tokens):
    batch, algorithm = BATCH[:-1], KTO(beta=0.3, bad_weight=2.0)
    for model, anchor in ((MODEL, ANCHOR), (ANCHOR, MODEL)):
        away = by_hand_divergence(model, anchor, batch)
        expected = 0.0
        for judged in batch:
            tokens = list(zip(logprobs(model, judged.example), logprobs(anchor, judged.example), strict=True))
            expected += preferences.kto({"tokens": tokens}, judged.good, away, beta=0.3, bad_weight=2.0) / 5
        found = judge(model, algorithm, anchor, [batch], microbatch_tokens)
        assert found["loss"] == pytest.approx(expected, rel=1e-5)
        assert found["divergence"] == pytest.approx(away, rel=1e-5)
        assert found["length/good"] == pytest.approx((3 + 2 + 2) / 3)
        assert found["length/bad"] == pytest.approx((2 + 3) / 2)
        good = sum(sum(logprobs(model, judged.example)) for judged in batch if judged.good) / 3
        assert found["logprob/good"] == pytest.approx(good, rel=1e-5)
        bad = sum(sum(logprobs(model, judged.example)) for judged in batch if not judged.good) / 2
        assert found["logprob/bad"] == pytest.approx(bad, rel=1e-5)


def gradients(microbatch_tokens: int) -> dict[str, torch.Tensor]:
    model = tiny_llama(seed=1, dtype=torch.float64)
    optimizer = MasterAdamW(model.trainable(), max_grad_norm=math.inf)
    options = {"optimizer": optimizer, "microbatch_tokens": microbatch_tokens}
    PreferenceSteps(model, KTO(), reference_for(MODEL), **options).step([BATCH], lr=0.0)
    return {name: optimizer.adam.state[m]["exp_avg"] for name, m in optimizer.named_masters().items()}


def test_gradients_do_not_depend_on_the_cut():
    whole, cut = gradients(100), gradients(8)
    for name, gradient in whole.items():
        assert gradient.norm() > 0 and (cut[name] - gradient).norm() < 1e-6 * gradient.norm()


def test_kto_learns_what_is_good_and_what_is_bad():
    model = tiny_llama()
    steps = PreferenceSteps(model, KTO(), reference_for(model))
    before = steps.judge(UNITS)
    assert before["loss"] == pytest.approx(0.5, abs=1e-4)
    for _ in range(40):
        steps.step([BATCH], lr=3e-3)
    after = steps.judge(UNITS)
    assert before["pair_accuracy"] == 0.5 and after["pair_accuracy"] == 1.0
    assert after["reward/good"] > after["reward/bad"] + 0.5 and after["loss"] < 0.45


def test_a_batch_of_good_ones_alone_has_no_number_for_bad_ones():
    good = [[judged for judged in BATCH if judged.good]]
    found = judge(MODEL, KTO(), ANCHOR, good, 8)
    assert "reward/good" in found and "reward/bad" not in found and "length/bad" not in found
    assert all(math.isfinite(value) for value in found.values())


def test_judging_keeps_nothing_for_a_backward_pass(monkeypatch):
    seen = []
    plain = type(MODEL).logprobs
    monkeypatch.setattr(type(MODEL), "logprobs", lambda *args: seen.append(torch.is_grad_enabled()) or plain(*args))
    judge(MODEL, KTO(), ANCHOR, UNITS, 100)
    assert seen and not any(seen)


def test_of_pairs_it_is_counted_how_often_the_good_one_is_worth_more():
    def worth(judged: Labelled) -> float:
        return sum(logprobs(MODEL, judged.example)) - sum(logprobs(ANCHOR, judged.example))

    right = [worth(good) > worth(bad) for good, bad in UNITS]
    turned = [UNITS[0], UNITS[1][::-1], UNITS[2], UNITS[0][:1]]  # one with the bad one first, one alone: no pairs
    for units, expected in ((UNITS, sum(right) / 3), (turned, (right[0] + right[2]) / 2)):
        for microbatch_tokens in (8, 100):
            found = judge(MODEL, KTO(), ANCHOR, units, microbatch_tokens)
            assert found["pair_accuracy"] == expected
