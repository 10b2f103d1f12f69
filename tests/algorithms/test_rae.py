"""Role-conditioned advantages: what a seat usually earns is taken off, whatever the game gives to its place."""

import pytest
import torch

from posttrain.algorithms.algorithm import Counts, Tokens
from posttrain.algorithms.inputs import Context, columns_of
from posttrain.algorithms.rae import RAE
from posttrain.algorithms.reinforce import Reinforce
from posttrain.algorithms.rollout import Rollout
from posttrain.training.policy import context_of, policy_batch, rows_of
from posttrain.types import Group, StopReason, Trajectory, Turn
from tests.groups import group_of


def row(*logprobs: float) -> Trajectory:
    return Trajectory((Turn((1, 2), (3,) * len(logprobs), logprobs, StopReason.STOP, ""),))


def games(*first: float) -> Group:
    """Games of two seats of one task, by what the first earns."""
    count = len(first)
    earned = tuple(reward for one in first for reward in (one, -one))
    plays = [i // 2 for i in range(2 * count)]
    return group_of([row(-1.0, -1.0)] * 2 * count, earned, seats=["first", "second"] * count, episodes=plays)


def advantages(algorithm: RAE | Reinforce, groups: list[Group], context: Context) -> list[float]:
    """One number of each row."""
    columns = columns_of(algorithm.inputs, groups, context, samples=False)
    rollout = Rollout(**rows_of(groups), **columns)
    return algorithm.advantages(rollout).advantages_N[::2].tolist()


def test_two_seats_of_a_game_that_the_first_usually_wins_by_hand():
    context = Context()
    found = advantages(RAE(baseline_decay=0.5), [games(1.0, 1.0), games(-1.0, 1.0)], context)
    # first: b = 1/2, 3/4, -1/8, 7/16
    assert found == [0.5, -0.5, 0.25, -0.25, -0.875, 0.875, 0.5625, -0.5625]
    assert context.state == {"seat_baselines": {" first": 0.4375, " second": -0.4375}}
    assert advantages(RAE(baseline_decay=0.5), [games(1.0)], context)[0] == 1.0 - (0.21875 + 0.5)  # it goes on


def test_that_a_seat_wins_as_usual_is_no_advantage():
    groups = [games(*[1.0, 1.0, 1.0, -1.0] * 50)]  # beginning is worth 0.5
    plain = advantages(Reinforce(kl_coefficient=0.0), groups, Context())
    conditioned = advantages(RAE(), groups, Context())
    late = slice(200, None)
    assert sum(plain[late][::2]) / 100 == pytest.approx(0.5) and sum(plain[late][1::2]) / 100 == pytest.approx(-0.5)
    assert abs(sum(conditioned[late][::2]) / 100) < 0.02 and abs(sum(conditioned[late][1::2]) / 100) < 0.02


def test_the_published_order_is_the_unbiased_one_times_the_decay():
    """A = R - (decay b + (1 - decay) R) = decay (R - b), of which b is from earlier episodes alone."""
    earned, before, expected = [1.0, -1.0, -1.0, 1.0, -1.0], 0.0, []
    for reward in earned:
        expected.append(0.75 * (reward - before))
        before = 0.75 * before + 0.25 * reward
    assert advantages(RAE(baseline_decay=0.75), [games(*earned)], Context())[::2] == expected


def test_with_one_seat_it_is_reinforce_with_a_moving_average():
    rewards = (1.0, 0.0, 0.5)
    group = group_of([row(-0.5), row(-1.0, -0.25), row(-2.0)], rewards)
    columns = columns_of(RAE(baseline_decay=0.5).inputs, [group], Context(), samples=False)
    rollout = Rollout(**rows_of([group]), **columns)
    averages = [0.5, 0.25, 0.375]
    logprobs = torch.tensor([-0.4, -1.1, -0.25, -2.0], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([-0.5, -1.0, -0.25, -2.0], dtype=torch.float64)

    def loss_of(algorithm: Reinforce, advantages_N: torch.Tensor) -> torch.Tensor:
        tokens = Tokens(logprobs, old, advantages_N, rollout.row_N)
        return algorithm.reduce(algorithm.loss(tokens).loss_N, rollout.per_token(rollout.lengths_R), Counts(3, 4))

    ours = loss_of(RAE(), RAE(baseline_decay=0.5).advantages(rollout).advantages_N)
    better = rollout.per_token(torch.tensor([r - b for r, b in zip(rewards, averages, strict=True)]).double())
    plain = loss_of(Reinforce(kl_coefficient=0.0), better)
    assert torch.equal(ours, plain) and ours.item() == pytest.approx(-(1.1051709 * 0.5 - 0.9048374 * 0.25 + 0.125) / 3)
    assert torch.equal(*(torch.autograd.grad(each, logprobs)[0] for each in (ours, plain)))


def test_averages_are_seen_in_the_metrics_of_a_batch():
    batch, metrics = policy_batch([games(1.0, -1.0)], RAE(baseline_decay=0.5), context=Context())
    assert (metrics["groups/baseline/min"], metrics["groups/baseline/max"]) == (-0.5, 0.5)
    assert batch.counts.sequences == 4 and "groups/kl" not in metrics


def test_a_kl_is_taken_from_the_reward_and_not_from_the_average():
    class Behind:
        def logprobs(self, examples, model="policy", *, temperature=1.0, together=1):
            return [(-1.5, -1.5)] * len(examples)

    context = context_of(Behind())
    found = advantages(RAE(baseline_decay=0.5, kl_coefficient=0.1), [games(1.0)], context)
    assert found == pytest.approx([0.5 - 0.1, -0.5 - 0.1])
    assert context.state["seat_baselines"] == {" first": 0.5, " second": -0.5}
