"""CISPO: Clipped IS-weight Policy Optimization.

MiniMax 2025, MiniMax-M1, eq. 4 and 5 (https://arxiv.org/abs/2506.13585).

PPO's clip takes the whole gradient from a token whose ratio leaves the range, such as the rare "however" that begins a
new line of thought. Here only the importance weight is clipped, and every token keeps its gradient:

    w_it = pi(o_it | q, o_i,<t) / pi_old(o_it | q, o_i,<t)
    L    = -1/(sum_i |o_i|) sum_i sum_t sg[clip(w_it, 1 - eps_low, 1 + eps_high)] A_i log pi(o_it | q, o_i,<t)

with A_i as in GRPO and no KL; sg stops the gradient. Every token of the batch weighs the same.

Published settings: no lower bound (here eps_low 1), eps_high tuned, its value not stated. 4, a weight of at most 5, is
that of ScaleRL (https://arxiv.org/abs/2510.13786).

What to know about it:
- Nothing holds back a token that has gone far: watch `ratio/max`. `clip_fraction` is the share of clipped weights.

TRL's `loss_type="cispo"` is the same.
"""

from dataclasses import dataclass

from posttrain.algorithms.algorithm import OnlineAlgorithm, Tokens
from posttrain.algorithms.grpo import GRPOWithoutKL
from posttrain.objectives.off_policy import clipped_weight
from posttrain.objectives.policy import PolicyLoss


@dataclass(frozen=True)
class CISPO(GRPOWithoutKL):
    """Hyperparameters of CISPO; an `OnlineAlgorithm`."""

    clip_low: float = 1.0
    """The importance weight is clipped at 1 - clip_low from below; 1: not at all."""

    clip_high: float = 4.0
    """The importance weight is clipped at 1 + clip_high from above."""

    changes = "ratio"
    paper = "2506.13585"

    def surrogate(self, tokens: Tokens) -> PolicyLoss:
        """Each token's weight, clipped, times its logprob."""
        lowest, highest = 1 - self.clip_low, 1 + self.clip_high
        ratio_N = (tokens.logprobs_N - tokens.old_N).detach().exp()
        loss_N = clipped_weight(*tokens[:3], lowest=lowest, highest=highest)
        clipped_N = (ratio_N < lowest) | (ratio_N > highest)
        return PolicyLoss(loss_N, ratio_N, clipped_N.to(ratio_N.dtype))

    reduce = OnlineAlgorithm.reduce  # the mean over all tokens of the batch
