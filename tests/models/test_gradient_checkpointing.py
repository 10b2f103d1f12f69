"""Checkpointed layers give the numbers that they give without, keep their inputs alone, and are run twice."""

import copy

import pytest
import torch
from torch import nn

from posttrain import fast_paths
from posttrain.data.packing import Example, pack
from posttrain.errors import UserError
from posttrain.models import fused
from posttrain.models.fused import checkpoint_layers
from posttrain.models.lora import Lora, add_adapter, add_lora
from posttrain.models.reference import Critic
from tests.tiny import tiny_llama

LEARNED = (True, True, True, False)
(ROW,) = pack([*(Example((5, 9, 3), (n, 8, 1, 7), LEARNED) for n in (4, 6, 2)), Example((7,), (2, 3), (True,) * 2)], 99)


def subject(dtype, rank=0, checkpointed=False):
    model = tiny_llama(dtype=dtype)
    if rank:
        model = add_lora(model, rank)
        for name, p in model.trainable():
            if "lora_B" in name:  # which begin as zeros, so that A would have no gradient
                nn.init.normal_(p, std=0.3, generator=torch.Generator().manual_seed(1))
    if checkpointed:
        assert checkpoint_layers(model.network) == 2
    return model


def gradients(parameters, loss):
    loss.backward()
    found = {name: p.grad for name, p in parameters if p.grad is not None}
    return {name: grad.to_dense() if grad.is_sparse else grad for name, grad in found.items()}


def equal(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(grad, theirs[name]) for name, grad in ours.items())


@pytest.mark.parametrize("off", ["", "all"], ids=["fast paths", "without them"])
@pytest.mark.parametrize("rank", [0, 2], ids=["all weights", "adapter"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logprobs_and_gradients_are_the_same_to_the_last_bit(dtype, rank, off):
    """On a row of two families, one of which shares a prefix among three branches."""
    if rank:
        pytest.importorskip("peft")
    found = []
    with fast_paths.without(off):
        for checkpointed in (False, True):
            model = subject(dtype, rank, checkpointed)
            logprobs = model.logprobs(ROW).logprobs
            found.append((logprobs.detach(), gradients(model.trainable(), (logprobs * logprobs).sum())))
    (plain, expected), (ours, grads) = found
    assert torch.equal(ours, plain)
    assert equal(grads, expected) and len(grads) == (2 * 7 * 2 if rank else 2 * 9 + 2)
    assert all(grad.any() for grad in grads.values())


@pytest.mark.parametrize("own", [False, True])
def test_a_critic_s_gradients_are_the_same_on_the_trunk_and_on_a_copy_of_it(own):
    found = []
    for checkpointed in (False, True):
        model = subject(torch.float32, checkpointed=checkpointed)
        critic = Critic(model, own=own)
        for _, p in critic.parameters():
            if p.shape[0] == 1:  # the head, which begins as 0
                nn.init.ones_(p)
        states = model.learned_states(ROW)
        loss = model.logprobs_at(states, ROW).logprobs.sum() + critic.values(ROW, states).square().sum()
        named = [*model.trainable(), *((f"critic.{name}", p) for name, p in critic.parameters())]
        found.append(gradients(named, loss))
    assert equal(*found)
    assert ("critic.network.model.layers.1.mlp.up_proj.weight" in found[0]) == own


def runs_of(model, work):
    """How often each layer's MLP is computed."""
    runs = [0] * len(model.network.model.layers)
    for number, layer in enumerate(model.network.model.layers):

        def counted(module, args, number=number):
            runs[number] += 1

        layer.mlp.register_forward_pre_hook(counted)
    work()
    return runs


def test_layers_are_computed_again_in_the_backward_pass_and_only_there(monkeypatch):
    model = subject(torch.float32, checkpointed=True)
    assert runs_of(model, lambda: model.logprobs(ROW).logprobs.sum().backward()) == [2, 2]
    monkeypatch.delattr(fused, "checkpoint")  # nothing is spent on it in sampling
    with torch.no_grad():
        assert runs_of(model, lambda: model.logprobs(ROW)) == [1, 1]


def test_of_each_layer_the_input_alone_is_kept():
    kept = set()
    model = subject(torch.float32, checkpointed=True)
    weights = {p.data_ptr() for p in model.network.parameters()}

    def note(tensor):
        if tensor.data_ptr() not in weights:
            kept.add((tensor.data_ptr(), tensor.numel()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        states = model.states(ROW)
    tokens, width = states.shape
    large = sorted(numbers for _, numbers in kept if numbers >= tokens * width)
    assert large == 3 * [tokens * width]  # into both layers, and into the last norm


def test_a_copy_is_checkpointed_itself():
    model = subject(torch.float32, checkpointed=True)
    other = copy.deepcopy(model)
    other.network.model.layers[0].mlp.up_proj.weight.data.zero_()
    assert runs_of(other, lambda: other.logprobs(ROW).logprobs.sum().backward()) == [2, 2]
    assert all(p.grad is None for _, p in model.trainable())
    assert not torch.equal(other.states(ROW), model.states(ROW))


@pytest.mark.parametrize("dora", [False, True])
def test_an_adapter_s_dropout_drops_again_what_it_dropped_though_another_row_was_read_meanwhile(dora):
    pytest.importorskip("peft")
    (other,) = pack([Example((), (1, 2, 3), (False, True, True))], 9)
    found = []
    for checkpointed in (False, True):
        model = add_adapter(tiny_llama(), Lora(2, dropout=0.5, dora=dora))
        for name, p in model.trainable():
            if "lora_B" in name:
                nn.init.normal_(p, std=0.3, generator=torch.Generator().manual_seed(1))
        if checkpointed:
            checkpoint_layers(model.network)
        with model.dropping(7):
            loss = model.logprobs(ROW).logprobs.sum()
            with torch.no_grad():
                model.logprobs(other)
            loss.backward()
        found.append({name: p.grad for name, p in model.trainable()})
    assert equal(*found)
    plain = add_adapter(tiny_llama(), Lora(2, dora=dora))
    assert not equal(found[0], gradients(plain.trainable(), plain.logprobs(ROW).logprobs.sum()))


def test_other_random_numbers_are_drawn_again_as_they_were():
    found = []
    for checkpointed in (False, True):
        model = subject(torch.float32, checkpointed=checkpointed)
        for layer in model.network.model.layers:
            layer.self_attn.o_proj = nn.Sequential(layer.self_attn.o_proj, nn.Dropout(0.5))
        torch.manual_seed(3)
        found.append(gradients(model.trainable(), model.logprobs(ROW).logprobs.sum()))
    assert equal(*found)


def test_a_network_without_such_layers_is_refused_in_one_line():
    with pytest.raises(
        UserError, match=r"^Sequential has no layers that can be checkpointed; leave out `gradient_checkpointing`"
    ):
        checkpoint_layers(nn.Sequential(nn.Linear(2, 2)))
