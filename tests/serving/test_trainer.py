"""Gradients and steps of one adapter, against transformers' own logits in float64, and torch's own AdamW."""

import math
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from posttrain.errors import CheckpointError, TrainingError, UserError
from posttrain.models.language_model import with_shared_weights
from posttrain.models.lora import add_lora
from posttrain.serving.losses import Datum, check_data, loss_of
from posttrain.serving.trainer import AdamParams, Trainer, sharing_prefixes
from tests.tiny import CONTEXT, VOCABULARY, plain_logits, tiny_llama

CE = loss_of("cross_entropy", {}, {"weights"}, 1)
PLAIN = loss_of("cross_entropy", {}, set(), 1)


def datum(tokens, targets=None, **columns):
    """Targets are the tokens that follow, and then token 3, unless given."""
    given = [*tokens[1:], 3] if targets is None else targets
    found = {name: np.array(values, dtype=np.float32) for name, values in columns.items()}
    return Datum(tuple(tokens), np.array(given), found)


def trainer_of(model=None, *, rank=3, seed=1, microbatch_tokens=64, started=True):
    adapted = add_lora(with_shared_weights(model or tiny_llama()), rank, seed=seed)
    trainer = Trainer(adapted, microbatch_tokens=microbatch_tokens)
    if started:  # B begins as 0, where A would have no gradient
        g = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, weight in adapted.trainable():
                if "lora_B" in name:
                    weight.copy_(torch.randn(weight.shape, generator=g) / 10)
    return trainer


def gradients(trainer):
    return {name: master.grad.clone() for name, master in trainer.optimizer.named_masters().items()}


PROMPT = [4 + i % 30 for i in range(17)]
BATCH = [
    datum([*PROMPT, 5, 6], weights=[0.0] * 17 + [1.0, 2.0]),
    datum([*PROMPT, 7, 8, 9], weights=[0.5] * 18 + [1.0, -1.0]),
    datum([9, 8, 7], weights=[1.0, 0.0, 1.0]),
    datum([2], weights=[1.0]),
]


def test_logprobs_and_loss_are_those_of_plain_transformers():
    model = tiny_llama()
    output = trainer_of(model, started=False).forward_backward(BATCH, CE)
    total = 0.0
    for each, found in zip(BATCH, output.logprobs, strict=True):
        logprobs = plain_logits(model, list(each.tokens)).log_softmax(1)
        expected = logprobs[torch.arange(len(each.tokens)), torch.from_numpy(each.targets)]
        np.testing.assert_allclose(found, expected.numpy(), atol=2e-5)
        total -= sum(w * p for w, p in zip(each.columns["weights"].tolist(), expected.tolist(), strict=True))
    assert output.loss == pytest.approx(total, abs=1e-4)


def test_targets_need_not_be_the_tokens_that_follow():
    model = tiny_llama()
    targets = [7, 0, 39, 5]
    output = trainer_of(model, started=False).forward_backward([datum([4, 5, 6, 7], targets)], PLAIN)
    expected = plain_logits(model, [4, 5, 6, 7]).log_softmax(1)[torch.arange(4), torch.tensor(targets)]
    np.testing.assert_allclose(output.logprobs[0], expected.numpy(), atol=2e-5)


def test_a_token_may_have_several_targets_each_with_a_weight():
    model = tiny_llama()
    targets, weights = np.array([[7, 9], [0, 1], [5, 5]]), [[0.5, 0.5], [1.0, 0.0], [2.0, 1.0]]
    one = Datum((4, 5, 6), targets, {"weights": np.array(weights, dtype=np.float32)})
    loss = loss_of("cross_entropy", {}, {"weights"}, 2)
    output = trainer_of(model, started=False).forward_backward([one, one], loss)
    expected = plain_logits(model, [4, 5, 6]).log_softmax(1).gather(1, torch.from_numpy(targets)).numpy()
    assert output.logprobs[0].shape == (3, 2)
    np.testing.assert_allclose(output.logprobs[1], expected, atol=2e-5)
    assert output.loss == pytest.approx(-2 * float((np.array(weights) * expected).sum()), abs=1e-4)


