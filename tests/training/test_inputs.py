"""Inputs that algorithms declare: their columns, worked out by hand, and what the table of providers covers."""

from dataclasses import replace

import pytest
import torch

from posttrain import algorithms
from posttrain.algorithms.inputs import (
    Context,
    GreedyReward,
    PretrainingNLL,
    PromptKinds,
    ReferenceLogprobs,
    SeatBaselines,
    StateValues,
    StepRewards,
    TeacherLogprobs,
    columns_of,
    declared,
)
from posttrain.algorithms.load import Load
from posttrain.training.policy import context_of
from posttrain.types import Group, States, StopReason, Task, Trajectory, Turn
from posttrain.types import StateValues as Found
from tests.groups import group_of, with_rows
from tests.tiny import tiny_llama
from tests.training.steps import learner_of


def trajectory(*tokens: int) -> Trajectory:
    return Trajectory((Turn((1, 2), tokens, (-1.0,) * len(tokens), StopReason.STOP, ""),))


GROUPS = [
    group_of([trajectory(3, 4), trajectory(5)], [1.0, 0.0], task=Task((), metadata={"kind": "sums"})),
    group_of([trajectory(6, 7, 8)], [0.5]),
]


def test_what_is_declared_is_found_by_its_kind():
    ptx = algorithms.online("ppo-ptx")(pretraining_coefficient=3.0)
    assert declared(ptx, PretrainingNLL) == PretrainingNLL(3.0)
    assert declared(algorithms.preference("dpo")(), PretrainingNLL) is None


def test_greedy_rewards_are_one_number_per_row():
    context = Context(greedy_rewards=lambda groups: [{"": float(len(group.rows))} for group in groups])
    found = columns_of([GreedyReward()], GROUPS, context, samples=True)
    assert found["greedy_R"].tolist() == [2.0, 2.0, 1.0]
    assert found["greedy_R"].dtype == torch.float64


def test_a_seat_is_compared_with_what_it_earns_greedily():
    rows = (trajectory(3),) * 3
    both = group_of(rows, [0.0] * 3, seats=["black", "white", "black"], episodes=[0, 0, 1])
    context = Context(greedy_rewards=lambda groups: [{"white": 1.0, "black": -1.0} for _ in groups])
    assert columns_of([GreedyReward()], [both], context, samples=True)["greedy_R"].tolist() == [-1.0, 1.0, -1.0]


def test_kinds_are_a_column_of_the_data_or_empty():
    level = group_of([trajectory(6)], [0.5], task=Task((), metadata={"kind": 3}))
    assert columns_of([PromptKinds()], [*GROUPS, level], Context(), samples=False) == {
        "kinds_R": ("sums", "sums", "", "3")
    }


def test_step_rewards_are_numbers_of_tokens_and_a_step_that_pays_nothing_is_marked():
    paid = with_rows(GROUPS[0], step_rewards=[{1: 0.0}, {0: -0.5}])
    found = columns_of([StepRewards()], [paid, GROUPS[1]], Context(), samples=False)
    assert found["step_rewards_N"].tolist() == [0.0, 0.0, -0.5, 0.0, 0.0, 0.0]
    assert found["step_end_N"].tolist() == [False, True, True, False, False, False]
    assert found["step_rewards_N"].dtype == torch.float64


def test_step_rewards_are_counted_over_the_turns_and_branches_of_a_row():
    first, second = trajectory(3, 4).turns[0], replace(trajectory(5, 6).turns[0], restarts=True)
    row = group_of([Trajectory((first, second))], [1.0], step_rewards=[{1: 0.25, 3: 0.75}])
    found = columns_of([StepRewards()], [row], Context(), samples=False)
    assert found["step_rewards_N"].tolist() == [0.0, 0.25, 0.0, 0.75]


