"""A run put back from its checkpoint goes on bit for bit, with all weights and with an adapter, in either format."""

import json

import pytest
import torch

from posttrain.data.packing import Example
from posttrain.errors import CheckpointError
from posttrain.models.lora import add_lora
from posttrain.models.rounding import narrow_
from posttrain.training import checkpoint
from posttrain.training.local_learner import ABOUT, MASTERS, OPTIMIZER, LocalLearner
from posttrain.training.optimizer import MasterAdamW
from tests.tiny import tiny_llama
from tests.training.steps import supervised_step

BATCHES = [
    [
        Example.whole([5 + i, 9, 3, 4 + i, 8, 1], [False, False, False, True, True, True]),
        Example((7,), (2, i), (True, True)),
    ]
    for i in range(6)
]


def subject(dtype, rank=0, seed=0):
    model = tiny_llama(seed=seed, dtype=dtype)
    model = add_lora(model, rank, seed=seed) if rank else model
    optimizer = MasterAdamW(model.trainable(), weight_decay=0.1)
    return model, optimizer, LocalLearner(model, optimizer, microbatch_tokens=8, save_model=model.save)


def train(model, optimizer, batches):
    return [supervised_step(model, optimizer, b, lr=0.01, microbatch_tokens=8) for b in batches]


def weights(model):
    return {name: p.detach().clone() for name, p in model.network.named_parameters()}


@pytest.mark.parametrize("rank", [0, 2], ids=["all weights", "adapter"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_restored_training_goes_on_bit_for_bit(tmp_path, dtype, rank):
    if rank:
        pytest.importorskip("peft")
    model, optimizer, learner = subject(dtype, rank)
    train(model, optimizer, BATCHES[:3])
    learner.save(tmp_path)
    expected = train(model, optimizer, BATCHES[3:])

    again, other, restored = subject(
        dtype, rank, seed=0 if rank else 1
    )  # the base of an adapter is not in its checkpoint
    train(again, other, BATCHES[:1])  # whatever it was before
    restored.restore(tmp_path)
    assert train(again, other, BATCHES[3:]) == expected
    assert all(torch.equal(p, weights(model)[name]) for name, p in again.network.named_parameters())


def test_what_the_sampler_saw_is_the_rounding_of_what_is_kept(tmp_path):
    model, optimizer, learner = subject(torch.bfloat16)
    train(model, optimizer, BATCHES[:2])
    learner.save(tmp_path)
    masters = checkpoint.load_tensors(tmp_path / MASTERS)
    saved = checkpoint.load_tensors(tmp_path / "model.safetensors")
    for name, master in masters.items():
        rounded = torch.empty_like(master, dtype=torch.bfloat16)
        narrow_(rounded, master)
        assert torch.equal(saved[name], rounded)
    assert any(not torch.equal(saved[name].float(), masters[name]) for name in masters)
    assert json.loads((tmp_path / ABOUT).read_text())["groups"] and (tmp_path / OPTIMIZER).is_file()


def test_another_model_is_refused_and_untouched(tmp_path):
    model, optimizer, learner = subject(torch.float32)
    train(model, optimizer, BATCHES[:1])
    learner.save(tmp_path)
    adapted, _, other = subject(torch.float32, rank=2)
    before = weights(adapted)
    with pytest.raises(CheckpointError, match=r"not those trained here: '.*' is \[40, 32\] there and missing here"):
        other.restore(tmp_path)
    assert all(torch.equal(p, before[name]) for name, p in adapted.network.named_parameters())


def test_another_shape_is_refused(tmp_path):
    model, optimizer, learner = subject(torch.float32)
    tensors = {name: m[:1] if "norm" in name else m for name, m in optimizer.named_masters().items()}
    train(model, optimizer, BATCHES[:1])
    learner.save(tmp_path)
    checkpoint.save_tensors(tmp_path / MASTERS, tensors)
    with pytest.raises(CheckpointError, match=r"is \[1\] there and \[32\] here"):
        learner.restore(tmp_path)
