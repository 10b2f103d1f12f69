"""KL-Cov: a KL penalty on the tokens that lower the entropy most.

Cui et al. 2025, The Entropy Mechanism of Reinforcement Learning (https://arxiv.org/abs/2505.22617), as `clip-cov`.

    C_n = (A_n - mean(A)) (log pi_old(o_n) - mean(log pi_old))            over the N tokens of the batch
    L_n = -w_n A_n                                                        w as in GRPO, without a clip
    L_n = -w_n A_n + beta D(pi_old, pi)                 for those of the floor(k N) of greatest C_n with A_n not 0

reduced as GRPO's loss, with its A and no KL to a reference. Published: beta 1, k 2e-3 (7B) and 2e-4 (32B).
Differences, as of `clip-cov`: tokens (at least one) are chosen once per batch, by the logprobs at which they were
sampled. D is the estimator k3 of KL(pi_old || pi), in the authors' code |log(pi / pi_old)|. Checked against that code
as verl has it; equation numbers could not be read. On the first update D is 0: use `--updates-per-step` above 1.
"""

from dataclasses import dataclass

import torch

from posttrain.algorithms.algorithm import Advantages, Tokens, positive, unused
from posttrain.algorithms.grpo import GRPOWithoutKL
from posttrain.algorithms.rollout import Rollout
from posttrain.objectives import kl
from posttrain.objectives.off_policy import importance_weighted
from posttrain.objectives.policy import PolicyLoss


@dataclass(frozen=True)
class KLCov(GRPOWithoutKL):
    """Hyperparameters of KL-Cov; an `OnlineAlgorithm`."""

    penalised_share: float = 2e-3
    """Share of the batch's tokens that are penalised (k)."""

    penalty: float = 1.0
    """Weight of the KL from the policy before the batch (beta)."""

    changes = "regulariser"
    paper = "2505.22617"

    def __post_init__(self) -> None:
        super().__post_init__()
        unused(self, "clip_low", "clip_high")
        positive(self, "penalised_share")

    def advantages(self, rollout: Rollout) -> Advantages:
        """GRPO's advantages, with the penalty's weight of each token."""
        found, many = super().advantages(rollout), max(1, int(self.penalised_share * len(rollout.row_N)))
        chosen = rollout.covariance_N(found.advantages_N).argsort(descending=True)[:many]
        return found._replace(penalty_N=torch.zeros_like(found.advantages_N).index_fill(0, chosen, self.penalty))

    def surrogate(self, tokens: Tokens) -> PolicyLoss:
        """Each token's own ratio, without a clip, and the penalty; raises `ValueError` without `penalty_N`."""
        if tokens.penalty_N is None:
            raise ValueError("KL-Cov needs the penalties of its advantages, penalty_N; got None")
        loss_N = importance_weighted(*tokens[:3])
        penalty_N = tokens.penalty_N.masked_fill(tokens.advantages_N == 0, 0.0)
        loss_N = loss_N + penalty_N * kl.k3(tokens.logprobs_N, tokens.old_N)
        ratio_N = (tokens.logprobs_N - tokens.old_N).detach().exp()
        return PolicyLoss(loss_N, ratio_N, torch.zeros_like(ratio_N))
