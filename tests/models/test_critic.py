"""Critics: what they are made of, and what their loss reaches."""

import pytest
import torch

from posttrain.data.packing import Example, pack
from posttrain.models.lora import add_lora
from posttrain.models.reference import Critic
from tests.tiny import tiny_llama

EXAMPLES = [Example((5, 9), (4, 8, 1), (True, False, True)), Example((5, 9), (7, 1), (True, True))]
(ROW,) = pack(EXAMPLES, 100)


def opinionated(critic):
    """With a head that says something."""
    with torch.no_grad():
        for name, p in critic.parameters():
            if name.startswith("head."):
                p.copy_(torch.linspace(-1, 1, p.numel()).view(p.shape))
    return critic


@pytest.mark.parametrize("own", [False, True])
def test_it_expects_nothing_at_first(own):
    assert Critic(tiny_llama(), own=own).values(ROW).tolist() == [0.0] * 4


@pytest.mark.parametrize("own", [False, True])
def test_a_value_is_of_what_came_before_its_token(own):
    model = tiny_llama(dtype=torch.float64)
    found = opinionated(Critic(model, own=own)).values(ROW)
    w, b = torch.linspace(-1, 1, 32, dtype=torch.float64), -1.0  # a bias of one number is the first of linspace
    expected = []
    for shown in ((5, 9), (5, 9, 4, 8), (5, 9), (5, 9, 7)):
        (row,) = pack([Example((), shown, (False,) * len(shown))], 100)
        expected.append((model.states(row)[-1] @ w + b).item())
    assert found.tolist() == pytest.approx(expected, rel=1e-5)
    assert found[0] == found[2]


def test_one_on_the_trunk_has_a_head_of_its_own_and_no_more():
    critic = Critic(tiny_llama())
    assert [(name, list(p.shape)) for name, p in critic.parameters()] == [("head.weight", [1, 32]), ("head.bias", [1])]


def test_the_loss_of_one_on_the_trunk_reaches_the_trunk_unless_it_is_given_states_without_a_gradient():
    model = tiny_llama()
    critic = opinionated(Critic(model))
    states = model.learned_states(ROW)
    assert torch.equal(critic.values(ROW, states), critic.values(ROW))
    assert not torch.equal(critic.values(ROW, 2 * states), critic.values(ROW))  # those that it is given
    trunk = [p for _, p in model.trainable()]
    assert all(g is not None for g in torch.autograd.grad(critic.values(ROW, states).sum(), trunk, allow_unused=True))
    alone = torch.autograd.grad(critic.values_alone(ROW).sum(), trunk, allow_unused=True)
    assert all(g is None for g in alone) and torch.equal(critic.values_alone(ROW), critic.values(ROW))
    head = critic.parameters()[0][1]
    (grad,) = torch.autograd.grad(critic.values(ROW, states.detach()).sum(), [head])
    torch.testing.assert_close(grad[0], states.sum(0))


@pytest.mark.parametrize("rank", [0, 2])
def test_one_of_its_own_begins_as_the_policy_and_goes_its_own_way(rank):
    if rank:
        pytest.importorskip("peft")
    model = add_lora(tiny_llama(), rank) if rank else tiny_llama()
    critic = opinionated(Critic(model, own=True))
    before = critic.values(ROW).detach()
    torch.testing.assert_close(before, opinionated(Critic(model)).values(ROW).detach())
    own = dict(critic.parameters())
    assert {name for name in own if not name.startswith("head.")} == {f"network.{n}" for n, _ in model.trainable()}
    assert not {id(p) for p in own.values()} & {id(p) for _, p in model.trainable()}
    with torch.no_grad():
        for _, p in model.trainable():
            p.add_(0.1)
    assert torch.equal(critic.values(ROW, model.learned_states(ROW)), before)
    grads = torch.autograd.grad(critic.values(ROW).square().sum(), list(own.values()), allow_unused=True)
    assert all(grad is not None for grad in grads)


def test_an_output_embedding_that_no_value_needs_is_not_trained():
    model = tiny_llama()
    model.network.lm_head.weight = torch.nn.Parameter(model.head.detach().clone())
    names = {name for name, _ in Critic(model, own=True).parameters()}
    assert "network.lm_head.weight" not in names and "network.model.embed_tokens.weight" in names


def test_a_head_is_wide_beside_a_narrow_model():
    critic = Critic(tiny_llama(dtype=torch.bfloat16))
    assert critic.values(ROW).dtype == torch.float32 and critic.parameters()[0][1].dtype == torch.float32
