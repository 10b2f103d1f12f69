"""From scored groups to what an update learns from: numbers for each sampled token.

Shape letters: N sampled tokens, of a batch or of a micro-batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

from posttrain import fast_paths
from posttrain.algorithms.algorithm import Counts, OnlineAlgorithm, Rollout
from posttrain.data.packing import Example, PackedRow, pack
from posttrain.models.critic import Critic
from posttrain.objectives.shaping import adaptive_length_penalty
from posttrain.types import Group, StateValues, Trajectory

Column = list[tuple[float, ...]]
"""Per example: one number for each of its learned tokens."""


class Reference(Protocol):
    """A frozen policy to stay close to."""

    def logprobs(self, row: PackedRow, temperature: float) -> Tensor:
        """Logprobs of a row's learned tokens, [N], without gradient."""
        ...


@dataclass(frozen=True)
class PolicyBatch:
    """What one update learns from."""

    examples: list[Example]
    advantages: Column
    sampler_logprobs: Column
    reference_logprobs: Column | None  # where the algorithm needs them
    counts: Counts  # of the whole rollout, what is left out included
    values: Column | None = None  # what the critic expected
    returns: Column | None = None  # what it is to learn
    imitation: Column | None = None  # weights of a likelihood, where the algorithm raises one
    kl: float | None = None  # mean KL of the sampled completions from the reference in nats, where there is one


def example_of(trajectory: Trajectory) -> Example:
    """The tokens of a trajectory exactly as they were sampled; its first context is shared within its group."""
    prompt = trajectory.turns[0].context_ids
    return Example(prompt, trajectory.token_ids[len(prompt) :], trajectory.sampled[len(prompt) :])


def shortened(group: Group, weight: float, longest: int) -> Group:
    """A group whose rewards have `weight` times `adaptive_length_penalty` taken off; `longest` as in `policy_batch`."""
    if not weight:
        return group
    rewards_G = torch.tensor(group.rewards, dtype=torch.float64)
    lengths_G = torch.tensor([len(trajectory.logprobs) for trajectory in group.trajectories])
    penalty_PG = weight * adaptive_length_penalty(rewards_G[None], lengths_G[None], longest)
    return replace(group, rewards=tuple((rewards_G - penalty_PG[0]).tolist()))


def policy_batch(
    groups: Sequence[Group],
    algorithm: OnlineAlgorithm,
    *,
    longest: int = 0,
    greedy: Sequence[float] | None = None,
    states: Sequence[StateValues] | None = None,
    reference: Reference | None = None,
    critic: Critic | None = None,
    microbatch_tokens: int = 4096,
    temperature: float = 1.0,
) -> tuple[PolicyBatch, dict[str, float]]:
    """Give every token its advantage, and leave out groups that carry no gradient.

    Args:
        groups: as many completions in each. Of none, nothing is learned.
        algorithm: says what an advantage is.
        longest: tokens that a completion may have.
        greedy: what the most likely completion of each prompt earned, for an algorithm that needs it.
        states: what the states of each completion are worth, for an algorithm that needs it.
        reference: asked for its logprobs if the algorithm needs them.
        critic: asked for its values.
        microbatch_tokens: of the reference's and the critic's passes.
        temperature: of the sampling.
    """
    if not groups:
        return PolicyBatch([], [], [], None, Counts(0, 0, longest)), {"groups/kept": 0}
    trajectories = [t for group in groups for t in group.trajectories]
    examples = [example_of(t) for t in trajectories]
    lengths = torch.tensor([len(t.logprobs) for t in trajectories])
    behind = expected = None
    if reference is not None and algorithm.needs_reference:
        behind = by_example(examples, microbatch_tokens, lambda row: reference.logprobs(row, temperature))
    if critic is not None:
        expected = by_example(examples, microbatch_tokens, critic.values)
    worth = expected if states is None else [s.values for s in states]
    rollout = Rollout(
        torch.tensor([group.rewards for group in groups], dtype=torch.float64),
        torch.repeat_interleave(torch.arange(len(trajectories)), lengths),
        longest,
        _flat([t.logprobs for t in trajectories]),
        None if behind is None else _flat(behind),
        None if greedy is None else torch.tensor(greedy, dtype=torch.float64),
        tuple(str(group.task.metadata.get("kind", "")) for group in groups),
        None if worth is None else _flat(worth),
        None if states is None else torch.tensor([step for s in states for step in s.steps]),
    )
    found = algorithm.advantages(rollout)

    def column(numbers_N: Tensor) -> Column:
        return [tuple(part.tolist()) for part in numbers_N.split(lengths.tolist())]

    advantages = column(found.advantages_N)
    everything = not (algorithm.silent_at_zero and fast_paths.on("skipped groups"))
    places = iter(range(len(trajectories)))
    members = [[next(places) for _ in group.trajectories] for group in groups]
    taken = [group for group in members if everything or any(any(advantages[number]) for number in group)]
    kept = list(chain.from_iterable(taken))

    def of_kept(numbers: Column | None) -> Column | None:
        return None if numbers is None else [numbers[number] for number in kept]

    batch = PolicyBatch(
        [examples[number] for number in kept],
        [advantages[number] for number in kept],
        [trajectories[number].logprobs for number in kept],
        of_kept(behind),
        Counts(len(trajectories), int(lengths.sum()), longest),
        of_kept(expected),
        of_kept(None if found.returns_N is None else column(found.returns_N)),
        of_kept(None if found.imitation_N is None else column(found.imitation_N)),
        None if behind is None else rollout.kl_N().sum().item() / len(trajectories),
    )
    return batch, {"groups/kept": len(taken), **{f"groups/{key}": value for key, value in found.metrics.items()}}


def distance(groups: Sequence[Group], reference: Reference, *, microbatch_tokens: int) -> float:
    """The KL of the policy that sampled from the reference, in nats per completion, as its samples show it.

        KL = E_{y ~ pi} sum_t [ log pi(y_t | y_<t) - log ref(y_t | y_<t) ]

    The samples are drawn at temperature 1. By chance it may be below 0.
    """
    trajectories = [t for group in groups for t in group.trajectories]
    examples = [example_of(t) for t in trajectories]
    behind = by_example(examples, microbatch_tokens, lambda row: reference.logprobs(row, 1.0))
    gone = sum(sum(t.logprobs) - sum(before) for t, before in zip(trajectories, behind, strict=True))
    return gone / len(trajectories)


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


def of_row(numbers: Column, row: PackedRow, like: Tensor) -> Tensor:
    """The numbers of a row's learned tokens, in order, [N]."""
    values = [value for number in row.examples for value in numbers[number]]
    return torch.tensor(values, dtype=torch.float64).to(like)


def _flat(numbers: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor([x for part in numbers for x in part], dtype=torch.float64)
