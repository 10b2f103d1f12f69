"""The kit of algorithms: all of ours conform, and each fault that it looks for is planted and found."""

from dataclasses import dataclass

import pytest
import torch

from posttrain import algorithms
from posttrain.algorithms.algorithm import TokenLoss
from posttrain.algorithms.dpo import DPO
from posttrain.algorithms.inputs import CriticValues, GreedyReward
from posttrain.algorithms.kto import KTO
from posttrain.algorithms.ppo import PPO
from posttrain.algorithms.reinforce import Reinforce
from posttrain.algorithms.tdpo import TDPO
from posttrain.objectives.advantages import mean_centred
from posttrain.testing import check_algorithm
from tests.algorithms import test_online, test_preferences
from tests.violations import violations


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_all_of_ours_conform(name):
    check_algorithm(algorithms.get(name)(), slopes=name not in ("tdpo", "cispo", "dft"))


@pytest.mark.parametrize("name", test_online.CASES)
def test_so_they_do_with_other_hyperparameters(name):
    check_algorithm(test_online.CASES[name][0], slopes=name != "cispo")


@pytest.mark.parametrize("name", [name for name in test_preferences.CASES if name != "tdpo"])
def test_and_so_do_those_of_pairs(name):
    check_algorithm(test_preferences.CASES[name][0]())


@dataclass(frozen=True)
class Plain(Reinforce):
    """REINFORCE without KL and clipping; each fault below changes one thing of it."""

    kl_coefficient: float = 0.0


def changed(**columns):
    """`Plain`, whose advantages have other columns: functions of what it computes and of the rollout."""

    @dataclass(frozen=True)
    class Changed(Plain):
        def advantages(self, rollout):
            found = super().advantages(rollout)
            return found._replace(**{name: function(found, rollout) for name, function in columns.items()})

    return Changed()


def with_members(kind=Plain, **members):
    """An algorithm with other members."""
    return dataclass(frozen=True)(type("Other", (kind,), members))()


def losing(loss, **members):
    """`Plain` with another loss: a function of the tokens."""
    return with_members(loss=lambda self, tokens: TokenLoss(loss(tokens), {}), **members)


def telling(**metrics):
    """`Plain` with metrics: functions of the tokens."""
    told = metrics.items()
    return with_members(loss=lambda self, t: TokenLoss(policy_gradient(t), {name: of(t) for name, of in told}))


def policy_gradient(t):
    """-A log pi."""
    return -t.advantages_N * t.logprobs_N


class NotFrozen:
    family = "online"


@dataclass(frozen=True)
class Incomplete:
    family = "online"


class WithoutReturns(PPO):
    def advantages(self, rollout):
        return super().advantages(rollout)._replace(returns_N=None)


class CriticTwice(PPO):
    def loss(self, tokens):
        return PPO().loss(tokens)

    def critic_loss(self, values_N, old_values_N, returns_N):
        return TokenLoss(2 * super().critic_loss(values_N, old_values_N, returns_N).loss_N, {})


def writes_into_the_rollout(found, rollout):
    rollout.rewards_R.mul_(2)
    return found.advantages_N


def compares_all_seats(found, rollout):
    return rollout.per_token(rollout._replace(seat_R=None).compare(rollout.rewards_R, mean_centred))


def stops_a_gradient(t):
    return policy_gradient(t) * (t.logprobs_N - t.old_N).exp().detach()


