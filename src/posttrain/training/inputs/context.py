"""What providers may ask for. A recipe fills in what its algorithm's inputs need."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from posttrain.data.packing import Example, PackedRow, pack
from posttrain.models.critic import Critic
from posttrain.types import Group, States, StateValues, Trajectory

Columns = Mapping[str, Any]
"""Fields of `algorithm.Rollout` by name."""

T = TypeVar("T")


class Reference(Protocol):
    """A frozen policy to stay close to."""

    def logprobs(self, row: PackedRow, temperature: float) -> Tensor:
        """Logprobs of a row's learned tokens, [N], without gradient."""
        ...


@dataclass(frozen=True)
class Context:
    """What the providers of a step work with.

    Attributes:
        greedy_rewards: samples the most likely completion of each group's prompt; what it earned.
        state_values: continues completions from their states; what those are worth.
        reference: the reference policy.
        critic: the critic.
        microbatch_tokens: of a forward pass.
        temperature: of the sampling.
    """

    greedy_rewards: Callable[[Sequence[Group]], Sequence[float]] | None = None
    state_values: Callable[[Sequence[Group], States], Sequence[StateValues]] | None = None
    reference: Reference | None = None
    critic: Critic | None = None
    microbatch_tokens: int = 4096
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


@torch.no_grad()
def by_example(
    examples: Sequence[Example], microbatch_tokens: int, of_row: Callable[[PackedRow], Tensor]
) -> list[tuple[float, ...]]:
    """A number for each learned token of each example, asked for row by row, [N] each time."""
    found: dict[int, tuple[float, ...]] = {}
    for row in pack(examples, microbatch_tokens):
        sizes = [sum(examples[number].learned) for number in row.examples]
        parts = of_row(row).split(sizes)
        found |= {number: tuple(part.tolist()) for number, part in zip(row.examples, parts, strict=True)}
    return [found[number] for number in range(len(examples))]


def flat(numbers: Sequence[Sequence[float]]) -> Tensor:
    """One number per token of all completions, [N], in float64."""
    return torch.tensor(list(chain.from_iterable(numbers)), dtype=torch.float64)
