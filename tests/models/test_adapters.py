"""Each option of an adapter against plain peft on plain transformers: numbers, gradients, merged weights."""

from dataclasses import replace

import pytest
import torch
from transformers import LlamaForCausalLM

from posttrain import fast_paths
from posttrain.data.packing import Example, pack
from posttrain.engine.transformers import TransformersEngine
from posttrain.errors import ModelError, UserError
from posttrain.models.lora import Lora, add_adapter, load_adapter
from posttrain.models.reference import AdapterOff, reference_for
from posttrain.training.optimizer import MasterAdamW
from posttrain.types import Request, Sampling
from tests.tiny import tiny_llama
from tests.training.steps import supervised_step

peft = pytest.importorskip("peft")

EXAMPLES = [
    Example((5, 9, 3), (4, 8, 1), (True,) * 3),
    Example((5, 9, 3), (7, 1), (True,) * 2),
    Example((6, 2), (3, 3, 9, 1), (True,) * 4),
]
(ROW,) = pack(EXAMPLES, 100)
KINDS = {
    "plain": Lora(4),
    "alpha": Lora(4, alpha=3),
    "targets": Lora(4, targets=("q_proj", "mlp.down_proj")),
    "rslora": Lora(4, alpha=8, rslora=True),
    "dora": Lora(4, dora=True),
    "norms": Lora(4, modules_to_save=("norm", "input_layernorm")),
    "embedding": Lora(4, modules_to_save=("embed_tokens",)),
    "head": Lora(4, targets=("v_proj",), modules_to_save=("lm_head",)),
    "mlp": Lora(4, dora=True, modules_to_save=("layers.1.mlp", "layers.0.mlp.gate_proj")),
}


def moved(model, seed=0):
    """An adapter none of whose weights is what it began as."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, p in model.trainable():
            p += 0.1 * torch.randn(p.shape, generator=generator).to(p.dtype)
    return model


def plain_peft(kind, folder):
    """The same adapter by peft alone, on transformers' own model: no plan, no packing, no lean form."""
    base = tiny_llama()
    other = LlamaForCausalLM(base.network.config)
    other.load_state_dict(base.network.state_dict())
    other.set_attn_implementation("eager")
    return peft.PeftModel.from_pretrained(other, str(folder), is_trainable=True).eval()


def summed_logprobs(network):
    """The sum over all learned tokens, a sequence at a time."""
    total = torch.zeros(())
    for example in EXAMPLES:
        ids = torch.tensor([*example.prefix, *example.continuation])
        found = network(input_ids=ids[None]).logits[0].log_softmax(-1)
        total = total + found[:-1].gather(1, ids[1:, None])[len(example.prefix) - 1 :].sum()
    return total


