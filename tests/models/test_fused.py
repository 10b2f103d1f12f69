"""Lean forms against transformers' own modules: the same bits forward, the same gradients, and what is left alone."""

import copy

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from posttrain.models.fused import rms_norm, swiglu, swiglu_linear, use_lean_forms
from tests.tiny import tiny_llama

DTYPES = [torch.bfloat16, torch.float32, torch.float64]
SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, generator=g, dtype=torch.float64)).to(dtype).requires_grad_()


def by_autograd_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return weight * x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt()


def test_the_norm_by_hand():
    x = torch.tensor([[3.0, 4.0]])
    found = rms_norm(x, torch.tensor([1.0, 2.0]), 0.0)  # rms = sqrt(25 / 2)
    assert found.tolist() == [pytest.approx([3 / 12.5**0.5, 8 / 12.5**0.5])]
    assert rms_norm(torch.zeros(1, 2), torch.ones(2), 1e-5).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_the_norm_s_gradients_are_those_of_the_equation(dtype, tolerance, scale):
    x, weight = numbers(3, 7, 16, dtype=dtype, scale=scale), numbers(16, dtype=dtype, seed=1)
    upstream = numbers(3, 7, 16, dtype=dtype, seed=2).detach()
    rms_norm(x, weight, 1e-6).backward(upstream)
    exact = [t.detach().double().requires_grad_() for t in (x, weight)]
    by_autograd_norm(*exact, 1e-6).backward(upstream.double())
    for ours, theirs in zip((x, weight), exact, strict=True):
        assert ours.grad.dtype == dtype
        assert (ours.grad.double() - theirs.grad).norm() < tolerance * theirs.grad.norm()


def test_the_norm_of_each_head_takes_a_gradient_that_is_not_contiguous():
    """As in Qwen3, whose queries and keys are normalised and then transposed."""
    x, weight = numbers(2, 5, 3, 8, dtype=torch.float64), numbers(8, dtype=torch.float64, seed=1)
    upstream = numbers(2, 3, 5, 8, dtype=torch.float64, seed=2).detach()
    rms_norm(x, weight, 1e-6).transpose(1, 2).backward(upstream)
    exact = [t.detach().requires_grad_() for t in (x, weight)]
    by_autograd_norm(*exact, 1e-6).transpose(1, 2).backward(upstream)
    for ours, theirs in zip((x, weight), exact, strict=True):
        assert (ours.grad - theirs.grad).norm() < 1e-12 * theirs.grad.norm()


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)]
)
def test_the_gated_activation_and_its_gradients_are_those_of_the_equation(dtype, tolerance):
    gate, up = numbers(5, 16, dtype=dtype), numbers(5, 16, dtype=dtype, seed=1)
    upstream = numbers(5, 16, dtype=dtype, seed=2).detach()
    found = swiglu(gate, up)
    found.backward(upstream)
    exact = [t.detach().double().requires_grad_() for t in (gate, up)]
    expected = exact[0] * torch.sigmoid(exact[0]) * exact[1]
    expected.backward(upstream.double())
    pairs = [(found, expected), (gate.grad, exact[0].grad), (up.grad, exact[1].grad)]
    for ours, theirs in pairs:
        assert (ours.double() - theirs).norm() < tolerance * theirs.norm()


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)]
)
@pytest.mark.parametrize("learns", [True, False])
def test_the_gated_product_and_its_gradients_are_those_of_the_equation(dtype, tolerance, learns):
    gate, up, weight = (numbers(*s, dtype=dtype, seed=i) for i, s in enumerate([(2, 5, 16), (2, 5, 16), (8, 16)]))
    weight.requires_grad_(learns)
    upstream = numbers(2, 5, 8, dtype=dtype, seed=3).detach()
    found = swiglu_linear(gate, up, weight)
    found.backward(upstream)
    exact = [t.detach().double().requires_grad_() for t in (gate, up, weight)]
    expected = (exact[0] * torch.sigmoid(exact[0]) * exact[1]) @ exact[2].T
    expected.backward(upstream.double())
    assert (found.double() - expected).norm() < tolerance * expected.norm()
    for ours, theirs in zip((gate, up, weight)[: 3 if learns else 2], exact, strict=False):
        assert ours.grad.dtype == dtype
        assert (ours.grad.double() - theirs.grad).norm() < tolerance * theirs.grad.norm()
    assert (weight.grad is not None) == learns


def test_a_product_of_another_kind_is_left_to_itself():
    """A projection with a bias, or one that an adapter stands in for."""
    plain = tiny_llama(dtype=torch.float64).network.model.layers[0].mlp
    use_lean_forms(plain)
    with_bias = torch.nn.Linear(48, 32).double()
    with torch.no_grad():
        with_bias.weight.copy_(plain.down_proj.weight)
    x = numbers(3, 32, dtype=torch.float64)
    before = plain(x)
    plain.down_proj = with_bias
    torch.testing.assert_close(plain(x), before + with_bias.bias, rtol=1e-12, atol=1e-12)


def test_a_weight_that_does_not_learn_gets_no_gradient():
    x, weight = numbers(2, 4, dtype=torch.float32), torch.ones(4)
    rms_norm(x, weight, 1e-6).sum().backward()
    assert x.grad is not None and weight.grad is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("grad", [True, False])
def test_a_network_computes_the_same_bits_with_and_without_lean_forms(dtype, grad):
    model = tiny_llama(dtype=dtype)
    network = model.network
    # two layers of two norms and an MLP, and the last norm; transformers' norms are no wider than float32
    assert use_lean_forms(network) == (2 if dtype == torch.float64 else 2 * 3 + 1)
    x = numbers(1, 9, 32, dtype=dtype)
    with torch.set_grad_enabled(grad):
        lean = [network.model.norm(x), network.model.layers[0].mlp(x)]
        assert use_lean_forms(network, on=False) == 0
        assert not any("forward" in module.__dict__ for module in network.modules())
        plain = [network.model.norm(x), network.model.layers[0].mlp(x)]
    assert all(torch.equal(a, b) for a, b in zip(lean, plain, strict=True))


def test_inputs_are_not_written_over_where_nothing_is_learned():
    x, gate, up = (torch.randn(3, 8) for _ in range(3))
    kept = [t.clone() for t in (x, gate, up)]
    with torch.no_grad():
        rms_norm(x, torch.ones(8), 1e-6)
        swiglu(gate, up)
    assert all(torch.equal(a, b) for a, b in zip((x, gate, up), kept, strict=True))


def test_a_copy_of_a_network_has_forms_of_its_own():
    network = tiny_llama().network
    other = copy.deepcopy(network)
    assert other.model.norm.forward.__self__ is other.model.norm
    with torch.no_grad():
        other.model.norm.weight.zero_()
        assert (other.model.norm(torch.ones(1, 32)) == 0).all()
        assert (network.model.norm(torch.ones(1, 32)) != 0).any()


@pytest.mark.parametrize(
    ("network", "forms"),
    [
        (LlamaForCausalLM(LlamaConfig(**SIZES)), 7),
        (LlamaForCausalLM(LlamaConfig(**SIZES, hidden_act="relu")), 5),  # its MLP is another one
        (Qwen3ForCausalLM(Qwen3Config(**SIZES)), 11),  # norms of queries and keys, too
        (Gemma2ForCausalLM(Gemma2Config(**SIZES)), 0),  # norms multiply by 1 + w, the MLP has another activation
    ],
    ids=["llama", "relu", "qwen3", "gemma2"],
)
def test_only_what_gives_the_same_numbers_gets_a_lean_form(network, forms):
    assert use_lean_forms(network) == forms
