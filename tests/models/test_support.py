"""What is refused by its configuration, before weights are read, and what is compared with transformers when loaded."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from posttrain.cli import main
from posttrain.errors import ModelError
from posttrain.models.footprint import read_shape
from posttrain.models.heads import load_reward_model
from posttrain.models.language_model import wrap
from posttrain.models.load import load_model, probe
from tests.data.families import of_family

REFUSED = {
    "mamba": ({}, "layers are recurrent"),
    "falcon_mamba": ({}, "layers are recurrent"),
    "llama4_text": ({}, "chunked_attention"),
    "qwen3_next": ({}, "layers are recurrent"),
    "lfm2": ({"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}, r"does not support \(conv\)"),
    "bloom": ({}, "does not use transformers' registry"),
    "bart": ({}, "only decoders are trained"),
    "gemma3": ({}, "only text models are trained"),
    "starcoder2": (
        {"sliding_window": 64, "max_position_embeddings": 65},
        "window of 64 tokens is shorter than its context of 65",
    ),
    "gemma3_text": ({"use_bidirectional_attention": True}, "sees later tokens"),
}


def folder_of(path, kind, **options):
    """A configuration and a tokenizer without weights: whoever reads weights fails by their absence."""
    AutoConfig.for_model(kind, **options).save_pretrained(str(path))
    of_family("smollm2").save_pretrained(str(path))
    return str(path)


@pytest.mark.parametrize(("kind", "options", "why"), [(k, *v) for k, v in REFUSED.items()], ids=REFUSED)
def test_what_cannot_be_trained_is_refused_before_weights_are_read(tmp_path, kind, options, why):
    folder = folder_of(tmp_path, kind, **options)
    for use in (load_model, load_reward_model):
        with pytest.raises(ModelError, match=f"is of type {kind}: .*{why}") as caught:
            use(folder, dtype=torch.float32)
        assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match=why):
        read_shape(folder)


def test_a_type_without_a_sequence_classifier_is_no_reward_model(tmp_path):
    with pytest.raises(ModelError, match="of type granite, of which transformers has no sequence classifier"):
        load_reward_model(folder_of(tmp_path, "granite"), dtype=torch.float32)


@pytest.mark.parametrize(("command", "code"), [("reward-model", 2), ("preference", 0)])
def test_the_plan_of_a_reward_model_refuses_it_too(tmp_path, capsys, command, code):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    folder = folder_of(tmp_path, "granite", num_key_value_heads=2, vocab_size=300, **sizes)
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n' * 16)
    of_family("smollm2").save_pretrained(folder)
    assert main([command, "--model", folder, "--dataset", str(tmp_path / "pairs.jsonl"), "--dry-run"]) == code
    assert ("of type granite, of which transformers has no sequence classifier" in capsys.readouterr().err) == bool(
        code
    )


@pytest.mark.parametrize("command", ["sft", "rl", "preference", "reward-model", "sft --dry-run"])
@pytest.mark.parametrize("kind", ["mamba", "llama4_text"])
def test_every_command_refuses_in_one_line(tmp_path, capsys, command, kind):
    folder = folder_of(tmp_path / "model", kind)
    rows = [{"prompt": "a", "completion": "b", "chosen": "b", "rejected": "c", "answer": "1"}] * 20
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reward = ["--reward", "numbers"] if command == "rl" else []
    assert main([*command.split(), "--model", folder, "--dataset", str(data), *reward]) == 2
    said = capsys.readouterr().err.strip()
    assert f"is of type {kind}" in said and "\n" not in said and "Traceback" not in said


def untested(**options):
    """A model of a type that is not in the matrix."""
    config = AutoConfig.for_model(
        "gemma", vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=64, pad_token_id=None, bos_token_id=None,
        eos_token_id=None, initializer_range=0.3, **options,
    )  # fmt: skip
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_type_outside_the_matrix_is_taken_if_its_numbers_are_transformers_own(dtype):
    model = wrap(untested().to(dtype), name="gemma", context=64)
    assert model.network.config._attn_implementation == "posttrain"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_type_outside_the_matrix_that_mixes_tokens_elsewhere_is_refused(dtype):
    network = untested().to(dtype)
    # as a convolution or a token shift would
    network.model.layers[0].mlp.register_forward_pre_hook(lambda module, x: (x[0] + x[0].roll(1, dims=1),))
    with pytest.raises(ModelError, match="type gemma compute different outputs for packed rows"):
        wrap(network, name="gemma", context=64)


def test_a_type_outside_the_matrix_that_does_not_run_is_refused_in_one_line():
    network = untested()
    attention = network.model.layers[1].self_attn
    del attention.layer_idx
    with pytest.raises(ModelError, match=r"type gemma do not run on packed rows: .*layer_idx"):
        wrap(network, name="gemma", context=64)


LENGTHS = {"max_position_embeddings": 64, "original_max_position_embeddings": 16}
ROPE = {"rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}


@pytest.mark.parametrize(("kind", "context"), [("longrope", 16), ("default", 64)])
def test_longrope_ends_before_a_long_sequence_would_change_the_frequencies_of_its_row(tmp_path, kind, context):
    rope = ROPE if kind == "longrope" else {"rope_theta": 1e4}
    config = AutoConfig.for_model(
        "phi3", vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, pad_token_id=None, bos_token_id=None, eos_token_id=None, **LENGTHS,
        rope_parameters={"rope_type": kind, **rope},
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(str(tmp_path))
    folder = str(tmp_path)
    assert read_shape(folder).context == context
    assert load_model(folder, dtype=torch.float32).context == context
    assert load_reward_model(folder, dtype=torch.float32).body.context == context
    assert probe(folder, 1, dtype=torch.float32).context == context


SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
SMALL |= {"num_key_value_heads": 2, "vocab_size": 40}


def test_a_window_that_hides_nothing_is_no_reason(tmp_path):
    for options in ({"sliding_window": 64}, {"sliding_window": None}):
        folder = folder_of(tmp_path, "starcoder2", **SMALL, max_position_embeddings=64, **options)
        assert read_shape(folder).context == 64
    folder = folder_of(
        tmp_path, "qwen2", **SMALL, max_position_embeddings=64, use_sliding_window=True, sliding_window=4
    )
    assert read_shape(folder).context == 64  # in the matrix
