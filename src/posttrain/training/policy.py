"""One step of policy optimisation, for any online algorithm.

Shape letters: P prompts, G completions per prompt, N sampled tokens of a micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from posttrain import fast_paths
from posttrain.algorithms.algorithm import OnlineAlgorithm
from posttrain.data.packing import Example, PackedRow
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
    """What one update learns from. `sequences` and `tokens` count the whole rollout, dropped groups too."""

    examples: list[Example]
    advantages: list[float]  # one per example
    sampler_logprobs: list[tuple[float, ...]]  # per example, of its learned tokens
    sequences: int
    tokens: int


def example_of(trajectory: Trajectory) -> Example:
    """The tokens of a trajectory exactly as they were sampled; its first context is shared within its group."""
    prompt = trajectory.turns[0].context_ids
    return Example(prompt, trajectory.token_ids[len(prompt) :], trajectory.sampled[len(prompt) :])


def policy_batch(groups: Sequence[Group], algorithm: OnlineAlgorithm) -> tuple[PolicyBatch, dict[str, float]]:
    """Give every completion its advantage, and leave out groups that carry no gradient."""
    rewards_PG = torch.tensor([group.rewards for group in groups], dtype=torch.float64)
    found = algorithm.advantages(rewards_PG)
    everything = not fast_paths.on("skipped groups")
    kept = [p for p in range(len(groups)) if everything or algorithm.keep(rewards_PG[p])]
    trajectories = [
        (t, a) for p in kept for t, a in zip(groups[p].trajectories, found.advantages_PG[p].tolist(), strict=True)
    ]
    batch = PolicyBatch(
        examples=[example_of(t) for t, _ in trajectories],
        advantages=[a for _, a in trajectories],
        sampler_logprobs=[t.logprobs for t, _ in trajectories],
        sequences=sum(len(g.trajectories) for g in groups),
        tokens=sum(len(t.logprobs) for g in groups for t in g.trajectories),
    )
    return batch, {"groups/kept": len(kept), **{f"groups/{key}": value for key, value in found.metrics.items()}}


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
    reference: Reference | None = None,
) -> dict[str, float]:
    """`updates` updates on one batch.

    The ratio's denominator is the policy before the first of them, as this trainer computes it: on the first update it
    equals the numerator, so the ratio is exactly 1. How far the sampler's own logprobs are from it is measured
    (`logprob_gap`), for that is where silent wrongness would show.
    """
    old: dict[int, Tensor] = {}  # by the first example of a row: rows are cut alike in every update
    frozen: dict[int, Tensor] = {}  # likewise, by the reference, which no update changes
    metrics: dict[str, float] = {}
    for _ in range(updates):
        seen = Means(extremes=("ratio", "logprob_gap"))

        def loss_of(row: PackedRow, seen: Means = seen) -> Tensor:
            found = model.logprobs(row, temperature)
            row_N = torch.tensor(row.rows, device=found.logprobs.device)
            old_N = old.setdefault(row.examples[0], found.logprobs.detach())
            if reference is not None and row.examples[0] not in frozen:
                frozen[row.examples[0]] = reference.logprobs(row, temperature)
            loss_N, per_token = algorithm.loss(
                found.logprobs,
                old_N=old_N,
                advantages_N=torch.tensor(
                    [batch.advantages[r] for r in row.rows], device=old_N.device, dtype=old_N.dtype
                ),
                row_N=row_N,
                reference_N=frozen.get(row.examples[0]),
            )
            sampler_N = [value for number in row.examples for value in batch.sampler_logprobs[number]]
            gap_N = (old_N - torch.tensor(sampler_N, device=old_N.device)).abs()
            seen.add({**per_token, "entropy": found.entropy, "logprob_gap": gap_N})
            return algorithm.reduce(loss_N, row_N, sequences=batch.sequences, tokens=batch.tokens)

        loss = accumulate_gradients(optimizer, batch.examples, loss_of, microbatch_tokens=microbatch_tokens)
        metrics = {"loss": loss, "grad_norm": optimizer.step(lr), **seen.summary()}
    return metrics
