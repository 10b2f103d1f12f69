"""What providers may ask for. A recipe fills in what its algorithm's inputs need."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor

from posttrain.data.packing import Example
from posttrain.training.learner import Learner
from posttrain.types import Group, States, StateValues, Trajectory

Columns = Mapping[str, Any]
"""Fields of `algorithm.Rollout` by name."""

T = TypeVar("T")


@dataclass(frozen=True)
class Context:
    """What the providers of a step work with.

    Attributes:
        greedy_rewards: samples the most likely completion of each group's prompt; what it earned.
        state_values: continues completions from their states; what those are worth.
        learner: what the reference and the critic say.
        temperature: of the sampling.
    """

    greedy_rewards: Callable[[Sequence[Group]], Sequence[float]] | None = None
    state_values: Callable[[Sequence[Group], States], Sequence[StateValues]] | None = None
    learner: Learner | None = None
    temperature: float = 1.0


def given(part: T | None, what: str) -> T:
    """A part of the context that an algorithm needs; raises `ValueError` where it is missing."""
    if part is None:
        raise ValueError(f"the algorithm needs {what}, which the context does not have")
    return part


def example_of(trajectory: Trajectory) -> Example:
    """The tokens of a trajectory exactly as they were sampled; its first context is shared within its group."""
    prompt = trajectory.turns[0].context_ids
    return Example(prompt, trajectory.token_ids[len(prompt) :], trajectory.sampled[len(prompt) :])


def examples_in(groups: Sequence[Group]) -> list[Example]:
    """The trajectories of groups, in order."""
    return [example_of(trajectory) for group in groups for trajectory in group.trajectories]


def flat(numbers: Sequence[Sequence[float]]) -> Tensor:
    """One number per token of all completions, [N], in float64."""
    return torch.tensor(list(chain.from_iterable(numbers)), dtype=torch.float64)
