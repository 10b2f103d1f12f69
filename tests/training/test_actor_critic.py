"""An update of policy and critic together, against the same by hand; and what a failed one leaves."""

import math

import pytest
import torch

from posttrain.algorithms.ppo import PPO
from posttrain.algorithms.ppo_ptx import PPOPtx
from posttrain.algorithms.vapo import VAPO
from posttrain.data.packing import Example, pack
from posttrain.errors import TrainingError
from posttrain.models.float64_reference import Float64
from posttrain.models.reference import Critic
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.policy import policy_batch
from tests.tiny import tiny_llama
from tests.training.steps import TrainedCritic, context_of, critic_step, learner_of, policy_step
from tests.training.test_policy import REWARDS, SPOKEN, alone, difference, distributions, groups

KINDS = pytest.mark.parametrize("own", [False, True])
ALGORITHM = PPO(kl_coefficient=0.0, gae_lambda=0.7, value_coefficient=0.3, entropy_coefficient=0.2)


class Kept(MasterAdamW):
    """Keeps its gradient, and follows it nowhere."""

    def step(self, lr, *, norm=None):
        norm = self.finite_norm()
        self.kept = {n: m.grad.clone() for n, m in self.named_masters().items() if m.grad is not None}
        self.discard()
        return norm


def subject(own, dtype=torch.float64, optimizer=Kept):
    model = tiny_llama(dtype=dtype)
    critic = Critic(model, own=own)
    with torch.no_grad():
        critic.parameters()[0][1].copy_(0.1 * torch.linspace(-1, 1, 32)[None])
    return model, optimizer(model.trainable()), TrainedCritic(critic, optimizer(critic.parameters()), 0.01)


def weights(model, trained):
    return [p.detach().clone() for _, p in (*model.trainable(), *trained.critic.parameters())]


@KINDS
def test_an_update_is_that_of_the_equation_sequence_by_sequence(own):
    (model, optimizer, trained), (plain, _, other) = subject(own), subject(own)
    with Float64():
        batch, told = policy_batch(groups(), ALGORITHM, context=context_of(model, critic=trained, microbatch_tokens=9))
        found = policy_step(model, optimizer, ALGORITHM, batch, lr=0.0, microbatch_tokens=9, critic=trained)
        # by hand: the state before each token, its value, GAE, one scale for the batch
        judge = plain if not own else other.critic.body
        weight, bias = (p for name, p in other.critic.parameters() if name.startswith("head."))
        parts, advantages, rewarded = [], [], [r for rewards in REWARDS for r in rewards]
        spoken = [words for members in SPOKEN for words in members]
        for (shown, said), reward in zip(spoken, rewarded, strict=True):
            (row,) = _rows(shown, said)
            values = judge.states(row)[len(shown) - 1 : -1] @ weight[0] + bias
            ahead = [*values[1:].tolist(), 0.0]
            estimate, later = [0.0] * len(said), 0.0
            for t in reversed(range(len(said))):
                delta = (reward if t == len(said) - 1 else 0.0) + ahead[t] - values[t].item()
                estimate[t] = later = delta + 0.7 * later
            advantages += estimate
            parts.append((values, values.detach() + torch.tensor(estimate, dtype=torch.float64)))
        scale = torch.tensor(advantages, dtype=torch.float64)
        scale = (scale - scale.mean()) / (scale.std() + 1e-4)
        total, n = 0.0, 0
        for (shown, said), (values, target) in zip(spoken, parts, strict=True):
            logprobs = alone(plain, shown, said)
            spread = distributions(plain, shown, said)
            entropy = -(spread.exp() * spread).sum(1)
            gain = torch.exp(logprobs - logprobs.detach()) * scale[n : n + len(said)]
            total = total + (-gain + 0.3 * 0.5 * (values - target).square() - 0.2 * entropy).sum()
            n += len(said)
        loss = total / n
        loss.backward()
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-9)
    assert difference(optimizer.kept, {name: p.grad for name, p in plain.trainable()}) < 1e-8
    expected = {name: p.grad for name, p in other.critic.parameters() if p.grad is not None}
    assert difference(trained.optimizer.kept, expected) < 1e-8
    assert found["value_loss"] > 0 and found["critic_grad_norm"] > 0
    assert told["groups/value"] == pytest.approx(torch.cat([v for v, _ in parts]).mean().item(), rel=1e-9)


def _rows(shown, said):

    whole = (*shown, *said)
    return pack([Example((), whole, (False,) * len(whole))], 100)


@KINDS
def test_later_updates_are_clipped_around_what_was_expected_at_first(own):
    model, optimizer, trained = subject(own, torch.float32, MasterAdamW)
    tight = PPO(kl_coefficient=0.0, value_clip=1e-6)  # more than sums in another order differ by
    batch, _ = policy_batch(groups(), tight, context=context_of(model, critic=trained))
    options = {"lr": 1e-3, "microbatch_tokens": 9, "critic": trained}
    assert policy_step(model, optimizer, tight, batch, **options)["value_clip_fraction"] == 0.0
    # those that came nearer are held where they were, which their loss is then
    assert 0 < policy_step(model, optimizer, tight, batch, **options)["value_clip_fraction"] < 1


