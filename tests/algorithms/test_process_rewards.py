"""Process rewards in GRPO, PPO and what is made of them, against plain floats and by hand."""

import math
from statistics import mean, stdev

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain import algorithms
from posttrain.algorithms.dapo import DAPO
from posttrain.algorithms.dr_grpo import DrGRPO
from posttrain.algorithms.grpo import GRPO
from posttrain.algorithms.inputs import StepRewards, declared
from posttrain.algorithms.ppo import PPO
from posttrain.algorithms.ppo_ptx import PPOPtx
from posttrain.algorithms.rollout import Rollout
from posttrain.algorithms.vapo import VAPO
from posttrain.errors import UserError
from tests.references import process as reference

TAKE = [name for name in algorithms.ONLINE if hasattr(algorithms.online(name)(), "process_rewards")]
REFUSE = ["gspo", "grpo-bucketed", "vineppo", "gmpo", "gdpo", "maxrl", "pass-at-k", "prime", "pav"]
RECENT = ["cispo", "sapo", "dppo", "clip-cov", "kl-cov"]
STEPS = st.dictionaries(st.integers(0, 4), st.sampled_from([-1.0, 0.0, 0.25, 0.1, 1.0]), max_size=4)
ROWS = st.builds(
    lambda steps, length, rest: {
        "steps": {token: paid for token, paid in steps.items() if token < length},
        "length": length,
        "rest": rest,
    },
    STEPS,
    st.integers(1, 5),
    st.sampled_from([0.0, 0.0, 1.0, -0.5]),
)
GROUPS = st.lists(st.lists(ROWS, min_size=2, max_size=4), min_size=1, max_size=3)


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def row(reward: float, steps: dict[int, float], length: int) -> dict:
    return {"reward": reward, "steps": steps, "length": length}


def with_rewards(groups: list) -> list:
    """What a row earns in all: its steps and the rest."""
    return [[{**row, "reward": row["rest"] + sum(row["steps"].values())} for row in group] for group in groups]


def rollout(groups: list, *, steps: bool = True, **columns) -> Rollout:
    rows = [row for group in groups for row in group]
    tokens = [(t in row["steps"], row["steps"].get(t, 0.0)) for row in rows for t in range(row["length"])]
    if steps:
        columns["step_end_N"] = torch.tensor([end for end, _ in tokens])
        columns["step_rewards_N"] = tensor([paid for _, paid in tokens])
    return Rollout(
        tensor([row["reward"] for row in rows]),
        torch.tensor([number for number, group in enumerate(groups) for _ in group]),
        torch.tensor([number for number, row in enumerate(rows) for _ in range(row["length"])]),
        **columns,
    )


TWO = [[row(2.0, {1: 1.0, 3: 0.0}, 5), row(1.0, {0: 0.5}, 2)]]


def test_grpo_normalises_all_steps_of_a_group_and_adds_up_those_ahead_by_hand():
    """Steps 1, 0 and 0.5 have mean 0.5 and standard deviation 0.5; outcomes 1 and 0.5 are 0.5^(1/2) from theirs."""
    found = GRPO(kl_coefficient=0.0, std_epsilon=0.0, process_rewards=True).advantages(rollout(TWO))
    half = math.sqrt(0.5)
    expected = [half, half, half - 1.0, half - 1.0, half, -half, -half]
    torch.testing.assert_close(found.advantages_N, tensor(expected))
    assert found.metrics["steps"] == 1.5 and found.metrics["zero_advantage"] == 0.0
    assert found.metrics["reward_std"] == pytest.approx(math.sqrt(0.5))


def test_a_step_that_pays_nothing_is_a_step_and_one_alone_is_compared_with_nothing():
    wrong = [[row(1.0, {0: 1.0}, 1), row(0.0, {0: 0.0}, 1)]]
    algorithm = GRPO(std_epsilon=0.0, process_rewards=True)
    assert algorithm.advantages(rollout(wrong)).advantages_N.tolist() == pytest.approx(
        [math.sqrt(0.5), -math.sqrt(0.5)]
    )
    assert algorithm.advantages(rollout(wrong)).metrics["zero_advantage"] == 0.0
    alone = [[row(1.0, {0: 1.0}, 1), row(0.0, {}, 1)]]
    found = algorithm.advantages(rollout(alone))
    assert found.advantages_N.tolist() == [0.0, 0.0] and found.metrics["zero_advantage"] == 1.0


@given(GROUPS)
def test_grpo_is_its_reading_in_plain_floats(groups):
    groups = with_rewards(groups)
    found = GRPO(process_rewards=True).advantages(rollout(groups))
    torch.testing.assert_close(found.advantages_N, tensor(reference.grpo(groups)), rtol=1e-7, atol=1e-7)
    dr = DrGRPO(process_rewards=True).advantages(rollout(groups)).advantages_N
    centred = reference.grpo(groups, compare=lambda values, _: [v - mean(values) for v in values])
    torch.testing.assert_close(dr, tensor(centred), rtol=1e-7, atol=1e-7)


