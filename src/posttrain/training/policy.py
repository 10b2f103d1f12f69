"""One step of policy optimisation, for any online algorithm.

Shape letters: N sampled tokens of a micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

from posttrain import fast_paths
from posttrain.algorithms.algorithm import Counts, OnlineAlgorithm, Rollout
from posttrain.data.packing import Example, PackedRow, pack
from posttrain.models.language_model import LanguageModel
from posttrain.training.means import Means
from posttrain.training.microbatch import accumulate_gradients
from posttrain.training.optimizer import MasterAdamW
from posttrain.types import Group, Trajectory


class Reference(Protocol):
    """A frozen policy to stay close to."""

    def logprobs(self, row: PackedRow, temperature: float) -> Tensor:
        """Logprobs of a row's learned tokens, [N], without gradient."""
        ...


@dataclass(frozen=True)
class PolicyBatch:
    """What one update learns from. Per example: one number for each of its learned tokens."""

    examples: list[Example]
    advantages: list[tuple[float, ...]]
    sampler_logprobs: list[tuple[float, ...]]
    reference_logprobs: list[tuple[float, ...]] | None  # where the algorithm needs them
    counts: Counts  # of the whole rollout, what is left out included


def example_of(trajectory: Trajectory) -> Example:
    """The tokens of a trajectory exactly as they were sampled; its first context is shared within its group."""
    prompt = trajectory.turns[0].context_ids
    return Example(prompt, trajectory.token_ids[len(prompt) :], trajectory.sampled[len(prompt) :])


def policy_batch(
    groups: Sequence[Group],
    algorithm: OnlineAlgorithm,
    *,
    longest: int = 0,
    greedy: Sequence[float] | None = None,
    reference: Reference | None = None,
    microbatch_tokens: int = 4096,
    temperature: float = 1.0,
) -> tuple[PolicyBatch, dict[str, float]]:
    """Give every token its advantage, and leave out groups that carry no gradient.

    Args:
        groups: as many completions in each. Of none, nothing is learned.
        algorithm: says what an advantage is.
        longest: tokens that a completion may have.
        greedy: what the most likely completion of each prompt earned, for an algorithm that needs it.
        reference: asked for its logprobs if the algorithm needs them.
        microbatch_tokens: of the reference's passes.
        temperature: of the sampling.
    """
    if not groups:
        return PolicyBatch([], [], [], None, Counts(0, 0, longest)), {"groups/kept": 0}
    trajectories = [t for group in groups for t in group.trajectories]
    examples = [example_of(t) for t in trajectories]
    lengths = torch.tensor([len(t.logprobs) for t in trajectories])
    behind = None
    if reference is not None and algorithm.needs_reference:
        behind = _reference_logprobs(reference, examples, microbatch_tokens, temperature)
    rollout = Rollout(
        torch.tensor([group.rewards for group in groups], dtype=torch.float64),
        torch.repeat_interleave(torch.arange(len(trajectories)), lengths),
        longest,
        torch.tensor([value for t in trajectories for value in t.logprobs], dtype=torch.float64),
        None if behind is None else torch.tensor([x for values in behind for x in values], dtype=torch.float64),
        None if greedy is None else torch.tensor(greedy, dtype=torch.float64),
        tuple(str(group.task.metadata.get("kind", "")) for group in groups),
    )
    found = algorithm.advantages(rollout)
    advantages = [tuple(part.tolist()) for part in found.advantages_N.split(lengths.tolist())]
    everything = not (algorithm.silent_at_zero and fast_paths.on("skipped groups"))
    places = iter(range(len(trajectories)))
    members = [[next(places) for _ in group.trajectories] for group in groups]
    taken = [group for group in members if everything or any(any(advantages[number]) for number in group)]
    kept = list(chain.from_iterable(taken))
    batch = PolicyBatch(
        [examples[number] for number in kept],
        [advantages[number] for number in kept],
        [trajectories[number].logprobs for number in kept],
        None if behind is None else [behind[number] for number in kept],
        Counts(len(trajectories), int(lengths.sum()), longest),
    )
    return batch, {"groups/kept": len(taken), **{f"groups/{key}": value for key, value in found.metrics.items()}}


def _reference_logprobs(
    reference: Reference, examples: Sequence[Example], microbatch_tokens: int, temperature: float
) -> list[tuple[float, ...]]:
    """The reference's logprobs of each example's learned tokens."""
    found: dict[int, tuple[float, ...]] = {}
    for row in pack(examples, microbatch_tokens):
        sizes = [sum(examples[number].learned) for number in row.examples]
        parts = reference.logprobs(row, temperature).split(sizes)
        found |= {number: tuple(part.tolist()) for number, part in zip(row.examples, parts, strict=True)}
    return [found[number] for number in range(len(examples))]


def policy_step(
    model: LanguageModel,
    optimizer: MasterAdamW,
    algorithm: OnlineAlgorithm,
    batch: PolicyBatch,
    *,
    lr: float,
    microbatch_tokens: int,
    temperature: float = 1.0,
    updates: int = 1,
) -> dict[str, float]:
    """`updates` updates on one batch.

    The ratio's denominator is the policy before the first of them, as this trainer computes it: on the first update it
    equals the numerator, so the ratio is exactly 1. How far the sampler's own logprobs are from it is measured
    (`logprob_gap`), for that is where silent wrongness would show.
    """
    old: dict[int, Tensor] = {}  # by the first example of a row: rows are cut alike in every update
    metrics: dict[str, float] = {}
    for _ in range(updates):
        seen = Means(extremes=("ratio", "logprob_gap"))

        def loss_of(row: PackedRow, seen: Means = seen) -> Tensor:
            found = model.logprobs(row, temperature)
            row_N = torch.tensor(row.rows, device=found.logprobs.device)
            old_N = old.setdefault(row.examples[0], found.logprobs.detach())
            behind = batch.reference_logprobs
            loss_N, per_token = algorithm.loss(
                found.logprobs,
                old_N=old_N,
                advantages_N=_of_row(batch.advantages, row, old_N),
                row_N=row_N,
                reference_N=None if behind is None else _of_row(behind, row, old_N),
            )
            gap_N = (old_N - _of_row(batch.sampler_logprobs, row, old_N)).abs()
            seen.add({**per_token, "entropy": found.entropy, "logprob_gap": gap_N})
            return algorithm.reduce(loss_N, row_N, batch.counts)

        loss = accumulate_gradients(optimizer, batch.examples, loss_of, microbatch_tokens=microbatch_tokens)
        metrics = {"loss": loss, "grad_norm": optimizer.step(lr), **seen.summary()}
    return metrics


def _of_row(numbers: Sequence[tuple[float, ...]], row: PackedRow, like: Tensor) -> Tensor:
    """The numbers of a row's learned tokens, in order, [N]."""
    values = [value for number in row.examples for value in numbers[number]]
    return torch.tensor(values, dtype=torch.float64).to(like)