@pytest.mark.parametrize("without", ["", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_and_gradients_are_those_of_plain_peft(kind, without, tmp_path):
    with fast_paths.without(without):
        model = moved(add_adapter(tiny_llama(), KINDS[kind]))
        ours = model.logprobs(ROW).logprobs.sum()
        ours.backward()
    model.save(tmp_path)
    other = plain_peft(KINDS[kind], tmp_path)
    theirs = summed_logprobs(other)
    theirs.backward()
    assert ours.item() == pytest.approx(theirs.item(), abs=2e-5)
    expected = {n.removeprefix("base_model.model."): p.grad for n, p in other.named_parameters() if p.requires_grad}
    found = {n: p.grad for n, p in model.trainable()}
    assert found.keys() == expected.keys() and len(found) > 3
    for name, gradient in found.items():
        gradient = gradient.to_dense() if gradient.is_sparse else gradient
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=2e-5, msg=name)
        assert gradient.abs().max() > 1e-4, name


@pytest.mark.parametrize("kind", KINDS)
def test_merged_it_is_a_whole_model_that_computes_the_same(kind):
    model = moved(add_adapter(tiny_llama(), KINDS[kind]))
    again = tiny_llama(seed=1)
    there = dict(again.network.named_parameters(remove_duplicate=False))
    merged = model.whole()
    assert merged.keys() == there.keys() or there.keys() - merged.keys() == {"lm_head.weight"}
    again.network.load_state_dict(merged, strict=False)
    with torch.no_grad():
        torch.testing.assert_close(again.logprobs(ROW).logprobs, model.logprobs(ROW).logprobs, rtol=0, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_off_it_is_the_base_and_on_again_the_policy(kind):
    base = tiny_llama()
    with torch.no_grad():
        before = base.logprobs(ROW).logprobs
    model = add_adapter(base, KINDS[kind])
    with torch.no_grad():
        torch.testing.assert_close(model.logprobs(ROW).logprobs, before, rtol=0, atol=1e-6)  # it begins as nothing
    reference = reference_for(model)
    assert isinstance(reference, AdapterOff)
    now = moved(model).logprobs(ROW).logprobs.detach()
    assert (now - before).abs().max() > 0.01
    torch.testing.assert_close(reference.logprobs(ROW, 1.0), before, rtol=0, atol=1e-6)
    assert torch.equal(model.logprobs(ROW).logprobs, now)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_comes_back_and_trains_on_as_if_it_had_never_been_saved(kind, dtype, tmp_path):
    def train(model, steps):
        optimizer = MasterAdamW(model.trainable())
        for _ in range(steps):
            supervised_step(model, optimizer, EXAMPLES, lr=0.02, microbatch_tokens=100)
        return model

    model = train(add_adapter(tiny_llama(dtype=dtype), KINDS[kind]), 2)
    model.save(tmp_path)
    again = load_adapter(tiny_llama(dtype=dtype), tmp_path)
    assert [n for n, _ in again.trainable()] == [n for n, _ in model.trainable()]
    assert all(torch.equal(p, q) for (_, p), (_, q) in zip(model.trainable(), again.trainable(), strict=True))
    if dtype == torch.float32:  # a bfloat16 module's masters are the checkpoint's, not the folder's
        train(again, 1), train(model, 1)
        assert torch.equal(again.logprobs(ROW).logprobs, model.logprobs(ROW).logprobs)


def test_nothing_is_adapted_inside_a_module_that_is_trained_whole():
    names = [name for name, _ in add_adapter(tiny_llama(), KINDS["mlp"]).trainable() if "layers.1.mlp" in name]
    assert names == [f"model.layers.1.mlp.modules_to_save.default.{x}_proj.weight" for x in ("gate", "up", "down")]


def test_the_sampler_samples_from_modules_that_are_trained_whole():
    model = moved(add_adapter(tiny_llama(), KINDS["head"]))
    engine = TransformersEngine(model, frozenset())
    (found,) = engine.generate([Request((5, 9, 3), Sampling(8), 0)])
    (row,) = pack([Example((5, 9, 3), found.token_ids, (True,) * len(found.token_ids))], 100)
    with torch.no_grad():
        torch.testing.assert_close(model.logprobs(row).logprobs, torch.tensor(found.logprobs), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "scale"),
    [(Lora(4), 2.0), (Lora(4, rslora=True), 2.0), (Lora(4, alpha=8, rslora=True), 4.0), (Lora(16, alpha=8), 0.5)],
)
def test_the_scale_is_alpha_over_rank_or_its_root(given, scale):
    model = add_adapter(tiny_llama(), given)
    assert model.network.model.layers[0].mlp.down_proj.scaling["default"] == pytest.approx(scale)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            Lora(4, targets=("q_porj",)),
            "linear layer of 'tiny' in `lora_targets` 'q_porj'; did you mean 'q_proj'",
        ),
        (
            Lora(4, targets=("q_proj", "input_layernorm")),
            "linear layer .* 'input_layernorm'; There are: down_proj",
        ),
        (Lora(4, targets=("proj",)), "unknown linear layer"),  # a part of a name is no name
        (
            Lora(4, targets=("lm_head",)),
            "`lora_targets` cannot be the head 'lm_head'.*`lora_modules_to_save=.lm_head.`",
        ),
        (Lora(4, modules_to_save=("lm_haed",)), "'lm_haed'; did you mean 'lm_head'"),
        (Lora(4, modules_to_save=("act_fn",)), "unknown module"),  # which has no weights
        (Lora(4, targets=("o_proj",), modules_to_save=("o_proj",)), "'o_proj' is trained in full"),
        (Lora(4, targets=("up_proj",), modules_to_save=("mlp",)), "'up_proj' is trained in full"),
    ],
)
def test_names_that_mean_nothing_are_refused_with_the_nearest(given, says):
    model = tiny_llama()
    with pytest.raises(UserError, match=says) as caught:
        add_adapter(model, given)
    assert "\n" not in str(caught.value)
    assert not any("lora" in name for name, _ in model.network.named_parameters())  # nothing was added


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"target_modules": ["q_proj"], "bias": "lora_only"}, "bias is lora_only"),
        ({"target_modules": ["embed_tokens"]}, "on the embedding or the head"),
        ({"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}, "one of embedding and head"),
        ({"target_modules": ["q_proj"], "trainable_token_indices": [1]}, "trainable_token_indices is"),
    ],
)
def test_an_adapter_of_a_kind_that_would_be_computed_otherwise_is_refused(config, says, tmp_path):
    other = LlamaForCausalLM(tiny_llama().network.config)
    peft.get_peft_model(other, peft.LoraConfig(r=2, task_type="CAUSAL_LM", **config)).save_pretrained(str(tmp_path))
    with pytest.raises(ModelError, match=says) as caught:
        load_adapter(tiny_llama(), tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_an_adapter_of_other_widths_names_both_folders(tmp_path):
    add_adapter(tiny_llama(), Lora(4)).save(tmp_path)
    wide = replace(tiny_llama(), name="wide")
    wide.network.model.layers[0].mlp.up_proj = torch.nn.Linear(32, 50, bias=False)
    with pytest.raises(ModelError, match=r"in '.*' on 'wide': .*size mismatch for") as caught:
        load_adapter(wide, tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)