def test_values_of_states_are_numbers_of_tokens():
    asked: list[States] = []

    def continued(groups, states):
        asked.append(states)
        return [Found((0.25, 0.5), (0, 1)), Found((0.75,), (0,)), Found((0.0, 0.0, 1.0), (0, 0, 1))]

    need = StateValues(samples=9, step_tokens=2, most=4)
    found = columns_of([need], GROUPS, Context(state_values=continued), samples=True)
    assert found["values_N"].tolist() == [0.25, 0.5, 0.75, 0.0, 0.0, 1.0]
    assert found["step_N"].tolist() == [0, 1, 0, 0, 0, 1]
    assert asked == [need]


def test_what_samples_comes_with_the_rollout_and_the_rest_with_the_batch():
    class Halves:
        def logprobs(self, row, temperature):
            return torch.full((len(row.targets),), -0.5)

    learner = learner_of(tiny_llama(), reference=Halves())
    context = context_of(learner, greedy_rewards=lambda groups: [{"": 1.0}] * len(groups))
    needs = [GreedyReward(), PromptKinds(), ReferenceLogprobs()]
    assert set(columns_of(needs, GROUPS, context, samples=True)) == {"greedy_R"}
    assert set(columns_of(needs, GROUPS, context, samples=False)) == {"kinds_R", "reference_N"}


def test_a_teacher_reads_the_sampled_tokens_at_the_sampling_temperature():
    class Fractions:
        def logprobs(self, row, temperature):
            return -temperature * torch.tensor(row.targets, dtype=torch.float64)

    context = context_of(learner_of(tiny_llama(), teacher=Fractions()), temperature=0.5)
    found = columns_of([TeacherLogprobs()], GROUPS, context, samples=False)
    assert found["teacher_N"].tolist() == [-1.5, -2.0, -2.5, -3.0, -3.5, -4.0]


def test_averages_of_seats_are_of_each_game_and_go_on():
    def game(kind: str, *rewards: float) -> Group:
        rows = (trajectory(3),) * 4
        task = Task((), metadata={"kind": kind} if kind else {})
        return group_of(rows, rewards, task=task, seats=("first", "second") * 2, episodes=(0, 0, 1, 1))

    groups = [game("", 1.0, -1.0, 1.0, -1.0), game("nim", -1.0, 1.0, 0.0, 0.0)]
    before = {" first": 0.5, "chess first": 1.0}
    context = Context(state={"seat_baselines": before, "others": 1})
    found = columns_of([SeatBaselines(0.5)], groups, context, samples=False)["baselines_R"]
    assert found.tolist() == [0.75, -0.5, 0.875, -0.75, -0.5, 0.5, -0.25, 0.25]
    after = {" first": 0.875, " second": -0.75, "nim first": -0.25, "nim second": 0.25, "chess first": 1.0}
    assert context.state == {"seat_baselines": after, "others": 1}
    assert before == {" first": 0.5, "chess first": 1.0}  # a step that fails leaves the state before it
    assert columns_of([SeatBaselines(0.5)], [], context, samples=False) == {}
    alone = Context()
    assert columns_of([SeatBaselines(0.5)], GROUPS, alone, samples=False)["baselines_R"].tolist() == [0.5, 0.25, 0.25]
    assert alone.state == {"seat_baselines": {"sums ": 0.25, " ": 0.25}}


def test_of_no_groups_nothing_is_asked():
    assert columns_of([GreedyReward(), ReferenceLogprobs()], [], Context(), samples=True) == {}


@pytest.mark.parametrize(("need", "what"), [(GreedyReward(), "greedy completions"), (StateValues(1, 2, 3), "continu")])
def test_a_context_without_what_is_needed_is_an_error(need, what):
    with pytest.raises(ValueError, match=f"the algorithm needs {what}"):
        columns_of([need], GROUPS, Context(), samples=True)


def test_what_is_sampled_besides_is_one_load_per_need():
    load = Load(4, 8, 100, 20, 512)
    need = StateValues(samples=9, step_tokens=6, most=10)
    # four steps of 6, 6, 6 and 2 tokens: three of 32 completions begin within, half of a completion away on average
    expected = (Load(4, 1, 100, 20, 512), Load(4, 9, 100, 20, 512), Load(96, 9, 110, 10, 512))
    assert (*GreedyReward().load(load), *ReferenceLogprobs().load(load), *need.load(load)) == expected
