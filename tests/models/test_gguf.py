"""A GGUF file is written here with the gguf library, from weights whose unpacked values numpy computes."""

import json

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from posttrain.models.gguf import convert

WIDTH, INNER, HEADS, KV_HEADS, LAYERS = 64, 96, 4, 2, 2
HEAD = WIDTH // HEADS
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *bytes_to_unicode().values(), "ĠĠ", "12"]
LINEAR = {  # gguf's name: (transformers' name, rows, columns)
    "attn_q": ("self_attn.q_proj", WIDTH, WIDTH),
    "attn_k": ("self_attn.k_proj", KV_HEADS * HEAD, WIDTH),
    "attn_v": ("self_attn.v_proj", KV_HEADS * HEAD, WIDTH),
    "attn_output": ("self_attn.o_proj", WIDTH, WIDTH),
    "ffn_gate": ("mlp.gate_proj", INNER, WIDTH),
    "ffn_up": ("mlp.up_proj", INNER, WIDTH),
    "ffn_down": ("mlp.down_proj", WIDTH, INNER),
}
Q4, Q8, F32 = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F32


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of the rows of queries and keys: the two halves of a head, one row of each in turn."""
    halves = rows.reshape(heads, 2, HEAD // 2, -1)
    return np.stack([halves[:, 0], halves[:, 1]], axis=2).reshape(rows.shape)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The folder that `convert` made, and the weights it should hold by transformers' names, in float32."""
    rng = np.random.default_rng(0)
    where = tmp_path_factory.mktemp("gguf")
    writer = gguf.GGUFWriter(where / "tiny.gguf", "llama")
    writer.add_name("a title")
    for add, value in [
        (writer.add_block_count, LAYERS),
        (writer.add_context_length, 128),
        (writer.add_embedding_length, WIDTH),
        (writer.add_feed_forward_length, INNER),
        (writer.add_head_count, HEADS),
        (writer.add_head_count_kv, KV_HEADS),
        (writer.add_rope_freq_base, 100_000.0),
        (writer.add_layer_norm_rms_eps, 1e-5),
        (writer.add_vocab_size, len(TOKENS)),
        (writer.add_rope_dimension_count, HEAD),
        (writer.add_tokenizer_model, "gpt2"),
        (writer.add_tokenizer_pre, "smollm"),
        (writer.add_token_list, TOKENS),
        (writer.add_token_types, [3] * 3 + [1] * (len(TOKENS) - 3)),
        (writer.add_token_merges, ["Ġ Ġ", "1 2"]),
        (writer.add_bos_token_id, 1),
        (writer.add_eos_token_id, 2),
        (writer.add_pad_token_id, 2),
        (writer.add_unk_token_id, 0),
        (writer.add_chat_template, TEMPLATE),
    ]:
        add(value)
    expected = {}

    def put(name: str, published: str, shape: tuple[int, ...], kind, heads: int = 0) -> None:
        packed = quantize(rng.normal(size=shape).astype(np.float32), kind)
        expected[f"{published}.weight"] = torch.from_numpy(np.array(dequantize(packed, kind)))
        stored = interleaved(packed, heads) if heads else packed
        writer.add_tensor(f"{name}.weight", stored, raw_dtype=kind)

    put("token_embd", "model.embed_tokens", (len(TOKENS), WIDTH), Q8)
    put("output_norm", "model.norm", (WIDTH,), F32)
    for layer in range(LAYERS):
        put(f"blk.{layer}.attn_norm", f"model.layers.{layer}.input_layernorm", (WIDTH,), F32)
        put(f"blk.{layer}.ffn_norm", f"model.layers.{layer}.post_attention_layernorm", (WIDTH,), F32)
        for name, (published, rows, columns) in LINEAR.items():
            heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name, 0)
            put(f"blk.{layer}.{name}", f"model.layers.{layer}.{published}", (rows, columns), Q4, heads)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    folder = where / "made"
    folder.mkdir()
    convert(where / "tiny.gguf", folder, {"initializer_range": 0.25, "rms_norm_eps": 1e-5})
    return folder, expected


def test_every_weight_is_the_unpacked_one_rounded_to_bfloat16(tiny):
    folder, expected = tiny
    found = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").state_dict()
    head = found.pop("lm_head.weight")
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert found[name].dtype == torch.bfloat16
        difference = (found[name].float() - weight).abs()
        assert (difference <= weight.abs() * 2**-8).all(), name  # half a unit in bfloat16's last place
    assert torch.equal(head, found["model.embed_tokens.weight"])


def test_config_is_complete_and_tied_and_names_no_quantisation(tiny):
    config = json.loads((tiny[0] / "config.json").read_text())
    wanted = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "tie_word_embeddings": True,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": LAYERS,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "max_position_embeddings": 128,
        "rope_parameters": {"rope_theta": 100_000.0, "rope_type": "default"},
        "vocab_size": len(TOKENS),
        "rms_norm_eps": 1e-5,  # GGUF holds float32: 9.999999747378752e-06
        "initializer_range": 0.25,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    assert {key: config.get(key) for key in wanted} == wanted
    assert "quantization_config" not in config and "_model_name_or_path" not in config


def test_tokenizer_cuts_out_every_digit_before_it_joins_spaces(tiny):
    tokenizer = AutoTokenizer.from_pretrained(tiny[0])
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("a  12")) == ["a", "ĠĠ", "1", "2"]
    text = "é 3  4\n<|im_end|>"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("<|im_start|><|im_end|>") == [1, 2]


def test_tokenizer_has_the_template_and_its_special_tokens_and_its_limit(tiny):
    tokenizer = AutoTokenizer.from_pretrained(tiny[0])
    said = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert said == "<|im_start|>user\nhi<|im_end|>\n"
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (2, 2, 1)
    assert tokenizer.model_max_length == 128
    saved = json.loads((tiny[0] / "tokenizer_config.json").read_text())
    assert not {"is_local", "local_files_only", "name_or_path"} & saved.keys()


def test_convert_shows_nothing(tiny, tmp_path, capfd):
    (tmp_path / "out").mkdir()
    capfd.readouterr()
    convert(tiny[0].parent / "tiny.gguf", tmp_path / "out", {})
    assert capfd.readouterr() == ("", "")
