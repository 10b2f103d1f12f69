import pytest
import torch

from posttrain.data.packing import PackedRow
from posttrain.errors import ModelError
from posttrain.models.fused import packed_weights, packing_supported
from posttrain.models.language_model import wrap
from posttrain.models.lora import Lora
from posttrain.models.mixed_adapters import LowRank
from tests.clients import KINDS, clients, mixed, own_network
from tests.models.test_families import FAMILIES, random_network
from tests.tiny import tiny_llama

PROMPTS = [(5, 9, 3), (7, 2), (4, 8, 15, 16, 23), (5, 9, 3), (11,)]


@pytest.fixture
def model():
    return tiny_llama()


@pytest.fixture
def both(model):
    """The network of all, and the clients."""
    of_all = mixed(model)
    return of_all, clients(model, of_all)


def row_of(prompts):
    """One row, in which no prompt shares anything with another."""
    row = PackedRow()
    row.token_ids = [token for prompt in prompts for token in prompt]
    row.positions = [position for prompt in prompts for position in range(len(prompt))]
    row.families, row.examples = [(len(prompt), []) for prompt in prompts], []
    return row


@torch.no_grad()
def states(model, prompts, adapters=None):
    """Last hidden states of prompts in one row, each under its adapter."""
    with model.placed(adapters or [None] * len(prompts), [len(prompt) for prompt in prompts]):
        return model.states(row_of(prompts)).split([len(prompt) for prompt in prompts])


def weights_of(model):
    return {name: weight.detach().clone() for name, weight in model.trainable()}


def test_each_prompt_of_a_row_has_what_it_has_under_its_adapter_alone(both):
    of_all, each = both
    found = states(of_all, PROMPTS, [client.adapter for client in each])
    for client, prompt, ours in zip(each, PROMPTS, found, strict=True):
        (expected,) = states(client.alone, [prompt])
        torch.testing.assert_close(ours, expected, atol=2e-5, rtol=0)
    assert (found[0] - found[3]).abs().max() > 0.1  # the same prompt under two adapters


@pytest.mark.parametrize(("family", "options"), FAMILIES.items(), ids=FAMILIES)
def test_in_every_family_of_models(family, options):
    model = wrap(random_network(family, **options), name=family, context=64)
    of_all = mixed(model)
    each = clients(model, of_all, (Lora(2), Lora(3, 9.0)))
    found = states(of_all, PROMPTS[:3], [client.adapter for client in each])
    for client, prompt, ours in zip(each, PROMPTS, found, strict=False):
        (expected,) = states(client.alone, [prompt])
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_adapter_alone_is_computed_as_peft_does_to_the_last_bit(dtype):
    model = tiny_llama(dtype=dtype)
    of_all = mixed(model)
    for client in clients(model, of_all):
        ours, theirs = states(of_all, PROMPTS, [client.adapter] * 5), states(client.alone, PROMPTS)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def gradients(model, prompts, trained, adapters=None):
    """States of prompts in one row, and the gradients of a fixed sum of them for the weights of `trained` models."""
    tokens = [len(prompt) for prompt in prompts]
    with model.placed(adapters or [None] * len(prompts), tokens):
        found = model.states(row_of(prompts))
    parts = found.split(tokens)
    sum((part.float() * torch.linspace(-1, 2, part.numel()).view_as(part)).sum() for part in parts).backward()
    taken = [{name: weight.grad for name, weight in each.trainable()} for each in trained]
    for each in trained:
        each.network.zero_grad(set_to_none=True)
    return parts, taken


def itself(model, lora):
    """The adapter of a network as its own weights, which receive gradients."""
    return LowRank.trained(dict(model.trainable()), lora.scaled / lora.rank)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lora", KINDS, ids=range(len(KINDS)))
def test_so_is_a_trained_one_and_its_gradient(dtype, lora):
    """Also of an adapter that not every layer has."""
    model = tiny_llama(dtype=dtype)
    alone = own_network(model, lora, seed=1)
    ours, (grads,) = gradients(mixed(model), PROMPTS, [alone], [itself(alone, lora)] * 5)
    theirs, (expected,) = gradients(alone, PROMPTS, [alone])
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert all(torch.equal(grads[name], grad) for name, grad in expected.items())