def test_the_gradient_is_that_of_the_plain_sum_by_finite_differences():
    trainer = trainer_of(tiny_llama(dtype=torch.float64))
    trainer.forward_backward(BATCH, CE)
    found = gradients(trainer)
    for name in [name for name in found if "layers.1" in name and ("q_proj" in name or "down_proj" in name)]:
        weight, eps = trainer.optimizer.named_masters()[name], 1e-3
        losses = []
        for sign in (1, -1):
            with torch.no_grad():
                weight[0, 0] += sign * eps
            losses.append(trainer.forward_backward(BATCH, CE, backward=False).loss)
            with torch.no_grad():
                weight[0, 0] -= sign * eps
        assert found[name][0, 0].item() == pytest.approx((losses[0] - losses[1]) / (2 * eps), rel=1e-2, abs=1e-3)


@pytest.mark.parametrize("microbatch_tokens", [20, 64])
def test_sharing_a_prefix_and_cutting_the_batch_change_neither_loss_nor_gradient(microbatch_tokens):
    together = trainer_of(tiny_llama(dtype=torch.float64), microbatch_tokens=microbatch_tokens)
    alone = trainer_of(tiny_llama(dtype=torch.float64))
    loss = together.forward_backward(BATCH, CE).loss
    parts = [alone.forward_backward([each], CE) for each in BATCH]
    assert loss == pytest.approx(sum(part.loss for part in parts), rel=1e-9)
    ours, theirs = gradients(together), gradients(alone)
    for name, grad in theirs.items():
        torch.testing.assert_close(ours[name], grad, rtol=1e-5, atol=1e-6)


def test_neighbours_that_begin_alike_share_a_prefix():
    examples = sharing_prefixes(BATCH)
    assert [len(example.prefix) for example in examples] == [17, 17, 0, 0]
    assert [(*example.prefix, *example.continuation) for example in examples] == [each.tokens for each in BATCH]


def test_a_sequence_that_another_continues_keeps_a_token_of_its_own():
    examples = sharing_prefixes([datum(PROMPT), datum([*PROMPT, 1]), datum(PROMPT)])
    assert [len(example.prefix) for example in examples] == [16, 16, 16]


def test_prefixes_of_two_groups_are_two():
    other = [30 - token for token in PROMPT]
    examples = sharing_prefixes([datum([*PROMPT, i]) for i in (1, 2)] + [datum([*other, i]) for i in (1, 2, 3)])
    assert [example.prefix for example in examples] == [tuple(PROMPT)] * 2 + [tuple(other)] * 3


def test_sequences_that_have_little_in_common_share_nothing():
    examples = sharing_prefixes([datum([4, 5, 6, 7]), datum([4, 5, 6, 8]), datum([4, 5, 9])])
    assert [len(example.prefix) for example in examples] == [0, 0, 0]


def test_a_ratio_of_a_whole_sequence_is_that_of_its_own_tokens_in_a_batch_too():
    columns = {"logprobs": [-3.0] * 3, "advantages": [1.0, 1.0, -1.0], "sequence_ratio_mask": [0.0, 1.0, 1.0]}
    batch = [datum([4, 5, 6], **columns), datum([9, 8, 7], **columns)]
    wide = {"clip_low_threshold": 0.0, "clip_high_threshold": 1e9}
    loss = loss_of("gspo", wide, set(columns), 1)
    together, alone = trainer_of(), trainer_of()
    total = together.forward_backward(batch, loss).loss
    assert total == pytest.approx(sum(alone.forward_backward([each], loss).loss for each in batch), rel=1e-4)
    for name, grad in gradients(alone).items():
        torch.testing.assert_close(gradients(together)[name], grad, rtol=1e-3, atol=1e-4)


def test_gradients_of_several_calls_add_up_until_a_step():
    trainer, twice = trainer_of(), trainer_of()
    trainer.forward_backward(BATCH, CE)
    once = gradients(trainer)
    for _ in range(2):
        twice.forward_backward(BATCH, CE)
    for name, grad in gradients(twice).items():
        torch.testing.assert_close(grad, 2 * once[name])
    twice.optim_step(AdamParams())
    assert all(master.grad is None for master in twice.optimizer.masters)