@KINDS
def test_the_critic_alone_learns_and_the_policy_stays(own):
    model, _, trained = subject(own, torch.float32, MasterAdamW)
    algorithm = VAPO(length_alpha=1.0)
    batch, _ = policy_batch(groups(), algorithm, context=context_of(model, critic=trained))
    before = [p.detach().clone() for _, p in model.trainable()]
    losses = []
    for _ in range(10):
        losses.append(critic_step(model, trained, algorithm, batch, microbatch_tokens=9)["value_loss"])
    assert losses[-1] < 0.8 * losses[0]

    def error(values):
        both = zip(values, batch.tokens["returns"], strict=True)
        pairs = [(v, r) for each in both for v, r in zip(*each, strict=True)]
        return sum((v - r) ** 2 for v, r in pairs)

    after = learner_of(model, critic=trained, microbatch_tokens=9).values(batch.examples)
    assert error(after) < 0.8 * error(batch.tokens["values"])  # what it says now is nearer to what it was to learn
    assert all(torch.equal(a, p) for a, (_, p) in zip(before, model.trainable(), strict=True))
    assert all(p.grad is None for _, p in model.trainable())


def test_a_step_whose_groups_were_all_lost_moves_no_critic():
    model, _, trained = subject(True, torch.float32, MasterAdamW)
    algorithm, before = VAPO(length_alpha=1.0), weights(model, trained)
    batch, _ = policy_batch([], algorithm, context=context_of(model, critic=trained))
    assert critic_step(model, trained, algorithm, batch, microbatch_tokens=9) == {"loss": 0.0, "critic_grad_norm": 0.0}
    assert all(torch.equal(a, b) for a, b in zip(before, weights(model, trained), strict=True))


@KINDS
@pytest.mark.parametrize("side", ["policy", "critic"])
def test_a_gradient_that_is_not_finite_moves_neither(own, side):
    model, optimizer, trained = subject(own, torch.float32, MasterAdamW)
    batch, _ = policy_batch(groups(), ALGORITHM, context=context_of(model, critic=trained))
    bad = optimizer if side == "policy" else trained.optimizer
    right, bad.grad_norm = bad.grad_norm, lambda: math.nan
    before = weights(model, trained)
    with pytest.raises(TrainingError, match="norm is nan"):
        policy_step(model, optimizer, ALGORITHM, batch, lr=0.1, microbatch_tokens=9, critic=trained)
    bad.grad_norm = right
    assert optimizer.grad_norm() == trained.optimizer.grad_norm() == 0.0  # both are forgotten
    assert all(torch.equal(a, b) for a, b in zip(before, weights(model, trained), strict=True))


@KINDS
def test_a_loss_that_is_not_finite_leaves_no_gradient_anywhere(own):
    model, optimizer, trained = subject(own, torch.float32, MasterAdamW)

    class Explodes(PPO):
        def loss(self, tokens):
            found = super().loss(tokens)
            return found._replace(loss_N=torch.where(tokens.branch_N == 4, math.inf, found.loss_N))

    algorithm = Explodes(kl_coefficient=0.0)
    batch, _ = policy_batch(groups(), algorithm, context=context_of(model, critic=trained))
    before = weights(model, trained)
    with pytest.raises(TrainingError, match=r"loss is inf for examples \[3, 4\]"):
        policy_step(model, optimizer, algorithm, batch, lr=0.1, microbatch_tokens=8, critic=trained)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(model, trained), strict=True))
    assert all(p.grad is None for _, p in (*model.trainable(), *trained.critic.parameters()))


def test_pretraining_text_is_weighed_and_added():
    texts = [Example.whole((3, 7, 20, 8), (False, True, True, True)), Example.whole((9, 4), (False, True))]
    grads, metrics = [], []
    for text, weight in ((texts, 0.7), ([], 0.7), (texts, 1.4)):
        model, optimizer, trained = subject(False)
        algorithm = PPOPtx(kl_coefficient=0.0, pretraining_coefficient=weight)
        with Float64():
            batch, _ = policy_batch(groups(), algorithm, context=context_of(model, critic=trained))
            found = policy_step(
                model, optimizer, algorithm, batch, lr=0.0, microbatch_tokens=99, critic=trained, pretraining=text
            )
        grads.append(optimizer.kept)
        metrics.append(found)
    plain = tiny_llama(dtype=torch.float64)
    with Float64():
        spoken = torch.cat([alone(plain, (3,), (7, 20, 8)), alone(plain, (9,), (4,))])
        (-0.7 * spoken.mean()).backward()
    added = {name: grads[0][name] - grads[1][name] for name in grads[0]}
    assert difference(added, {name: p.grad for name, p in plain.trainable()}) < 1e-8
    assert metrics[0]["pretraining_loss"] == pytest.approx(-spoken.mean().item(), rel=1e-9)
    assert metrics[2]["pretraining_loss"] == pytest.approx(metrics[0]["pretraining_loss"], rel=1e-12)
    assert "pretraining_loss" not in metrics[1]
