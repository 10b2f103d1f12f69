"""Finding and loading models: what is refused, and what is taken from a folder."""

import json
import math
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, GPTJConfig, GPTJForCausalLM

from posttrain.errors import ModelError
from posttrain.models import load as loading
from posttrain.models import packaged
from posttrain.models.float64_reference import exact_logprobs, float64_copy
from posttrain.models.footprint import read_shape
from posttrain.models.heads import load_reward_model
from posttrain.models.language_model import wrap
from posttrain.models.load import base_of, load_model, locate, probe, tokenizer_of
from posttrain.models.lora import add_lora
from tests.recipes.folders import model_folder
from tests.tiny import tiny_llama


@pytest.mark.parametrize("name", ["./nothing", "/no/such/folder", "~/models/x", "a/b/c", "smollm", ""])
def test_what_is_neither_folder_nor_hub_id_nor_packaged_is_refused(name):
    with pytest.raises(ModelError, match=r"no hub id \(OWNER/NAME\), and no packaged model \(smollm2-135m-instruct"):
        locate(name)


def test_folders_and_hub_ids_are_taken_as_they_are(tmp_path):
    assert locate(str(tmp_path)) == str(tmp_path)
    assert locate("OWNER/NAME") == "OWNER/NAME"


def test_an_adapter_names_its_base_so_that_it_is_found_from_elsewhere(tmp_path, monkeypatch):
    pytest.importorskip("peft")
    model_folder(tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    add_lora(load_model("base", dtype=torch.float32), rank=2).save(tmp_path / "adapter")
    monkeypatch.chdir("/")
    assert load_model(str(tmp_path / "adapter"), dtype=torch.float32).adapter is not None


def test_a_packaged_model_is_pulled(monkeypatch, tmp_path):
    monkeypatch.setattr(packaged, "pull", lambda name: tmp_path / name)
    assert locate("smollm2-135m-instruct") == str(tmp_path / "smollm2-135m-instruct")


def test_a_folder_without_a_model_is_refused_in_one_line(tmp_path):
    with pytest.raises(ModelError, match="cannot load a language model from") as caught:
        load_model(str(tmp_path), dtype=torch.float32)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_an_adapter_or_a_reward_model_whose_weights_are_not_finite_is_refused(tmp_path, number):
    pytest.importorskip("peft")
    base = model_folder(tmp_path / "base")
    adapted = add_lora(load_model(str(base), dtype=torch.float32), rank=2)
    adapted.save(tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    weights = load_file(file)
    weights[next(iter(weights))][0, 0] = number
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"adapter' has numbers that are not finite \(NaN or infinity\) in 1 of"):
        load_model(str(tmp_path / "adapter"), dtype=torch.float32)
    assert load_reward_model(str(base), dtype=torch.float32).head.isfinite().all()
    weights = load_file(base / "model.safetensors")
    weights["model.norm.weight"][1] = number
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"base' has numbers that are not finite .*: model\.norm\.weight;"):
        load_reward_model(str(base), dtype=torch.float32)


def test_an_error_of_many_lines_is_told_in_its_first(tmp_path, monkeypatch):
    def fails(*others, **options):
        raise OSError("the first line\nand the second")

    monkeypatch.setattr(loading.AutoConfig, "from_pretrained", fails)
    with pytest.raises(ModelError, match=r"from .*: the first line$"):
        load_model(str(tmp_path), dtype=torch.float32)