def test_a_forward_pass_alone_leaves_the_gradient():
    trainer = trainer_of()
    output = trainer.forward_backward(BATCH, CE, backward=False)
    assert all(master.grad is None for master in trainer.optimizer.masters)
    assert output.loss == pytest.approx(trainer.forward_backward(BATCH, CE).loss, abs=1e-5)


@pytest.mark.parametrize("clip", [0.0, 0.25])
def test_a_step_is_that_of_torchs_adamw_with_the_settings_of_that_step(clip):
    trainer, reference = trainer_of(), trainer_of()
    weights = reference.optimizer.masters
    settings = [AdamParams(1e-2, 0.8, 0.9, 1e-6, 0.1, clip), AdamParams(3e-3, 0.9, 0.95, 1e-12, 0.0, clip)]
    adam = torch.optim.AdamW(weights)
    for each in settings:
        trainer.forward_backward(BATCH, CE)
        metrics = trainer.optim_step(each)
        reference.forward_backward(BATCH, CE)
        norm = torch.nn.utils.clip_grad_norm_(weights, clip or math.inf)
        adam.param_groups[0] |= {
            "lr": each.learning_rate,
            "betas": (each.beta1, each.beta2),
            "eps": each.eps,
            "weight_decay": each.weight_decay,
        }
        adam.step()
        adam.zero_grad()
        assert metrics["grad_norm:mean"] == pytest.approx(norm.item(), rel=1e-6)
        for ours, theirs in zip(trainer.optimizer.masters, weights, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_two_clients_in_turn_get_the_bits_that_each_gets_alone():
    """Gradients, weights and moments of two adapters of different ranks on one base, in float32."""
    model = tiny_llama()
    pair = trainer_of(model, rank=3, seed=1), trainer_of(model, rank=5, seed=2)
    batches = BATCH, [datum([5, 6, 7, 8], weights=[1.0] * 4), datum([5, 6], weights=[2.0, 1.0])]
    found = []
    for step in range(3):
        for trainer, batch in zip(pair, batches, strict=True):
            trainer.forward_backward(batch, CE)
        if step == 1:
            found = [gradients(trainer) for trainer in pair]
        for trainer in reversed(pair):
            trainer.optim_step(AdamParams(1e-2))
    for number, (rank, seed) in enumerate([(3, 1), (5, 2)]):
        alone = trainer_of(rank=rank, seed=seed)
        for step in range(3):
            alone.forward_backward(batches[number], CE)
            if step == 1:
                assert all(torch.equal(found[number][name], grad) for name, grad in gradients(alone).items())
            alone.optim_step(AdamParams(1e-2))
        ours, theirs = pair[number].weights(), alone.weights()
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_weights_and_moments_come_back_from_a_folder(tmp_path):
    trainer = trainer_of()
    trainer.forward_backward(BATCH, CE)
    trainer.optim_step(AdamParams(1e-2))
    trainer.learner.save(tmp_path)
    other = trainer_of(seed=7)
    other.forward_backward(BATCH, CE)  # a gradient that is to be forgotten
    other.restore(tmp_path)
    for each in (trainer, other):
        each.forward_backward(BATCH, CE)
        each.optim_step(AdamParams(1e-2))
    assert all(torch.equal(weight, other.weights()[name]) for name, weight in trainer.weights().items())


def test_without_its_moments_the_optimiser_begins_anew(tmp_path):
    trainer = trainer_of()
    trainer.forward_backward(BATCH, CE)
    trainer.optim_step(AdamParams(1e-2))
    trainer.learner.save(tmp_path)
    trainer.restore(tmp_path, optimizer=False)
    assert not trainer.optimizer.adam.state
    fresh = trainer_of(seed=7)
    fresh.restore(tmp_path, optimizer=False)
    for each in (trainer, fresh):
        each.forward_backward(BATCH, CE)
        each.optim_step(AdamParams(1e-2))
    assert all(torch.equal(weight, fresh.weights()[name]) for name, weight in trainer.weights().items())


def test_a_checkpoint_of_another_rank_is_refused(tmp_path):
    trainer_of(rank=2).learner.save(tmp_path)
    with pytest.raises(CheckpointError, match="not those trained here"):
        trainer_of(rank=3).restore(tmp_path)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize("error", [RuntimeError, TrainingError, KeyboardInterrupt])
def test_a_batch_that_fails_adds_nothing_to_the_gradient(monkeypatch, before, row, error):
    """Such as for memory at its third row, or because its loss is not finite."""
    trainer, rows = trainer_of(microbatch_tokens=20), count()
    if before:
        trainer.forward_backward(BATCH, CE)
    expected = gradients(trainer) if before else None
    weights = {name: weight.clone() for name, weight in trainer.weights().items()}

    def failing(logprobs_N, columns, row_N):
        if next(rows) < row:
            return CE.of_row(logprobs_N, columns, row_N)
        if error is TrainingError:
            return logprobs_N.sum() * math.inf
        raise error

    with pytest.raises(error):
        trainer.forward_backward(BATCH, SimpleNamespace(of_row=failing))
    assert next(rows) >= row
    found = gradients(trainer) if before else [master.grad for master in trainer.optimizer.masters]
    assert all(torch.equal(found[name], expected[name]) for name in found) if before else found == [None] * len(found)
    assert all(torch.equal(weight, weights[name]) for name, weight in trainer.weights().items())


def test_a_checkpoint_without_its_moments_is_refused_and_changes_nothing(tmp_path):
    trainer_of(seed=7).learner.save(tmp_path)
    (tmp_path / "optimizer.safetensors").unlink()
    trainer = trainer_of()
    trainer.forward_backward(BATCH, CE)
    before, grads = {name: weight.clone() for name, weight in trainer.weights().items()}, gradients(trainer)
    with pytest.raises(CheckpointError, match="cannot read"):
        trainer.restore(tmp_path)
    assert all(torch.equal(weight, before[name]) for name, weight in trainer.weights().items())
    assert all(torch.equal(grad, grads[name]) for name, grad in gradients(trainer).items())


@pytest.mark.parametrize(
    "wrong",
    [{"learning_rate": math.nan}, {"learning_rate": -1.0}, {"beta1": 1.0}, {"beta2": 1.5}, {"eps": math.inf}],
)
def test_settings_of_adam_that_are_none_are_refused(wrong):
    with pytest.raises(UserError, match=r"adam_params|beta"):
        AdamParams(**wrong)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ([], "at least one"),
        ([datum([], [])], "0 tokens"),
        ([datum([2] * (CONTEXT + 1))], f"{CONTEXT + 1} tokens"),
        ([datum([2, VOCABULARY])], f"token {VOCABULARY}"),
        ([datum([2, -1])], "token -1"),
        ([datum([2, 3], [3, VOCABULARY])], "target_tokens has token"),
        ([datum([2, 3], [3])], "shape"),
        ([datum([2, 3], weights=[1.0])], "weights has shape"),
        ([datum([2, 3], weights=[1.0, math.nan])], "not finite"),
        ([datum([2], weights=[1.0]), datum([2])], "other loss_fn_inputs"),
        ([datum([2] * 20)] * 6, "100 tokens; this one has 120"),
        ([datum([2] * 20, np.full((20, 6), 3))], "100 targets; this one has 120"),
    ],
)
def test_data_that_the_model_cannot_read_is_refused(data, reason):
    with pytest.raises(UserError, match=reason):
        check_data(data, vocabulary=VOCABULARY, context=CONTEXT, most_tokens=100)


def test_a_sequence_may_fill_the_context():
    full = datum([2] * CONTEXT)
    check_data([full], vocabulary=VOCABULARY, context=CONTEXT, most_tokens=100)
    assert trainer_of().forward_backward([full], PLAIN).logprobs[0].shape == (CONTEXT,)
