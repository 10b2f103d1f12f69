"""Clip-Cov: no gradient for a few tokens that would lower the entropy most.

Cui et al. 2025, The Entropy Mechanism of Reinforcement Learning (https://arxiv.org/abs/2505.22617).

The entropy falls with the covariance of logprob and advantage, most of which a few tokens have:

    C_n = (A_n - mean(A)) (log pi_old(o_n) - mean(log pi_old))            over the N tokens of the batch
    L   as GRPO's, without a KL, for all but floor(r N) tokens (at least one) of those with c_low <= C_n <= c_high

Published settings: r 2e-4, c_low 1, c_high 5. Checked against the authors' code as SkyRL and verl have it; equation
numbers could not be read.
Differences from the paper: tokens are chosen once per batch, by the logprobs at which they were sampled, so that no
split of a batch changes a gradient, not in each micro-batch among those that the clip leaves; and by no generator but
by the digits of C_n and a seed, which no order of rows changes.
"""

from dataclasses import dataclass

import torch

from posttrain.algorithms.algorithm import Advantages, positive
from posttrain.algorithms.grpo import GRPOWithoutKL
from posttrain.algorithms.rollout import Rollout


@dataclass(frozen=True)
class ClipCov(GRPOWithoutKL):
    """Hyperparameters of Clip-Cov; an `OnlineAlgorithm`."""

    chosen_share: float = 2e-4
    """Share of the batch's tokens that get no gradient (r)."""

    cov_low: float = 1.0
    """Least covariance of a token that may be chosen, in nats."""

    cov_high: float = 5.0
    """Greatest covariance of a token that may be chosen, in nats."""

    choice_seed: int = 0
    """Seed of the choice."""

    changes = "regulariser"
    paper = "2505.22617"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "chosen_share")

    def advantages(self, rollout: Rollout) -> Advantages:
        """GRPO's advantages, 0 for the chosen tokens; the metric `chosen` is their share."""
        found, many = super().advantages(rollout), max(1, int(self.chosen_share * len(rollout.row_N)))
        cov_N = rollout.covariance_N(found.advantages_N)
        digits_N = torch.frac((1e5 * cov_N + self.choice_seed) * 0.6180339887498949).abs()
        digits_N = digits_N.masked_fill((cov_N < self.cov_low) | (cov_N > self.cov_high), torch.inf)
        chosen = digits_N.argsort()[: min(many, int(digits_N.isfinite().sum()))]
        advantages_N = found.advantages_N.index_fill(0, chosen, 0.0)
        metrics = {**found.metrics, "chosen": len(chosen) / len(cov_N)}
        return found._replace(advantages_N=advantages_N, metrics=metrics)
