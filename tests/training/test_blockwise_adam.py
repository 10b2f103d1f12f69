"""AdamW in 8 bits: against the paper in plain floats, against torch where nothing is quantised, and put back."""

import math

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from posttrain.errors import CheckpointError, UserError
from posttrain.models.blockwise import dequantize
from posttrain.models.footprint import moment_bytes
from posttrain.models.language_model import wrap
from posttrain.models.lora import Lora, add_adapter
from posttrain.options.training import PairOptions
from posttrain.training import adam
from posttrain.training.adam import optimizer_state, restore_optimizer
from posttrain.training.optimizer import MasterAdamW, optimizer_for
from tests.references import blockwise as reference

KNOBS = {"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1, "max_grad_norm": math.inf}


def named(dtype=torch.float32):
    """A matrix that is quantised, an embedding, a large vector, and a small matrix."""
    g = torch.Generator().manual_seed(0)
    shapes = {"matrix": (65, 64), "embedding": (64, 64), "norm": (5000,), "small": (4, 3)}
    return [(name, nn.Parameter(torch.randn(shape, generator=g).to(dtype))) for name, shape in shapes.items()]


def made(parameters, bits=8, **knobs):
    return MasterAdamW(parameters, moment_bits=bits, embedding=dict(parameters)["embedding"], **KNOBS | knobs)


def step(parameters, optimizer, number, lr=0.02):
    """One update by gradients that are spread over four decades."""
    g = torch.Generator().manual_seed(100 + number)
    with optimizer.collecting():
        loss = sum(
            (p * (torch.randn(p.shape, generator=g) * 10 ** (-4 * torch.rand(p.shape, generator=g))).to(p.dtype)).sum()
            for _, p in parameters
        )
        loss.backward()
    grads = {name: m.grad.clone() for name, m in optimizer.named_masters().items()}
    optimizer.step(lr)
    return grads


def moments(optimizer, name, key):
    state = optimizer.adam.state[optimizer.named_masters()[name]]
    flat = state[key].view(-1)
    return dequantize(flat, state[key + "_scales"], signed=adam.MOMENTS[key])


def test_three_steps_equal_the_paper_in_plain_floats():
    parameters = named()
    start = dict(parameters)["matrix"].detach().flatten()[:512].tolist()
    optimizer = made(parameters)
    grads = [step(parameters, optimizer, n)["matrix"].flatten()[:512].tolist() for n in range(3)]
    weights, m, v = reference.adamw(start, grads, 0.02, 0.8, 0.95, 1e-6, 0.1)
    ours = dict(parameters)["matrix"].detach().flatten()[:512]
    torch.testing.assert_close(ours, torch.tensor(weights), rtol=1e-5, atol=1e-6)
    for key, theirs in (("exp_avg", m), ("exp_avg_sq", v)):
        torch.testing.assert_close(moments(optimizer, "matrix", key)[:512], torch.tensor(theirs), rtol=1e-5, atol=0)


def test_what_is_not_quantised_equals_torch_to_the_last_bit_and_so_does_a_first_step():
    ours, theirs = named(), named()
    optimizer, plain = made(ours), made(theirs, bits=32)
    for number in range(4):
        step(ours, optimizer, number)
        step(theirs, plain, number)
        same = {name for (name, a), (_, b) in zip(ours, theirs, strict=True) if torch.equal(a, b)}
        assert same == {"embedding", "norm", "small"} | ({"matrix"} if number == 0 else set())
    matrix, other = dict(ours)["matrix"], dict(theirs)["matrix"]
    moved = (other - dict(named())["matrix"]).abs().mean()
    assert 0 < (matrix - other).abs().mean() < 0.1 * moved


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_pieces_it_is_the_same(dtype, monkeypatch):
    found = []
    for rows in (1024, 3):
        monkeypatch.setattr(adam, "block_rows", lambda *_, rows=rows: rows)
        parameters = named(dtype)
        optimizer = made(parameters)
        for number in range(2):
            step(parameters, optimizer, number)
        found.append([m.detach().clone() for m in optimizer.masters])
        if dtype == torch.bfloat16:
            assert all(p.dtype == dtype for _, p in parameters)
        quantized = [name for name, m in optimizer.named_masters().items() if optimizer.adam.quantizes(m)]
        assert quantized == ["matrix"]  # whatever the model computes in
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_the_state_has_the_bytes_that_the_plan_counts():
    parameters = named()
    optimizer = made(parameters)
    step(parameters, optimizer, 0)
    tensors, _ = optimizer_state(optimizer.adam, optimizer.named_masters())
    held = sum(t.nbytes for name, t in tensors.items() if not name.endswith("/step"))
    assert held == moment_bytes(sum(p.numel() for _, p in parameters), 65 * 64)
    # of 4,160 numbers two codes each, and 17 blocks with two scales
    assert held == 2 * 4160 + 2 * 4 * 17 + 8 * (4096 + 5000 + 12)


def saved(bits, steps=2):
    parameters = named()
    optimizer = made(parameters, bits)
    for number in range(steps):
        step(parameters, optimizer, number)
    kept = {name: m.detach().clone() for name, m in optimizer.named_masters().items()}
    tensors, json = optimizer_state(optimizer.adam, optimizer.named_masters())
    return parameters, optimizer, kept, {name: t.clone() for name, t in tensors.items()}, json


@pytest.mark.parametrize("bits", [8, 32])
def test_put_back_it_goes_on_bit_for_bit(bits):
    parameters, optimizer, kept, tensors, json = saved(bits)
    for number in (2, 3):
        step(parameters, optimizer, number)
    others = named()
    again = made(others, bits)
    step(others, again, 7)  # whatever it was before
    again.load_masters(kept)
    restore_optimizer(again.adam, again.named_masters(), tensors, json)
    for number in (2, 3):
        step(others, again, number)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(parameters, others, strict=True))
    ours, theirs = (optimizer_state(one.adam, one.named_masters())[0] for one in (optimizer, again))
    assert all(torch.equal(t, theirs[name]) and t.dtype == theirs[name].dtype for name, t in ours.items())