def test_torn_weights_are_refused_in_one_line(tmp_path):
    folder = model_folder(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(ModelError, match="cannot load a language model from") as caught:
        load_model(str(folder), dtype=torch.float32)
    assert "\n" not in str(caught.value)


def test_a_quantization_whose_library_is_missing_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    folder = model_folder(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (folder / "config.json").write_text(json.dumps(config))
    for load in (load_model, load_reward_model):
        with pytest.raises(ModelError, match=r"cannot load a .* model from .*: .*bitsandbytes") as caught:
            load(str(folder), dtype=torch.float32)
        assert "\n" not in str(caught.value)


def test_a_model_that_is_no_language_model_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(ModelError, match="cannot load a language model"):
        load_model(str(tmp_path), dtype=torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loads_in_the_format_asked_for_ready_to_be_trained(tmp_path, dtype):
    folder = str(model_folder(tmp_path / "model"))
    model = load_model(folder, dtype=dtype)
    assert (model.dtype, model.context, model.name) == (dtype, 256, folder)
    assert not model.network.training and all(p.requires_grad and p.dtype == dtype for _, p in model.trainable())
    stored = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    found = model.network.state_dict()
    assert all(torch.equal(found[name], weight.to(dtype)) for name, weight in stored.items())


def test_weights_that_are_not_there_are_named_and_not_made_up(tmp_path):
    folder = model_folder(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for load in (load_model, load_reward_model):
        with pytest.raises(ModelError, match=r"lacks 1 of the model's weights: model.layers.0.mlp.up_proj.weight"):
            load(str(folder), dtype=torch.float32)


def test_a_reward_model_is_no_policy(tmp_path):
    load_reward_model(str(model_folder(tmp_path / "model")), dtype=torch.float32).save(tmp_path / "scorer", padding=0)
    with pytest.raises(ModelError, match="is a sequence classifier"):
        load_model(str(tmp_path / "scorer"), dtype=torch.float32)


def test_stop_tokens_are_those_of_the_generation_config():
    model = tiny_llama()
    for given, expected in ((3, {3}), ([3, 5], {3, 5}), (None, set())):
        model.network.generation_config.eos_token_id = given
        assert model.stop_ids == expected


def test_an_adapters_folder_brings_its_base(tmp_path):
    pytest.importorskip("peft")
    base = str(model_folder(tmp_path / "base"))
    adapted = add_lora(load_model(base, dtype=torch.float32), rank=2)
    with torch.no_grad():
        for name, p in adapted.trainable():
            p.normal_(generator=torch.Generator().manual_seed(len(name)))
    adapted.save(tmp_path / "adapter")
    again = load_model(str(tmp_path / "adapter"), dtype=torch.float32)
    ids = [5, 9, 3, 7]
    found = exact_logprobs(float64_copy(again), ids)
    torch.testing.assert_close(found, exact_logprobs(float64_copy(adapted), ids), rtol=0, atol=1e-9)
    assert (found - exact_logprobs(float64_copy(load_model(base, dtype=torch.float32)), ids)).abs().max() > 0.01


def save_with(folder, name, **fields):
    """A random tiny model of another family."""
    config = AutoConfig.for_model(
        name, vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=64, initializer_range=0.3, pad_token_id=None,
        bos_token_id=None, eos_token_id=None, **fields,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return str(folder)


def test_a_head_that_makes_logits_in_another_way_is_refused():
    network = tiny_llama().network
    network.lm_head.register_forward_hook(lambda module, x, products: products * 0.25)
    with pytest.raises(ModelError, match="computes logits in a way that posttrain does not support"):
        wrap(network, name="scaled", context=24)


def test_a_head_with_a_bias_is_refused(tmp_path):
    torch.manual_seed(0)
    network = GPTJForCausalLM(GPTJConfig(vocab_size=40, n_embd=32, n_layer=2, n_head=4, rotary_dim=4, n_positions=64))
    with torch.no_grad():
        network.lm_head.bias.normal_()
    network.save_pretrained(tmp_path)
    with pytest.raises(ModelError):
        load_model(str(tmp_path), dtype=torch.float32)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "mistral", "phi3", "gemma"])
def test_families_that_are_taken_compute_their_own_logprobs(tmp_path, family):
    from posttrain.data.packing import Example, pack

    model = load_model(save_with(tmp_path, family), dtype=torch.float32)
    prompt, said = (5, 9, 3, 7), [(4, 8, 2), (11,)]
    (row,) = pack([Example(prompt, s, (True,) * len(s)) for s in said], 100)
    exact = torch.cat([exact_logprobs(float64_copy(model), prompt + s, 0.7)[3:] for s in said])
    torch.testing.assert_close(model.logprobs(row, 0.7).logprobs.double(), exact, rtol=0, atol=1e-5)


@pytest.fixture
def adapter(tmp_path):
    """An adapter's folder without a tokenizer, and its base with one."""
    pytest.importorskip("peft")
    base = str(model_folder(tmp_path / "base"))
    add_lora(load_model(base, dtype=torch.float32), rank=2).save(tmp_path / "adapter")
    return tmp_path / "adapter"


def test_an_adapter_without_a_tokenizer_has_its_bases(adapter):
    assert tokenizer_of(str(adapter)) == base_of(str(adapter)) == str(adapter.parent / "base")
    (adapter / "tokenizer.json").write_text("{}")
    assert tokenizer_of(str(adapter)) == str(adapter)


def loaded(name):
    return load_model(name, dtype=torch.float32)


def cut_down(name):
    return probe(name, 1, dtype=torch.float32)


@pytest.mark.parametrize("ask", [loaded, read_shape, cut_down])
def test_an_adapter_whose_base_is_gone_names_both_folders_and_what_to_do(adapter, ask):
    base = adapter.parent / "base"
    base.rename(adapter.parent / "moved")
    with pytest.raises(ModelError) as error:
        ask(str(adapter))
    assert str(error.value) == (
        f"the adapter in '{adapter}' needs the model '{base}', which was not found; restore it, or link to "
        f"where it is now: ln -s MODEL '{base}'"
    )
    base.symlink_to(adapter.parent / "moved")
    assert ask(str(adapter))


def test_an_adapter_whose_base_is_damaged_or_an_adapter_names_the_adapter_first(adapter):
    (adapter.parent / "base" / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"^the adapter in '.*adapter' needs its base: cannot load .*base'"):
        loaded(str(adapter))
    (adapter.parent / "base" / "adapter_config.json").write_text("{}")
    with pytest.raises(
        ModelError, match=r"^the adapter in '.*adapter' was trained on the adapter '.*base'; merge that"
    ):
        loaded(str(adapter))


@pytest.mark.parametrize("kind", ["NONE_SUCH", None, 3])
def test_an_adapter_of_another_kind_or_without_weights_is_one_line(adapter, kind):
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"peft_type": kind}))
    with pytest.raises(ModelError, match=rf"in '.*adapter' is of a kind that is not supported \(it is {kind}\)"):
        loaded(str(adapter))
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")  # a pickle, which is never opened
    with pytest.raises(ModelError, match=r"in '.*adapter' has no adapter_model\.safetensors"):
        loaded(str(adapter))
