"""Widths by hand for SmolLM2-135M; activations against what autograd itself keeps."""

import copy
from dataclasses import replace

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from posttrain.data.packing import Example, pack
from posttrain.engine.kv_cache import bytes_per_token
from posttrain.errors import ModelError
from posttrain.models.footprint import (
    Shape,
    cache_bytes_per_token,
    end_bytes,
    head_bytes,
    input_bytes,
    layer_bytes,
    moment_bytes,
    read_shape,
    saved_bytes,
    shape_of,
)
from posttrain.models.fused import checkpoint_layers
from posttrain.models.language_model import LanguageModel, wrap
from posttrain.models.logprobs import CHUNK_BYTES
from posttrain.models.rounding import BLOCK

SMOLLM2 = LlamaConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
)


def on_paper(config=SMOLLM2, kind=LlamaForCausalLM) -> Shape:
    with torch.device("meta"):
        return shape_of(kind(config), "smollm2")


def test_widths_of_smollm2_by_hand():
    shape = on_paper()
    layer = 576 * 576 + 2 * 576 * 192 + 576 * 576 + 3 * 576 * 1536  # q, k and v, o, and the MLP
    assert layer == 3_538_944
    assert shape.active == 30 * layer
    assert shape.parameters == 49152 * 576 + 30 * (layer + 2 * 576) + 576 == 134_515_008
    assert (shape.query_width, shape.key_width, shape.heads) == (576, 192, 9)
    assert (shape.layers, shape.hidden, shape.intermediate, shape.vocabulary) == (30, 576, 1536, 49152)
    assert shape.context == 8192
    # q and o: 1152 each; k and v: 768 each; gate, up and down: 2112 each
    assert shape.linear_widths == 30 * (2 * 1152 + 2 * 768 + 3 * 2112)
    assert shape.linear_widths == 305_280


def test_which_moments_of_smollm2_8_bits_hold():
    shape = on_paper()
    assert shape.quantized(0) == 30 * 3_538_944  # all but the embedding and the norms
    # an adapter of rank 4: A of down has 4 x 1536 numbers, so has B of gate and of up; all others 2,304 or fewer
    assert shape.quantized(4) == 30 * 3 * 4 * 1536
    # of rank 16 all but B of k and v, which have 16 x 192
    assert shape.quantized(16) == 16 * 305_280 - 30 * 2 * 16 * 192
    assert shape.quantized(2) == 0
    untied = copy.deepcopy(SMOLLM2)
    untied.tie_word_embeddings = False
    assert on_paper(untied).quantized(0) == shape.quantized(0) + 49152 * 576  # the head is no embedding


def test_moments_of_a_parameter_take_8_bytes_or_2_and_a_share_of_two_scales():
    assert moment_bytes(1000, 0) == 8000
    assert moment_bytes(1000, 512) == 8 * 488 + 2 * (512 + 2 * 4)
    assert moment_bytes(1000, 513) == 8 * 487 + 2 * (513 + 3 * 4)


def test_an_untied_head_counts_once_more():
    config = copy.deepcopy(SMOLLM2)
    config.tie_word_embeddings = False
    shape = on_paper(config)
    assert shape.parameters == 134_515_008 + 49152 * 576 and shape.active == on_paper().active


def test_a_token_uses_only_its_experts():
    config = Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        intermediate_size=99,
    )
    shape = on_paper(config, Qwen3MoeForCausalLM)
    router, attention_numbers, expert = 8 * 32, 2 * 32 * 32 + 2 * 32 * 16, 3 * 32 * 16
    assert shape.active == 2 * (router + attention_numbers + 2 * expert)
    assert shape.intermediate == 2 * 16


def test_gpt_2_has_linear_layers_of_its_own_and_no_name_for_its_mlp():
    config = GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=99)
    shape = on_paper(config, GPT2LMHeadModel)
    assert (shape.context, shape.heads, shape.query_width, shape.key_width, shape.intermediate) == (99, 4, 32, 32, 128)
    # q, k and v in one, o, and the two layers of the MLP
    assert shape.linear_widths == 2 * (32 + 96 + 32 + 32 + 2 * (32 + 128))
    assert bytes_per_token(config, torch.float32) == 2 * 2 * 32 * 4


