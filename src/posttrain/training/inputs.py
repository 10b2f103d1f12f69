"""Providers of what algorithms declare (`algorithms/inputs.py`): the columns of a batch, and what they sample.

A provider asks its `Context` for what samples or computes, which the recipe supplies, so that nothing here imports
rollouts.

Shape letters: R rows of a batch, N sampled tokens of it.
"""

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from posttrain.algorithms.inputs import (
    CriticValues,
    GreedyReward,
    Input,
    NamedScores,
    PromptKinds,
    ReferenceLogprobs,
    SeatBaselines,
    StateValues,
    StepRewards,
    TeacherLogprobs,
)
from posttrain.data.packing import Example
from posttrain.errors import UserError
from posttrain.objectives.advantages import moving_baselines
from posttrain.training.learner import REFERENCE, TEACHER, Column, Learner
from posttrain.training.load import Load
from posttrain.training.teacher import Teachers
from posttrain.types import Group, States, Trajectory
from posttrain.types import StateValues as ValuesOfStates

Columns = Mapping[str, Any]
"""Fields of `algorithm.Rollout` by name."""

BASELINES = "seat_baselines"  # in the state of a context, by "GAME SEAT": the average of the return

ONE_TEACHER = Teachers({"": TEACHER})

T = TypeVar("T")


@dataclass(frozen=True)
class Context:
    """What the providers of a step work with. A recipe fills in what its algorithm's inputs need.

    Attributes:
        greedy_rewards: plays the task of each group once more, greedily; what that earned, by the seat's name.
        state_values: continues completions from their states; what those are worth, row by row.
        learner: what the reference and the critic say.
        temperature: of the sampling.
        weights: of the rewards that are optimised, by name.
        teachers: which part of the learner teaches a row, and what it is shown.
        state: what inputs keep from step to step, by their names, as JSON. A provider puts a new entry in the place of
            its old one; a checkpoint has what the last finished step left.
    """

    greedy_rewards: Callable[[Sequence[Group]], Sequence[Mapping[str, float]]] | None = None
    state_values: Callable[[Sequence[Group], States], Sequence[ValuesOfStates]] | None = None
    learner: Learner | None = None
    temperature: float = 1.0
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    teachers: Teachers = ONE_TEACHER
    state: MutableMapping[str, Any] = field(default_factory=dict[str, Any])


class Provider(NamedTuple):
    """The provider of one input, given what is declared."""

    columns: Callable[[Any, Sequence[Group], Context], Columns]
    sampled: Callable[[Any, Load], tuple[Load, ...]] | None = None  # the completions that it samples besides a load


def columns_of(inputs: Sequence[Input], groups: Sequence[Group], context: Context, *, samples: bool) -> Columns:
    """The columns of all inputs that sample, or of all that do not, for `algorithm.Rollout`."""
    found: dict[str, Any] = {}
    for need in inputs:
        provider = PROVIDERS[type(need)]
        if groups and samples == (provider.sampled is not None):
            found |= provider.columns(need, groups, context)
    return found


def sampled_besides(inputs: Sequence[Input], load: Load) -> tuple[Load, ...]:
    """The completions that inputs sample besides a batch of this load."""
    found = [(need, PROVIDERS[type(need)].sampled) for need in inputs]
    return tuple(each for need, sampled in found if sampled for each in sampled(need, load))


def example_of(branch: Trajectory) -> Example:
    """The tokens of a branch exactly as they were sampled; its first context is shared within its group."""
    prompt = branch.turns[0].context_ids
    shown = [(turn, [0.0] * len(turn.context_ids)) for turn in branch.turns]
    own = tuple(t for turn, zeros in shown for t in (*zeros, *[turn.temperature] * len(turn.token_ids)))[len(prompt) :]
    return Example(prompt, branch.token_ids[len(prompt) :], branch.sampled[len(prompt) :], own if any(own) else ())


def branches_in(groups: Sequence[Group]) -> list[Trajectory]:
    """The branches of all rows of groups, in order."""
    return [branch for group in groups for row in group.rows for branch in row.trajectory.branches]


def examples_in(groups: Sequence[Group]) -> list[Example]:
    """An example of each branch, in order."""
    return [example_of(branch) for branch in branches_in(groups)]


def flat(numbers: Sequence[Sequence[float]]) -> Tensor:
    """One number per token of all rows, [N], in float64."""
    return torch.tensor(list(chain.from_iterable(numbers)), dtype=torch.float64)


def _given(part: T | None, what: str) -> T:
    """A part of the context that an algorithm needs; raises `ValueError` where it is missing."""
    if part is None:
        raise ValueError(f"the algorithm needs {what}, which the context does not have")
    return part


def _greedy_reward(need: GreedyReward, groups: Sequence[Group], context: Context) -> Columns:
    """`greedy_R`: of each row what its seat earned in the greedy episode of its task."""
    earned = _given(context.greedy_rewards, "greedy completions")(groups)
    rows = [by_seat[row.seat] for group, by_seat in zip(groups, earned, strict=True) for row in group.rows]
    return {"greedy_R": torch.tensor(rows, dtype=torch.float64)}


def _state_values(need: StateValues, groups: Sequence[Group], context: Context) -> Columns:
    """`values_N` and `step_N`: what the states of completions are worth, by Monte Carlo continuations."""
    states = _given(context.state_values, "continuations")(groups, need)
    steps = [step for state in states for step in state.steps]
    return {"values_N": flat([state.values for state in states]), "step_N": torch.tensor(steps)}


