"""From scored groups to what an update learns from: numbers for each sampled token.

Shape letters: N sampled tokens, of a batch or of a micro-batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import torch

from posttrain import fast_paths
from posttrain.algorithms.algorithm import Counts, OnlineAlgorithm, Rollout
from posttrain.algorithms.inputs import CriticValues, declared
from posttrain.data.packing import Example
from posttrain.objectives.shaping import adaptive_length_penalty
from posttrain.training.inputs import columns_of
from posttrain.training.inputs.context import Columns, Context, examples_in, flat
from posttrain.training.learner import Batch, Column
from posttrain.types import Group

NOTHING = Context()


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
    seed: int | None = None,
    key: str = "",
) -> tuple[Batch, dict[str, float]]:
    """Give every token its advantage, and leave out groups that carry no gradient.

    The batch has the columns `advantages` and `sampler_logprobs`, and those of `reference_logprobs`, `values`,
    `returns` and `imitation` that the algorithm has; its scalar `kl` is the mean KL of the sampled completions from the
    reference in nats, where there is one.

    Args:
        groups: as many completions in each. Of none, nothing is learned.
        algorithm: says what an advantage is.
        longest: tokens that a completion may have.
        sampled: the columns of the algorithm's inputs that sample.
        context: asked for those of the others.
        seed: as in `Batch`.
        key: as in `Batch`.
    """
    if not groups:
        return Batch([], Counts(0, 0, longest), seed=seed, key=key), {"groups/kept": 0}
    trajectories = [t for group in groups for t in group.trajectories]
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
    columns = {
        "advantages": found.advantages_N,
        "sampler_logprobs": rollout.sampler_N,
        "reference_logprobs": rollout.reference_N,
        "values": rollout.values_N if declared(algorithm, CriticValues) else None,
        "returns": found.returns_N,
        "imitation": found.imitation_N,
    }
    tokens = {
        name: [tuple(part.tolist()) for part in numbers_N.split(lengths.tolist())]
        for name, numbers_N in columns.items()
        if numbers_N is not None
    }
    kl = {} if rollout.reference_N is None else {"kl": rollout.kl_N().sum().item() / len(trajectories)}
    counts = Counts(len(trajectories), int(lengths.sum()), longest)
    batch = Batch(examples_in(groups), counts, tokens=tokens, scalars=kl, seed=seed, key=key)
    everything = not (algorithm.silent_at_zero and fast_paths.on("skipped groups"))
    places = iter(range(len(trajectories)))
    members = [[next(places) for _ in group.trajectories] for group in groups]
    taken = [group for group in members if everything or any(any(tokens["advantages"][i]) for i in group)]
    metrics = {"groups/kept": len(taken), **{f"groups/{key}": value for key, value in found.metrics.items()}}
    return batch.chosen(list(chain.from_iterable(taken))), metrics


def distance(groups: Sequence[Group], logprobs_of: Callable[[Sequence[Example]], Column]) -> float:
    """The KL of the policy that sampled from another model, in nats per completion, as its samples show it.

        KL = E_{y ~ pi} sum_t [ log pi(y_t | y_<t) - log ref(y_t | y_<t) ]

    `logprobs_of` gives that model's logprobs of the learned tokens. The samples are drawn at temperature 1. By chance
    it may be below 0.
    """
    trajectories = [t for group in groups for t in group.trajectories]
    behind = logprobs_of(examples_in(groups))
    gone = sum(sum(t.logprobs) - sum(before) for t, before in zip(trajectories, behind, strict=True))
    return gone / len(trajectories)