@pytest.mark.parametrize(("there", "here"), [(8, 32), (32, 8)])
def test_a_state_of_other_bits_is_refused_and_nothing_is_changed(there, here):
    *_, tensors, json = saved(there)
    optimizer = made(named(), here)
    message = f"'matrix/exp_avg' has {there} bits in the checkpoint and {here} here; resume with the `optim`"
    with pytest.raises(CheckpointError, match=message):
        restore_optimizer(optimizer.adam, optimizer.named_masters(), tensors, json)
    assert not optimizer.adam.state


def test_an_embedding_that_is_trained_beside_an_adapter_keeps_its_moments_in_32_bits():
    pytest.importorskip("peft")
    config = LlamaConfig(
        vocab_size=300, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = add_adapter(
        wrap(LlamaForCausalLM(config), name="small", context=32), Lora(64, modules_to_save=("embed_tokens", "lm_head"))
    )
    optimizer = optimizer_for(PairOptions(optim="adamw-8bit"), model.trainable(), embedding=model.embedding)
    large = {name for name, p in model.trainable() if p.numel() >= 4096}
    quantized = {name for name, p in optimizer.named_masters().items() if optimizer.adam.quantizes(p)}
    assert {name.split(".modules_to_save")[0] for name in large - quantized} == {"model.embed_tokens"}
    assert any("lm_head" in name for name in quantized) and any("lora_A" in name for name in quantized)


def test_where_nothing_would_be_quantised_the_option_is_refused():
    parameters = [one for one in named() if one[0] != "matrix"]
    embedding = dict(parameters)["embedding"]
    with pytest.raises(UserError, match=r'^`optim="adamw-8bit"` would change nothing: .* 4,096 numbers or more'):
        optimizer_for(PairOptions(optim="adamw-8bit"), parameters, embedding=embedding)
    assert optimizer_for(PairOptions(), parameters, embedding=embedding)
    matrix = named()[:1]
    assert optimizer_for(PairOptions(optim="adamw-8bit"), matrix, embedding=embedding).adam.quantizes(matrix[0][1])
