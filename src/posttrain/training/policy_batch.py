"""From scored groups to what an update learns from: numbers for each sampled token.

Shape letters: N sampled tokens, of a batch or of a micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from posttrain import fast_paths
from posttrain.algorithms.algorithm import Counts, OnlineAlgorithm, Rollout
from posttrain.algorithms.inputs import CriticValues, declared
from posttrain.data.packing import Example, PackedRow
from posttrain.objectives.shaping import adaptive_length_penalty
from posttrain.training.inputs import columns_of
from posttrain.training.inputs.context import Columns, Context, Reference, by_example, examples_in, flat
from posttrain.types import Group

NOTHING = Context()

Column = list[tuple[float, ...]]
"""Per example: one number for each of its learned tokens."""


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
    sampled: Columns | None = None,
    context: Context = NOTHING,
) -> tuple[PolicyBatch, dict[str, float]]:
    """Give every token its advantage, and leave out groups that carry no gradient.

    Args:
        groups: as many completions in each. Of none, nothing is learned.
        algorithm: says what an advantage is.
        longest: tokens that a completion may have.
        sampled: the columns of the algorithm's inputs that sample.
        context: asked for those of the others.
    """
    if not groups:
        return PolicyBatch([], [], [], None, Counts(0, 0, longest)), {"groups/kept": 0}
    trajectories = [t for group in groups for t in group.trajectories]
    examples = examples_in(groups)
    lengths = torch.tensor([len(t.logprobs) for t in trajectories])
    rollout = Rollout(
        torch.tensor([group.rewards for group in groups], dtype=torch.float64),
        torch.repeat_interleave(torch.arange(len(trajectories)), lengths),
        longest,
        flat([t.logprobs for t in trajectories]),
        **(sampled or {}),
        **columns_of(algorithm.inputs, groups, context, samples=False),
    )
    found = algorithm.advantages(rollout)

    def column(numbers_N: Tensor | None) -> Column | None:
        return None if numbers_N is None else [tuple(part.tolist()) for part in numbers_N.split(lengths.tolist())]

    advantages = column(found.advantages_N) or []
    expected = column(rollout.values_N) if declared(algorithm, CriticValues) else None
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
        of_kept(column(rollout.reference_N)),
        Counts(len(trajectories), int(lengths.sum()), longest),
        of_kept(expected),
        of_kept(column(found.returns_N)),
        of_kept(column(found.imitation_N)),
        None if rollout.reference_N is None else rollout.kl_N().sum().item() / len(trajectories),
    )
    return batch, {"groups/kept": len(taken), **{f"groups/{key}": value for key, value in found.metrics.items()}}


def distance(groups: Sequence[Group], reference: Reference, *, microbatch_tokens: int) -> float:
    """The KL of the policy that sampled from the reference, in nats per completion, as its samples show it.

        KL = E_{y ~ pi} sum_t [ log pi(y_t | y_<t) - log ref(y_t | y_<t) ]

    The samples are drawn at temperature 1. By chance it may be below 0.
    """
    trajectories = [t for group in groups for t in group.trajectories]
    behind = by_example(examples_in(groups), microbatch_tokens, lambda row: reference.logprobs(row, 1.0))
    gone = sum(sum(t.logprobs) - sum(before) for t, before in zip(trajectories, behind, strict=True))
    return gone / len(trajectories)


def of_row(numbers: Column, row: PackedRow, like: Tensor) -> Tensor:
    """The numbers of a row's learned tokens, in order, [N]."""
    values = [value for number in row.examples for value in numbers[number]]
    return torch.tensor(values, dtype=torch.float64).to(like)
