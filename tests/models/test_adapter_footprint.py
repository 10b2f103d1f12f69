"""What an adapter takes, by hand and against autograd's own saved tensors."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from posttrain.data.packing import Example, pack
from posttrain.errors import UserError
from posttrain.models.footprint import adapter_bytes, adapter_size, dora_bytes, saved_bytes, shape_of
from posttrain.models.language_model import wrap
from posttrain.models.lora import Lora, add_adapter

pytest.importorskip("peft")

N = 100
(ROW,) = pack([Example((1, 2, 3), (4,) * (N - 3), (False,) * (N - 4) + (True,))], 500)


def small(layers=2, dtype=torch.float32):
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=500,
        tie_word_embeddings=True,
    )
    return wrap(LlamaForCausalLM(config).to(dtype), name="small", context=500)


def kept_by_autograd(model):
    """Bytes of a layer, from one and two of them; products of weights alone, which no token has, are left out."""
    parameters = {p.untyped_storage().data_ptr() for p in model.network.parameters()}
    kept = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters and (N in tensor.shape or tensor.shape[-1:] == (1,)):
            kept[storage.data_ptr()] = storage, tensor
        return tensor

    with model.dropping(1), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        states = model.states(ROW)
    assert states.requires_grad
    return sum(storage.nbytes() for storage, _ in kept.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("dora", [False, True])
def test_activations_are_those_that_autograd_keeps(dtype, dropout, dora):
    lora = Lora(4, dropout=dropout, dora=dora)
    found, ours = [], []
    for layers in (1, 2):
        model = small(layers, dtype)
        shape, size = shape_of(model.network, "small"), adapter_size(model.network, lora)
        found.append(kept_by_autograd(add_adapter(model, lora)))
        copies = 4 * size.products if dora and dropout and dtype == torch.bfloat16 else 0
        beside = adapter_bytes(size, shape, dtype.itemsize, tokens=N) - copies
        ours.append(saved_bytes(shape, dtype.itemsize, tokens=N, learned=0) + beside)
    assert found[1] - found[0] == ours[1] - ours[0]  # a layer, to the byte


@pytest.mark.parametrize(
    ("lora", "low_rank", "whole", "ends"),
    [
        # q and o: 128 widths each, k and v: 96 each, gate, up and down: 160 each; two layers
        (Lora(4), 4 * 2 * (2 * 128 + 2 * 96 + 3 * 160), 0, False),
        (Lora(4, targets=("q_proj", "v_proj")), 4 * 2 * (128 + 96), 0, False),
        (Lora(4, targets=("q_proj", "v_proj"), dora=True), 4 * 2 * (128 + 96) + 2 * (64 + 32), 0, False),
        (Lora(4, targets=("q_proj",), modules_to_save=("embed_tokens",)), 4 * 2 * 128, 40 * 64, True),
        (Lora(4, targets=("q_proj",), modules_to_save=("lm_head", "embed_tokens")), 4 * 2 * 128, 40 * 64, True),  # tied
        (Lora(4, modules_to_save=("norm", "layers.1.mlp")), 4 * (2 * 448 + 3 * 160), 64 + 3 * 64 * 96, False),
    ],
)
def test_parameters_are_those_that_are_trained(lora, low_rank, whole, ends):
    model = small()
    size = adapter_size(model.network, lora)
    assert (size.low_rank, size.whole, size.ends) == (low_rank, whole, ends)
    trained = add_adapter(model, lora).trainable()
    assert sum(p.numel() for _, p in trained) == low_rank + whole
    assert dora_bytes(size) == (16 * 64 * 64 if lora.dora else 0)


def test_a_name_that_means_nothing_is_refused_as_in_a_run():
    with pytest.raises(UserError, match="did you mean 'q_proj'"):
        adapter_size(small().network, Lora(4, targets=("q_porj",)), "small")
