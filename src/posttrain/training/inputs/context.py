"""What providers may ask for. A recipe fills in what its algorithm's inputs need."""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
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
        greedy_rewards: plays the task of each group once more, greedily; what that earned, by the seat's name.
        state_values: continues completions from their states; what those are worth, row by row.
        learner: what the reference and the critic say.
        temperature: of the sampling.
        state: what inputs keep from step to step, by their names, as JSON. A provider puts a new entry in the place of
            its old one; a checkpoint has what the last finished step left.
    """

    greedy_rewards: Callable[[Sequence[Group]], Sequence[Mapping[str, float]]] | None = None
    state_values: Callable[[Sequence[Group], States], Sequence[StateValues]] | None = None
    learner: Learner | None = None
    temperature: float = 1.0
    state: MutableMapping[str, Any] = field(default_factory=dict[str, Any])


def given(part: T | None, what: str) -> T:
    """A part of the context that an algorithm needs; raises `ValueError` where it is missing."""
    if part is None:
        raise ValueError(f"the algorithm needs {what}, which the context does not have")
    return part


def example_of(branch: Trajectory) -> Example:
    """The tokens of a branch exactly as they were sampled; its first context is shared within its group."""
    prompt = branch.turns[0].context_ids
    return Example(prompt, branch.token_ids[len(prompt) :], branch.sampled[len(prompt) :])


def branches_in(groups: Sequence[Group]) -> list[Trajectory]:
    """The branches of all rows of groups, in order."""
    return [branch for group in groups for row in group.rows for branch in row.trajectory.branches]


def examples_in(groups: Sequence[Group]) -> list[Example]:
    """An example of each branch, in order."""
    return [example_of(branch) for branch in branches_in(groups)]


def flat(numbers: Sequence[Sequence[float]]) -> Tensor:
    """One number per token of all rows, [N], in float64."""
    return torch.tensor(list(chain.from_iterable(numbers)), dtype=torch.float64)
