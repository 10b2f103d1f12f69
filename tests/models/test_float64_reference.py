"""The yardstick itself: no float32 on its way, and nothing to do with padding."""

import pytest
import torch
from transformers import LlamaForCausalLM

from posttrain.data.packing import Example, pack
from posttrain.models.float64_reference import Float64, exact_gradient, exact_logprobs, float64_copy, padded_logprobs
from tests.tiny import plain_logits, tiny_llama

SEQUENCES = [[5, 9, 3, 7, 4, 8, 2], [5, 9, 3, 7, 11], [5, 9, 3, 7, 6, 6, 12, 13, 14]]


def packed(model, temperature=1.0):
    examples = [Example(tuple(s[:4]), tuple(s[4:]), (True,) * (len(s) - 4)) for s in SEQUENCES]
    (row,) = pack(examples, 100)
    return model.logprobs(row, temperature).logprobs.detach()


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_agrees_with_the_packed_path_to_the_last_digits_where_that_is_in_float64_throughout(temperature):
    model = tiny_llama(dtype=torch.float64)
    with Float64():
        ours = packed(model, temperature)
    exact = torch.cat([exact_logprobs(float64_copy(model), s, temperature)[3:] for s in SEQUENCES])
    torch.testing.assert_close(ours, exact, rtol=0, atol=1e-12)
    # transformers' float64 model is not: its norms and its softmax are in float32
    plain = plain_logits(model, SEQUENCES[0])[:-1].log_softmax(-1).gather(1, torch.tensor(SEQUENCES[0])[1:, None])[:, 0]
    alone = exact_logprobs(float64_copy(model), SEQUENCES[0])
    assert 1e-8 < (plain - alone).abs().max().item() < 1e-5


def test_a_float32_model_is_read_in_float64_too():
    model = tiny_llama()
    wide = tiny_llama(dtype=torch.float64)  # the same weights: float32 numbers are float64 numbers
    network = float64_copy(model)
    assert torch.equal(exact_logprobs(network, SEQUENCES[0]), exact_logprobs(float64_copy(wide), SEQUENCES[0]))
    assert isinstance(network, LlamaForCausalLM) and model.dtype == torch.float32


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(side):
    network = float64_copy(tiny_llama())
    found = padded_logprobs(network, SEQUENCES, side, 0.7)
    for logprobs, sequence in zip(found, SEQUENCES, strict=True):
        torch.testing.assert_close(logprobs, exact_logprobs(network, sequence, 0.7), rtol=0, atol=1e-12)


def test_the_yardstick_shares_no_lean_form_with_what_it_measures():
    model = tiny_llama()
    assert any("forward" in module.__dict__ for module in model.network.modules())
    assert not any("forward" in module.__dict__ for module in float64_copy(model).modules())


def test_the_exact_gradient_is_the_slope_of_the_logprobs():
    network = float64_copy(tiny_llama())
    weights = [0.0, 0.0, 0.0, 1.5, -0.5, 2.0]
    found = exact_gradient(network, [(SEQUENCES[0], weights), (SEQUENCES[1], [0.0, 0.0, 0.0, -1.0])], 0.7)

    def value() -> float:
        first, second = (exact_logprobs(network, s, 0.7) for s in SEQUENCES[:2])
        return (first @ torch.tensor(weights, dtype=torch.float64) - second[3]).item()

    for name in ("model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "model.norm.weight"):
        p = network.get_parameter(name)
        place = tuple(int(i) for i in torch.unravel_index(found[name].abs().argmax(), p.shape))
        slopes = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                p[place] += step
                slopes.append(value())
                p[place] -= step
        assert (slopes[0] - slopes[1]) / 2e-6 == pytest.approx(found[name][place].item(), rel=1e-5)


def test_the_copy_leaves_the_model_as_it_was():
    model = tiny_llama()
    before = packed(model)
    float64_copy(model)
    assert torch.equal(packed(model), before)
