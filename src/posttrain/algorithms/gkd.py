"""GKD: on-policy distillation of a teacher's whole distributions, by the generalised Jensen-Shannon divergence.

Agarwal et al. 2024, eq. 1 and 3, algorithm 1 with lambda 1 (https://arxiv.org/abs/2306.13649). Known peer: TRL's
GKDTrainer.

    L           = mean_t JSD_beta(pi_T(. | q, o_<t), pi(. | q, o_<t)) + c L_opd,   o sampled from the student pi
    JSD_beta    = beta KL(pi_T || M) + (1 - beta) KL(pi || M),   M = beta pi_T + (1 - beta) pi,   0 < beta < 1
    JSD_0       = KL(pi_T || pi), forward: covers all that the teacher may say
    JSD_1       = KL(pi || pi_T), reverse: seeks what the teacher mostly says

averaged over all tokens of the batch, with the teacher pi_T at the sampling temperature. What the student samples is
not differentiated. L_opd is the clipped surrogate with the leave-one-out advantage of the reward, as in opd (eq. 5 has
the expected reward); c is 0 unless it is asked for.

Published settings: beta 0.1, 0.5 or 0.9 by task, temperature 1 of the student; TRL has beta 0.5, temperature 0.9.

What to know about it:
- opd sees the teacher's logprob of the sampled token alone; here a token has V of them. A step costs the same samples,
  and two products with the head more.
- --top-k K keeps the K tokens that the teacher likes most and puts all others together into one outcome, of both
  distributions: a divergence of K + 1 outcomes, at most the whole one. (TRL's forks renormalise over the K tokens, for
  which mass on the others costs nothing.)
- Logits of whole vocabularies exist for a part of a micro-batch at a time, and nothing of them is stored for a batch.
- --teacher and --teacher-prompt as in opd. A teacher with more rows in its head than the policy has tokens counts as
  far as the policy's go. With --teacher policy the teacher has the weights of each update.
- Self-distillation: docs/distillation.md has OPSD, SDFT and SDPO as options of this algorithm.

Not reproduced: data that the student did not sample (lambda below 1), clipping of each token's divergence (OPSD), and a
teacher that is a moving average of the policy (SDFT, SDPO).
"""

from dataclasses import dataclass

import torch

from posttrain.algorithms.algorithm import Advantages, TokenLoss, Tokens, enough_rows
from posttrain.algorithms.inputs import Input, TeacherDistributions
from posttrain.algorithms.opd import OPD
from posttrain.algorithms.rollout import Rollout
from posttrain.errors import UserError
from posttrain.objectives.advantages import leave_one_out


@dataclass(frozen=True)
class GKD(OPD):
    """Hyperparameters of generalised knowledge distillation; an `OnlineAlgorithm`."""

    reward_coefficient: float = 0.0
    """Weight of the reward's surrogate in the loss (c); 0: distillation only."""

    beta: float = 0.5
    """Between the forward KL (0) and the reverse KL (1)."""

    top_k: int = 0
    """Tokens of the teacher's distribution that are kept, the others are one outcome; 0: the whole vocabulary."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.beta <= 1:
            raise UserError(f"beta is between 0 (forward KL) and 1 (reverse KL); got {self.beta}")
        if self.top_k < 0:
            raise UserError(f"top_k is a number of tokens, 0 for all; got {self.top_k}")

    @property
    def silent_at_zero(self) -> bool:
        """Never: a token without an advantage has a divergence."""
        return False

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The teacher."""
        return (TeacherDistributions(self.beta, self.top_k),)

    def advantages(self, rollout: Rollout) -> Advantages:
        """The leave-one-out advantage of each row's reward, times its weight; 0 without one.

        Raises `ValueError` where nobody teaches, `UserError` for groups of one where rewards are compared.
        """
        if "taught_B" not in rollout.more:
            raise ValueError("distillation compares with a teacher, so advantages() needs taught_B; got none")
        advantages_R = torch.zeros_like(rollout.rewards_R)
        if self.reward_coefficient:
            enough_rows(self, rollout)
            advantages_R = self.reward_coefficient * rollout.compare(rollout.rewards_R, leave_one_out)
        return Advantages(rollout.per_token(advantages_R), {})

    def loss(self, tokens: Tokens) -> TokenLoss:
        """The divergence, and the surrogate where a token has an advantage. Metrics: `divergence`, and those of opd."""
        if tokens.divergence_N is None:
            raise ValueError("distillation compares distributions, so loss() needs divergence_N; got None")
        told = {"divergence": tokens.divergence_N.detach()}
        if not tokens.advantages_N.any():  # spares a backward pass of the head
            return TokenLoss(tokens.divergence_N, told)
        found = super().loss(tokens)
        return TokenLoss(tokens.divergence_N + found.loss_N, {**found.metrics, **told})