@given(GROUPS)
def test_without_spans_the_knob_changes_nothing(groups):
    plain = [[{**row, "steps": {}} for row in group] for group in with_rewards(groups)]
    values = torch.linspace(0, 1, sum(row["length"] for group in plain for row in group), dtype=torch.float64)
    for kind in (GRPO, DAPO, PPO, VAPO):
        knobs = {"kl_coefficient": 0.0}
        on = kind(**knobs, process_rewards=True).advantages(rollout(plain, values_N=values))
        off = kind(**knobs).advantages(rollout(plain, steps=False, values_N=values))
        assert torch.equal(on.advantages_N, off.advantages_N)
        assert on.metrics.items() >= off.metrics.items()


def test_without_the_knob_steps_change_nothing():
    values = tensor([0.5, 0.25, 0.0, 1.0, 0.5, 0.0, 0.125])
    for kind in (GRPO, DAPO, PPO, VAPO):
        algorithm = kind(kl_coefficient=0.0)
        found = [algorithm.advantages(rollout(TWO, steps=steps, values_N=values)) for steps in (True, False)]
        assert torch.equal(found[0].advantages_N, found[1].advantages_N) and found[0].metrics == found[1].metrics


def test_seats_have_steps_of_their_own():
    """Two episodes of two seats: each seat's two steps are compared with each other."""
    group = [[row(4.0, {0: 4.0}, 1), row(1.0, {0: 1.0}, 1), row(2.0, {0: 2.0}, 1), row(0.0, {0: 0.0}, 1)]]
    batch = rollout(group, seat_R=torch.tensor([0, 1, 0, 1]))
    found = DrGRPO(process_rewards=True).advantages(batch).advantages_N
    assert found.tolist() == [1.0, 0.5, -1.0, -0.5]


def test_ppo_pays_steps_at_their_tokens_and_the_rest_at_the_end_by_hand():
    batch = rollout(TWO)
    assert batch.paid_N.tolist() == [0.0, 1.0, 0.0, 0.0, 1.0, 0.5, 0.5]
    assert batch.outcome_R.tolist() == [1.0, 0.5]


@given(GROUPS, st.randoms(use_true_random=False))
def test_ppo_is_gae_of_what_is_paid_in_plain_floats(groups, random):
    groups = with_rewards(groups)
    values = [[random.uniform(-1, 1) for _ in range(row["length"])] for group in groups for row in group]
    batch = rollout(groups, values_N=tensor([v for row in values for v in row]))
    rows = [row for group in groups for row in group]
    for kind, target in ((PPO, 0.9), (PPOPtx, 0.9), (VAPO, 1.0)):
        knobs = {"gae_lambda": target, "discount": 0.8, "kl_coefficient": 0.0, "process_rewards": True}
        found = kind(**knobs).advantages(batch)
        expected = [reference.gae(row, v, 0.8, target) for row, v in zip(rows, values, strict=True)]
        returns = [
            a + v for advantages, of in zip(expected, values, strict=True) for a, v in zip(advantages, of, strict=True)
        ]
        torch.testing.assert_close(found.returns_N, tensor(returns), rtol=1e-9, atol=1e-9)
        flat = [a for advantages in expected for a in advantages]
        if kind is not VAPO and len(flat) > 1 and stdev(flat) > 1e-3:
            scaled = [(a - mean(flat)) / (stdev(flat) + 1e-4) for a in flat]
            torch.testing.assert_close(found.advantages_N, tensor(scaled), rtol=1e-6, atol=1e-6)


@given(GROUPS)
def test_what_is_paid_is_the_reward_of_each_row(groups):
    groups = with_rewards(groups)
    batch = rollout(groups)
    torch.testing.assert_close(batch.per_row(batch.paid_N), batch.rewards_R, rtol=0, atol=1e-11)
    assert batch.steps == sum(len(row["steps"]) for group in groups for row in group)


def test_a_punished_length_is_part_of_the_outcome():
    """DAPO's punishment: 1 is taken off a completion of the greatest length, whose steps stay what they are."""
    batch = rollout([[row(1.0, {0: 1.0}, 5), row(0.0, {0: 0.0}, 1)]])._replace(longest=5)
    algorithm = DAPO(process_rewards=True, std_epsilon=0.0, overlong_share=0.4)
    half = math.sqrt(0.5)
    expected = [half - half, -half, -half, -half, -half, -half + half]
    torch.testing.assert_close(algorithm.advantages(batch).advantages_N, tensor(expected))


@pytest.mark.parametrize("name", TAKE)
def test_the_knob_declares_the_input_and_is_off_by_default(name):
    kind = algorithms.online(name)
    assert declared(kind(), StepRewards) is None and StepRewards() not in kind().inputs
    if name in REFUSE:
        with pytest.raises(UserError, match="leave out process_rewards"):
            kind(process_rewards=True)
    else:
        assert kind(process_rewards=True).inputs == (*kind().inputs, StepRewards())


def test_who_takes_process_rewards():
    assert set(TAKE) == {"grpo", "dr-grpo", "dapo", "ppo", "ppo-penalty", "ppo-ptx", "vapo", *RECENT, *REFUSE}


@pytest.mark.parametrize("kind", [GRPO, PPO])
def test_without_the_columns_there_is_an_error(kind):
    values = torch.zeros(7, dtype=torch.float64)
    batch = rollout(TWO, steps=False, values_N=values, sampler_N=values, reference_N=values)
    for part in ({}, {"step_rewards_N": values}, {"step_end_N": values > 0}):
        with pytest.raises(ValueError, match="step_rewards_N"):
            kind(process_rewards=True).advantages(batch._replace(**part))
