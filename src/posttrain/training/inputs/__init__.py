"""Providers of what algorithms declare (`algorithms/inputs.py`): the columns of a batch, and what they cost.

A provider asks its `Context` for what samples or computes, which the recipe supplies, so that nothing here imports
rollouts.
"""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from posttrain.algorithms.inputs import (
    CriticValues,
    GreedyReward,
    Input,
    PromptKinds,
    ReferenceLogprobs,
    SeatBaselines,
    StateValues,
    StepRewards,
    TeacherLogprobs,
)
from posttrain.training.inputs import (
    critic_values,
    greedy_reward,
    prompt_kinds,
    reference_logprobs,
    seat_baselines,
    state_values,
    step_rewards,
    teacher_logprobs,
)
from posttrain.training.inputs.context import Columns, Context
from posttrain.training.load import Load
from posttrain.types import Group

__all__ = ["PROVIDERS", "Columns", "Context", "columns_of", "sampled_besides"]

PROVIDERS: Mapping[type[Any], ModuleType] = {
    GreedyReward: greedy_reward,
    StateValues: state_values,
    PromptKinds: prompt_kinds,
    CriticValues: critic_values,
    ReferenceLogprobs: reference_logprobs,
    StepRewards: step_rewards,
    TeacherLogprobs: teacher_logprobs,
    SeatBaselines: seat_baselines,
}
"""By what is declared: a module with `SAMPLES`, whether it samples; `columns(need, groups, context)`; and
`sampled(need, load)`, the completions that it samples besides a batch of that load."""


def columns_of(inputs: Sequence[Input], groups: Sequence[Group], context: Context, *, samples: bool) -> Columns:
    """The columns of all inputs that sample, or of all that do not, for `algorithm.Rollout`."""
    found: dict[str, Any] = {}
    for need in inputs:
        provider = PROVIDERS[type(need)]
        if groups and samples == provider.SAMPLES:
            found |= provider.columns(need, groups, context)
    return found


def sampled_besides(inputs: Sequence[Input], load: Load) -> tuple[Load, ...]:
    """The completions that inputs sample besides a batch of this load."""
    return tuple(each for need in inputs for each in PROVIDERS[type(need)].sampled(need, load))