@pytest.mark.parametrize(("family", "options"), FAMILIES.items(), ids=FAMILIES)
def test_gradients_reach_each_adapter_in_every_family_of_models(family, options):
    model = wrap(random_network(family, **options), name=family, context=64)
    of_all, kinds = mixed(model), (Lora(2), Lora(3, 9.0))
    each = [own_network(model, lora, seed) for seed, lora in enumerate(kinds)]
    adapters = [itself(alone, lora) for alone, lora in zip(each, kinds, strict=True)]
    found, taken = gradients(of_all, PROMPTS[1:3], each, adapters)
    for alone, prompt, ours, grads in zip(each, PROMPTS[1:], found, taken, strict=False):
        (theirs,), (expected,) = gradients(alone, [prompt], [alone])
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
        for name, grad in expected.items():
            assert (grads[name] is None) == (grad is None), name
            if grad is not None:
                torch.testing.assert_close(grads[name], grad, rtol=1e-3, atol=1e-4 * grad.abs().max().item())


def test_tokens_of_one_adapter_need_not_follow_each_other(both):
    of_all, each = both
    order = [each[1].adapter, None, each[1].adapter, each[2].adapter, None]
    found = states(of_all, PROMPTS, order)
    for adapter, prompt, ours in zip(order, PROMPTS, found, strict=True):
        (expected,) = states(of_all, [prompt], [adapter])
        torch.testing.assert_close(ours, expected, atol=2e-5, rtol=0)


@pytest.mark.skipif(not packing_supported(), reason="oneDNN has no bfloat16 products on this processor")
def test_the_weights_of_the_base_may_be_packed():
    model = tiny_llama(dtype=torch.bfloat16)
    of_all = mixed(model)
    adapters = [client.adapter for client in clients(model, of_all)]
    plain = states(of_all, PROMPTS, adapters)
    with packed_weights(of_all.network) as count:
        assert count == 15
        found = states(of_all, PROMPTS, adapters)
    assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))


def test_behind_the_block_and_in_other_networks_there_is_the_base(model, both):
    of_all, each = both
    before = states(model, PROMPTS)
    with pytest.raises(KeyError), torch.no_grad(), of_all.placed([each[1].adapter], [5]):
        raise KeyError
    with torch.no_grad():
        for network in (of_all, model):
            assert torch.equal(network.states(row_of(PROMPTS)), torch.cat(before))


def test_weights_that_change_later_are_those_of_then(model):
    of_all, lora = mixed(model), Lora(2)
    weights = weights_of(own_network(model, lora, 1))
    adapter = of_all.mixed.adapter(weights, 2.0)
    before = states(of_all, PROMPTS, [adapter] * 5)
    for weight in weights.values():
        weight.zero_()
    assert torch.equal(torch.cat(before), torch.cat(states(of_all, PROMPTS, [adapter] * 5)))


PATH = "model.layers.1.mlp.down_proj"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda w: w.update({"model.layers.7.mlp.up_proj.lora_A.default.weight": torch.ones(2, 32)}), "not A and B"),
        (lambda w: w.update({"lm_head.lora_A.default.weight": torch.ones(2, 32)}), "not A and B"),
        (lambda w: w.pop(f"{PATH}.lora_B.default.weight"), "not A and B"),
        (lambda w: w.update({f"{PATH}.lora_magnitude_vector.default.weight": torch.ones(32)}), "not A and B"),
        (lambda w: w.update({f"{PATH}.lora_A.default.weight": torch.ones(2, 32)}), "other shapes"),
        (lambda w: w.update({f"{PATH}.lora_B.default.weight": torch.ones(48, 2)}), "other shapes"),
        (lambda w: w.update({f"{PATH}.lora_B.default.weight": torch.ones(32, 3)}), "other shapes"),
        (lambda w: w.update({f"{PATH}.lora_A.default.weight": torch.ones(96)}), "other shapes"),
        (lambda w: w[f"{PATH}.lora_A.default.weight"].view(-1)[-1:].fill_(torch.nan), "not finite"),
        (lambda w: w[f"{PATH}.lora_B.default.weight"].view(-1)[-1:].fill_(torch.inf), "not finite"),
    ],
)
def test_an_adapter_that_is_none_of_this_base_is_refused(model, change, why):
    weights = weights_of(own_network(model, Lora(2), 1))
    mixed(model).mixed.adapter(weights, 2.0)
    change(weights)
    with pytest.raises(ModelError, match=why):
        mixed(model).mixed.adapter(weights, 2.0)


def test_a_pass_over_other_tokens_than_were_placed_is_noticed(both):
    of_all, each = both
    with torch.no_grad(), pytest.raises(AssertionError, match="cannot assign"), of_all.placed([each[1].adapter], [2]):
        of_all.states(row_of(PROMPTS[:1]))


def test_another_network_takes_no_adapters(model, both):
    with pytest.raises(AssertionError, match="mixed"):
        model.placed([None, both[1][1].adapter], [1, 1])
