"""Adapters: nothing at first, then all that is trained; the base under them stays what it was."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from posttrain.data.packing import Example, pack
from posttrain.engine.transformers import TransformersEngine
from posttrain.errors import ModelError, UserError
from posttrain.models import lora
from posttrain.models.lora import add_lora, base_of, is_adapter, load_adapter
from posttrain.models.reference import AdapterOff, FrozenAdapter, FrozenCopy, reference_for
from posttrain.training.optimizer import MasterAdamW
from posttrain.types import Request, Sampling
from tests.tiny import tiny_llama
from tests.training.steps import supervised_step

EXAMPLES = [Example((5, 9, 3), (4, 8, 1), (True,) * 3), Example((5, 9, 3), (7, 1), (True,) * 2)]
(ROW,) = pack(EXAMPLES, 100)


@pytest.fixture(autouse=True)
def needs_peft(request):
    if request.node.name != "test_without_peft_the_error_says_what_to_type":
        pytest.importorskip("peft")


def logprobs(model):
    with torch.no_grad():
        return model.logprobs(ROW, 0.7).logprobs


def trained(model, steps=3):
    optimizer = MasterAdamW(model.trainable())
    for _ in range(steps):
        supervised_step(model, optimizer, EXAMPLES, lr=0.05, microbatch_tokens=100)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_adapter_starts_as_the_identity(dtype):
    plain = logprobs(tiny_llama(dtype=dtype))
    assert torch.equal(logprobs(add_lora(tiny_llama(dtype=dtype), rank=4)), plain)


def test_only_the_adapter_is_trained_and_the_head_has_none():
    model = add_lora(tiny_llama(), rank=4)
    names = [name for name, _ in model.trainable()]
    # 2 layers x 7 linear maps x A and B
    assert len(names) == 28 and all("lora_A" in n or "lora_B" in n for n in names)
    assert not any("lm_head" in n or "embed" in n for n in names)
    base = {n: p.detach().clone() for n, p in model.network.named_parameters() if "lora" not in n}
    before = logprobs(model)
    trained(model)
    assert (logprobs(model) - before).abs().max() > 0.01
    assert all(torch.equal(p, base[n]) for n, p in model.network.named_parameters() if "lora" not in n)


def test_a_layer_may_be_trained_whole_beside_it():
    model = add_lora(tiny_llama(), rank=4, whole="model.layers.0.mlp.down_proj")
    names = {name for name, _ in model.trainable()}
    layers = {name.split(".lora_")[0] for name in names if ".lora_" in name}
    assert len(layers) == 13 and names - {name for name in names if ".lora_" in name} == {
        "model.layers.0.mlp.down_proj.weight"
    }


def test_its_weights_are_float32_whatever_the_base_computes_in():
    model = add_lora(tiny_llama(dtype=torch.bfloat16), rank=4)
    assert {p.dtype for _, p in model.trainable()} == {torch.float32}
    assert model.dtype == torch.bfloat16
    assert torch.isfinite(logprobs(trained(model))).all()


@pytest.mark.parametrize(("alpha", "scale"), [(None, 2.0), (2.0, 0.5)])
def test_the_update_is_scaled_by_alpha_over_rank(alpha, scale):
    model = add_lora(tiny_llama(), rank=4, alpha=alpha)
    layer = model.network.model.layers[0].mlp.down_proj
    x = torch.randn(3, 48, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight.normal_()
        torch.testing.assert_close(layer(x) - layer.base_layer(x), scale * x @ a.T @ b.T, rtol=1e-4, atol=1e-4)


def test_the_seed_decides_how_it_starts_and_nothing_else_is_drawn():
    first, same, other = (dict(add_lora(tiny_llama(), rank=4, seed=seed).trainable()) for seed in (1, 1, 2))
    assert all(torch.equal(first[n], same[n]) for n in first)
    assert any(not torch.equal(first[n], other[n]) for n in first)
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    add_lora(tiny_llama(), rank=4)
    assert torch.equal(torch.rand(1), expected)


def test_with_the_adapter_off_the_base_is_the_reference_and_the_policy_stays_on():
    base = tiny_llama()
    frozen = FrozenCopy(base)
    model = add_lora(base, rank=4)
    reference = reference_for(model)
    assert isinstance(reference, AdapterOff)
    now = logprobs(trained(model))
    torch.testing.assert_close(reference.logprobs(ROW, 0.7), frozen.logprobs(ROW, 0.7), rtol=0, atol=1e-6)
    assert (reference.logprobs(ROW, 0.7) - now).abs().max() > 0.01
    assert torch.equal(logprobs(model), now)
    assert not reference.logprobs(ROW, 0.7).requires_grad


def test_a_frozen_copy_does_not_follow_the_policy():
    model = tiny_llama()
    reference = reference_for(model)
    assert isinstance(reference, FrozenCopy)
    before = logprobs(model)
    trained(model)
    assert torch.equal(reference.logprobs(ROW, 0.7), before) and not torch.equal(logprobs(model), before)
    assert not reference.logprobs(ROW, 0.7).requires_grad


def test_under_an_adapter_that_was_trained_before_the_reference_is_that_adapter_as_it_was(tmp_path):
    trained(add_lora(tiny_llama(), rank=4)).save(tmp_path)
    model = load_adapter(tiny_llama(), tmp_path)
    reference = reference_for(model)
    assert isinstance(reference, FrozenAdapter)
    before = logprobs(model)
    assert torch.equal(reference.logprobs(ROW, 0.7), before)  # not the base under it
    assert (before - logprobs(tiny_llama())).abs().max() > 0.01
    now = logprobs(trained(model))
    assert torch.equal(reference.logprobs(ROW, 0.7), before) and not torch.equal(now, before)
    assert torch.equal(logprobs(model), now)  # the policy stays on
    assert not reference.logprobs(ROW, 0.7).requires_grad


def test_a_trained_adapter_is_not_thrown_away_for_a_fresh_one(tmp_path):
    trained(add_lora(tiny_llama(), rank=4)).save(tmp_path)
    with pytest.raises(UserError, match="is an adapter already; leave out `lora_rank`"):
        add_lora(load_adapter(tiny_llama(), tmp_path), rank=4)


def test_without_an_adapter_there_is_nothing_to_switch_off():
    with pytest.raises(ValueError, match="use FrozenCopy"):
        AdapterOff(tiny_llama())


def test_the_sampler_sees_a_trained_adapter():
    model = add_lora(tiny_llama(), rank=4)
    engine = TransformersEngine(model, frozenset())
    requests = [Request((5, 9, 3), Sampling(8), seed) for seed in range(6)]
    before = engine.generate(requests)
    trained(model, steps=5)
    assert engine.generate(requests) != before


def test_comes_back_as_it_was_saved_and_trains_on(tmp_path):
    model = trained(add_lora(tiny_llama(), rank=4))
    model.save(tmp_path)
    assert is_adapter(tmp_path) and not (tmp_path / "model.safetensors").exists()
    again = load_adapter(tiny_llama(), tmp_path)
    torch.testing.assert_close(logprobs(again), logprobs(model), rtol=0, atol=1e-6)
    assert [n for n, _ in again.trainable()] == [n for n, _ in model.trainable()]
    assert not torch.equal(logprobs(trained(again)), logprobs(model))


def test_the_base_is_named_in_the_adapters_folder(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "OWNER/NAME"}')
    assert base_of(tmp_path) == "OWNER/NAME"


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"base_model_name_or_path": null}'])
def test_an_adapter_that_names_no_base_is_refused(tmp_path, text):
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(ModelError, match="does not name the adapter's base model"):
        base_of(tmp_path)


def test_a_torn_adapter_is_refused_in_one_line(tmp_path):
    add_lora(tiny_llama(), rank=4).save(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"torn")
    with pytest.raises(ModelError, match="cannot load the adapter in") as caught:
        load_adapter(tiny_llama(), tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kept", [20, 28])
def test_an_adapter_that_does_not_fit_is_refused_and_not_half_used(tmp_path, kept):
    model = add_lora(tiny_llama(), rank=4)
    model.save(tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    tensors = dict(sorted(load_file(path).items())[:kept])
    save_file(
        tensors
        | ({} if kept < 28 else {"base_model.model.model.layers.7.mlp.up_proj.lora_A.weight": torch.ones(4, 32)}),
        path,
    )
    counts = "0 of its weights match none in 'tiny', and 8" if kept < 28 else "1 of its weights .* and 0"
    with pytest.raises(ModelError, match=f"was trained on another model: {counts} modules have none"):
        load_adapter(tiny_llama(), tmp_path)


def test_without_peft_the_error_says_what_to_type(monkeypatch):
    monkeypatch.setattr(lora, "peft", None)
    with pytest.raises(UserError, match=r"pip install 'posttrain\[lora\]'"):
        add_lora(tiny_llama(), rank=4)


def test_the_layers_of_a_saved_adapter_are_in_order(tmp_path):
    """A set of names has another order in every process."""
    add_lora(tiny_llama(), rank=4).save(tmp_path)
    names = json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"]
    assert len(names) > 3 and names == sorted(names)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merged_weights_are_those_of_a_whole_model_that_computes_the_same(dtype):
    base = tiny_llama(dtype=dtype)
    whole = dict(base.weights())
    assert {n: p.data_ptr() for n, p in whole.items()} == {n: p.data_ptr() for n, p in base.network.named_parameters()}
    names = list(whole)
    adapted = trained(add_lora(base, rank=4))
    merged = dict(adapted.weights())
    assert list(merged) == names and all(weight.dtype == dtype for weight in merged.values())
    again = tiny_llama(seed=1, dtype=dtype)
    again.network.load_state_dict(merged, strict=False)
    torch.testing.assert_close(
        logprobs(again), logprobs(adapted), atol=0.05 if dtype == torch.bfloat16 else 1e-5, rtol=0
    )


def test_a_whole_folder_has_the_buffers_that_are_kept_too():
    plain, adapted = tiny_llama(), add_lora(tiny_llama(), rank=4)
    for model in (plain, adapted):
        model.network.model.layers[0].register_buffer("bias", torch.tensor([1.0, 2.0]))
        model.network.model.layers[0].register_buffer("made", torch.zeros(2), persistent=False)
    # and nothing of the adapter's own; the head is the embedding once more
    assert plain.whole().keys() - {"lm_head.weight"} == adapted.whole().keys()
    assert plain.whole()["model.layers.0.bias"].tolist() == adapted.whole()["model.layers.0.bias"].tolist() == [1, 2]
    assert "model.layers.0.made" not in plain.whole()
    assert not any(weight.requires_grad for weight in adapted.whole().values())


def test_a_small_adapter_shows_in_merged_bfloat16_weights():
    """Rounded to the nearest, a tenth of a step would be lost in every weight."""
    base = tiny_llama(dtype=torch.bfloat16)
    before = {name: weight.detach().float().clone() for name, weight in base.weights()}
    adapted = add_lora(base, rank=4)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in adapted.network.named_parameters():
            if "lora_B" in name:
                parameter.copy_(3e-4 * torch.randn(parameter.shape, generator=generator))
    moved = asked = 0.0
    for name, layer in adapted.network.named_modules():
        if hasattr(layer, "get_delta_weight"):
            delta = layer.get_delta_weight("default").detach().float()
            merged = dict(adapted.weights())[f"{name}.weight"].detach().float()
            moved += ((merged - before[f"{name}.weight"]) * delta).sum().item()
            asked += delta.square().sum().item()
    assert asked > 0 and moved / asked == pytest.approx(1.0, abs=0.3)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_reference_that_is_renewed_becomes_the_policy_of_then(rank):
    model = add_lora(tiny_llama(), rank) if rank else tiny_llama()
    reference = reference_for(model, renewed=True)
    before = reference.logprobs(ROW, 0.7)
    trained(model, 1)
    assert torch.equal(reference.logprobs(ROW, 0.7), before)
    now = model.logprobs(ROW, 0.7).logprobs.detach()
    reference.renew(dict(model.trainable()))
    assert torch.equal(reference.logprobs(ROW, 0.7), now) and not torch.equal(now, before)
    trained(model, 1)
    assert torch.equal(reference.logprobs(ROW, 0.7), now)


def test_the_base_under_an_adapter_has_nothing_that_could_be_renewed():
    model = add_lora(tiny_llama(), 2)
    assert isinstance(reference_for(model), AdapterOff) and reference_for(model).kept() == {}
    assert isinstance(reference_for(model, renewed=True), FrozenAdapter)