def pulls_to_the_old_policy(t):
    return policy_gradient(t) + 0.1 * (t.logprobs_N - t.old_N).square()


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (NotFrozen(), "NotFrozen is no frozen dataclass"),
        (Plain, "it is the class Plain; expected an object: type Plain()"),
        (with_members(family="offline"), "its family is 'offline'"),
        (Incomplete(), "it lacks accepts, adapted, advantages"),
        (with_members(inputs=("reference",)), "it declares 'reference'; expected an Input"),
        (with_members(inputs=(CriticValues(),)), "does not declare CriticValues, or the other way round"),
        (with_members(advantages=lambda self, rollout: rollout.rewards_R), "advantages returned Tensor"),
        (changed(advantages_N=lambda found, _: found.advantages_N[1:]), "advantages has shape"),
        (changed(advantages_N=lambda found, _: found.advantages_N / 0), "advantages is not finite"),
        (changed(returns_N=lambda found, _: found.advantages_N.clone().requires_grad_()), "returns carry a gradient"),
        (with_members(WithoutReturns), "it has a critic, and advantages has no returns_N"),
        (with_members(loss=lambda self, tokens: policy_gradient(tokens)), "loss returned Tensor; expected TokenLoss"),
        (losing(lambda t: policy_gradient(t).sum()), "loss has shape []"),
        (telling(loud=lambda t: t.logprobs_N), "metric 'loud' carries a gradient"),
        (telling(short=lambda t: t.old_N.mean()), "metric 'short' has shape []"),
        (with_members(reduce=lambda self, values_N, *_: values_N), "what reduce returns has shape"),
        (changed(advantages_N=lambda found, _: torch.rand_like(found.advantages_N)), "differ from call to call"),
        (changed(advantages_N=writes_into_the_rollout), "changes the rollout that it is given"),
        (
            losing(lambda t: policy_gradient(t) - t.reference_N),
            "inputs that it declares (none) it raised TypeError",
        ),
        (with_members(inputs=(GreedyReward(),)), "declares GreedyReward, and raises nothing where greedy_R is missing"),
        (changed(advantages_N=lambda found, r: found.advantages_N + r.row_N), "with its rows in another order"),
        (changed(advantages_N=compares_all_seats), "rows of two seats are compared"),
        (changed(advantages_N=lambda found, r: found.advantages_N / r.lengths_R.min()), "where a row has no tokens"),
        (with_members(reduce=lambda self, values_N, *_: values_N.mean()), "cut into micro-batches, a batch has a loss"),
        (losing(stops_a_gradient), "the gradient of logprobs is not the slope of the loss"),
        (losing(lambda t: -policy_gradient(t)), "tokens do not follow their advantage: one of advantage 1 has"),
        (telling(ratio=lambda t: torch.full_like(t.old_N, 2.0)), "at the first update the ratio is 2; expected 1"),
        (losing(pulls_to_the_old_policy, silent_at_zero=True), "silent_at_zero is True, and"),
        (losing(lambda t: policy_gradient(t) - t.entropy_N), "needs_entropy is False, and the entropy has gradients"),
        (with_members(CriticTwice), "the critic's gradients in loss and in critic_loss are"),
        (with_members(adapted=lambda self, kl: kl), "adapted returned float"),
        (with_members(accepts=lambda self, rewards_G: rewards_G), "accepts returned tensor"),
    ],
)
def test_each_fault_is_found(algorithm, said):
    found = violations(check_algorithm, algorithm)
    assert any(said in each for each in found), found


def test_what_is_not_a_slope_may_be_said_to_be_meant():
    assert "slopes=False" in violations(check_algorithm, TDPO())[0]
    check_algorithm(TDPO(), slopes=False)
    check_algorithm(losing(stops_a_gradient), slopes=False)


def pairing(change, kind=DPO, **members):
    """DPO with another loss: a function of what it computes and of the responses."""

    def loss(self, chosen, rejected, *, reference=None):
        return change(kind.loss(self, chosen, rejected, reference=reference), chosen, rejected)

    return dataclass(frozen=True)(type("Pairing", (kind,), {"loss": loss, **members}))()


def judging(change, **members):
    def loss_of_each(self, responses, good_B, *, reference, divergence):
        found = KTO().loss_of_each(responses, good_B, reference=reference, divergence=divergence)
        return change(found, responses)

    return dataclass(frozen=True)(type("Judging", (KTO,), {"loss_of_each": loss_of_each, **members}))()


def in_place(function):
    return lambda found, *responses: found._replace(loss_B=function(found.loss_B, *responses))


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (pairing(lambda found, *_: found.loss_B), "loss returned Tensor; expected PairLoss"),
        (pairing(in_place(lambda loss_B, *_: loss_B.mean())), "loss has shape []"),
        (pairing(lambda found, *_: found._replace(metrics={"loud": found.loss_B})), "metric 'loud' carries a gradient"),
        (pairing(in_place(lambda loss_B, *_: loss_B + torch.rand(1).double())), "differ from call to call"),
        (pairing(in_place(lambda loss_B, *_: loss_B), inputs=()), "declares (none) it raised ValueError"),
        (pairing(in_place(lambda loss_B, *_: loss_B - loss_B.mean())), "alone, a pair or response has a loss"),
        (pairing(in_place(lambda loss_B, chosen, _: loss_B + chosen.logprob_B.detach())), "is not the slope"),
        (pairing(in_place(lambda loss_B, *_: -loss_B)), "does not make the chosen response more likely"),
        (pairing(in_place(lambda loss_B, _, rejected: loss_B - 9 * rejected.logprob_B)), "makes the rejected response"),
        (judging(in_place(lambda loss_B, _: loss_B), rewards=lambda self, *_: 0.0), "rewards is a float"),
        (judging(in_place(lambda loss_B, _: loss_B), inputs=()), "declare ReferenceLogprobs"),
        (judging(in_place(lambda loss_B, _: -loss_B)), "does not make the good response more likely"),
        (judging(in_place(lambda loss_B, r: loss_B - 9 * r.logprob_B)), "makes the bad response more likely"),
    ],
)
def test_each_fault_of_one_of_preferences_is_found(algorithm, said):
    found = violations(check_algorithm, algorithm)
    assert any(said in each for each in found), found


def test_a_pair_without_its_declared_reference_raises():
    def loss(self, chosen, rejected, *, reference=None):
        return DPO.loss(self, chosen, rejected, reference=reference or (chosen, rejected))

    silent = dataclass(frozen=True)(type("Silent", (DPO,), {"loss": loss}))()
    assert violations(check_algorithm, silent) == [
        "it declares ReferenceLogprobs, and raises nothing where that is missing"
    ]