def test_the_cache_takes_what_the_engine_counts():
    assert cache_bytes_per_token(on_paper(), 2) == 2 * 30 * 192 * 2 == bytes_per_token(SMOLLM2, torch.bfloat16)


def test_the_head_holds_a_chunk_three_blocks_and_its_gradient():
    chunks = CHUNK_BYTES + 3 * 4 * BLOCK
    assert head_bytes(on_paper(), 2, full=False) == head_bytes(on_paper(), 4, full=False) == chunks
    # 49152 x 576 numbers, in float32 and once more in bfloat16
    assert head_bytes(on_paper(), 2, full=True) == chunks + 49152 * 576 * 6
    wide = replace(on_paper(), vocabulary=CHUNK_BYTES)  # one row of logits is more than a chunk or a block
    assert head_bytes(wide, 2, full=False) == 2 * CHUNK_BYTES + 3 * 4 * CHUNK_BYTES


def small(layers: int, dtype: torch.dtype) -> LanguageModel:
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=layers,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    return wrap(LlamaForCausalLM(config).to(dtype), name="small", context=512)


def kept_by_autograd(model: LanguageModel, examples: list[Example]) -> int:
    """Bytes of different storages that the forward pass saves, the weights left out."""
    weights = {p.untyped_storage()._cdata for p in model.network.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage
        return tensor

    (row,) = pack(examples, 10**6)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = model.logprobs(row).logprobs.sum()
    assert loss.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("prefix", "branch", "branches"), [(0, 24, 1), (0, 16, 5), (40, 24, 1), (12, 24, 4)])
def test_activations_are_those_that_autograd_keeps(dtype, prefix, branch, branches):
    learned = (prefix > 0,) + (True,) * (branch - 1)
    examples = [Example(tuple(range(prefix)), tuple(range(n, n + branch)), learned) for n in range(branches)]
    one, two = (kept_by_autograd(small(layers, dtype), examples) for layers in (1, 2))
    shapes = [shape_of(small(layers, dtype).network, "small") for layers in (1, 2)]
    ours = [
        saved_bytes(shape, dtype.itemsize, tokens=prefix + branch * branches, learned=branches * sum(learned))
        for shape in shapes
    ]
    assert two - one == ours[1] - ours[0]  # a layer, to the byte
    assert one == pytest.approx(ours[0], rel=0.1)  # and what is kept once


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_with_checkpointing_a_layer_keeps_its_input_and_runs_again_with_all_that_it_kept(dtype):
    examples = [Example(tuple(range(12)), tuple(range(n, n + 24)), (True,) * 24) for n in range(4)]
    models = [small(layers, dtype) for layers in (1, 2)]
    for model in models:
        checkpoint_layers(model.network)
    one, two = (kept_by_autograd(model, examples) for model in models)
    shapes, tokens = [shape_of(model.network, "small") for model in models], 12 + 4 * 24
    inputs = [input_bytes(shape, dtype.itemsize, tokens=tokens) for shape in shapes]
    ends = [end_bytes(shape, dtype.itemsize, tokens, 4 * 24) for shape in shapes]
    assert two - one == inputs[1] - inputs[0] == tokens * dtype.itemsize * 48
    assert one == pytest.approx(inputs[0] + ends[0], rel=0.15)
    assert saved_bytes(shapes[1], dtype.itemsize, tokens=tokens, learned=96) == ends[1] + 2 * layer_bytes(
        shapes[1], dtype.itemsize, tokens=tokens
    )


@pytest.mark.parametrize("text", ["{}", '{"model_type": "no-such-model"}', '{"model_type": "t5"}'])
def test_a_folder_that_is_no_language_model_is_one_line(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match="cannot load a language model") as raised:
        read_shape(str(tmp_path))
    assert "\n" not in str(raised.value)


def test_an_adapter_has_its_base_s_shape(tmp_path):
    LlamaForCausalLM(small(2, torch.float32).network.config).save_pretrained(str(tmp_path / "base"))
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"base_model_name_or_path": "%s"}' % (tmp_path / "base"))
    assert read_shape(str(tmp_path / "adapter")).hidden == 48