def _continuations(need: StateValues, load: Load) -> tuple[Load, ...]:
    """Continuations of prompts, in which all completions begin, and of later states.

    There are taken to be as many states as there may be, evenly spread over a completion: where a step is a line, how
    many it has shows only when it is sampled.
    """
    steps = min(need.most, math.ceil(load.completion_tokens / max(1, need.step_tokens)))
    begun, done = load.sequences * (steps - 1), load.completion_tokens // 2
    prompt, completion = load.prompt_tokens + done, load.completion_tokens - done
    later = replace(load, prompts=begun, group=need.samples, prompt_tokens=prompt, completion_tokens=completion)
    return replace(load, group=need.samples), later


def _prompt_kinds(need: PromptKinds, groups: Sequence[Group], context: Context) -> Columns:
    """`kinds_R`: of each row the column `kind` of its task; "" where it has none."""
    return {"kinds_R": tuple(str(group.task.metadata.get("kind", "")) for group in groups for _ in group.rows)}


def _named_scores(need: NamedScores, groups: Sequence[Group], context: Context) -> Columns:
    """`scores_RK` and `weights_K`: what each reward that is optimised gave each row, and its weight."""
    weights = {name: weight for name, weight in _given(context.weights or None, "weights of rewards").items() if weight}
    scores = [[row.scores[name].total for name in weights] for group in groups for row in group.rows]
    numbers = {"scores_RK": scores, "weights_K": list(weights.values())}
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in numbers.items()}


def _critic_values(need: CriticValues, groups: Sequence[Group], context: Context) -> Columns:
    """`values_N`: what a critic expects before each token."""
    return {"values_N": flat(_given(context.learner, "a critic").values(examples_in(groups)))}


def _reference_logprobs(need: ReferenceLogprobs, groups: Sequence[Group], context: Context) -> Columns:
    """`reference_N`: the reference policy's logprobs of what was sampled."""
    learner = _given(context.learner, "a reference")
    return {"reference_N": flat(learner.logprobs(examples_in(groups), REFERENCE, temperature=context.temperature))}


def _teacher_logprobs(need: TeacherLogprobs, groups: Sequence[Group], context: Context) -> Columns:
    """`teacher_N`: teachers' logprobs of what the policy sampled."""
    return {"teacher_N": flat(teacher_logprobs(groups, context))}


def teacher_logprobs(groups: Sequence[Group], context: Context) -> Column:
    """Of each branch the logprobs of its sampled tokens by the teacher of its row, behind the prompt that this sees.

    Of a branch the tokens of the task's prompt are replaced, and all that follows stays.

    Raises:
        UserError: teachers have a prompt of their own, and an environment showed a seat another than the task's.
    """
    learner, teachers = _given(context.learner, "a teacher"), context.teachers
    of_part: dict[str, list[int]] = {}
    examples: list[Example] = []
    for group in groups:
        own, its = teachers.prefix(group.task) if teachers.prompt else ((), ())
        for example in examples_in([group]):
            if example.prefix[: len(own)] != own:
                raise UserError(
                    "`teacher_prompt` stands in place of the task's prompt, and the environment began an episode with "
                    "other messages; leave it out"
                )
            of_part.setdefault(teachers.part_of(group.task), []).append(len(examples))
            examples.append(replace(example, prefix=(*its, *example.prefix[len(own) :])))
    found: dict[int, Sequence[float]] = {}
    for part, numbers in of_part.items():
        said = learner.logprobs([examples[number] for number in numbers], part, temperature=context.temperature)
        found |= zip(numbers, said, strict=True)
    return [found[number] for number in range(len(examples))]


def _step_rewards(need: StepRewards, groups: Sequence[Group], context: Context) -> Columns:
    """`step_rewards_N` and `step_end_N`: what is paid at a token, and whether a step ends there.

    The step of a wrong line may pay 0 and is a step all the same.
    """
    rows = [row for group in groups for row in group.rows]
    places = [(row.step_rewards, token) for row in rows for token in range(len(row.trajectory.logprobs))]
    return {
        "step_rewards_N": torch.tensor([paid.get(token, 0.0) for paid, token in places], dtype=torch.float64),
        "step_end_N": torch.tensor([token in paid for paid, token in places], dtype=torch.bool),
    }


def _seat_baselines(need: SeatBaselines, groups: Sequence[Group], context: Context) -> Columns:
    """`baselines_R`: moving averages of what each seat earns; those of the context's state are updated."""
    keys = [f"{group.task.metadata.get('kind', '')} {row.seat}" for group in groups for row in group.rows]
    returns_R = torch.tensor([row.reward for group in groups for row in group.rows], dtype=torch.float64)
    before = context.state.get(BASELINES, {})
    found_R, context.state[BASELINES] = moving_baselines(returns_R, keys, before, decay=need.decay)
    return {"baselines_R": found_R}


PROVIDERS: Mapping[type[Any], Provider] = {
    GreedyReward: Provider(_greedy_reward, lambda need, load: (replace(load, group=1),)),
    StateValues: Provider(_state_values, _continuations),
    PromptKinds: Provider(_prompt_kinds),
    CriticValues: Provider(_critic_values),
    ReferenceLogprobs: Provider(_reference_logprobs),
    StepRewards: Provider(_step_rewards),
    NamedScores: Provider(_named_scores),
    TeacherLogprobs: Provider(_teacher_logprobs),
    SeatBaselines: Provider(_seat_baselines),
}
