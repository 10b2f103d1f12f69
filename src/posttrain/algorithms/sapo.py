"""SAPO: Soft Adaptive Policy Optimization.

Gao et al. 2025 (https://arxiv.org/abs/2511.20347).

A clip takes the whole gradient from a token at the edge of its range. A sigmoid lets it fall off smoothly, and faster
for tokens that are to become less likely, whose gradient reaches all others of the vocabulary:

    f_it = 4 / tau sigmoid(tau (w_it - 1)),   tau = tau_positive where A_i > 0, else tau_negative
    L    = -1/G sum_i 1/|o_i| sum_t f_it A_i

averaged over prompts, with A_i and w as in GRPO and no KL.

Published settings: tau_positive 1, tau_negative 1.05. Formula and settings were checked against TRL's documentation and
the implementation in verl; of the paper only the abstract could be read.

What to know about it:
- On the first update on a batch w is 1, where the slope of f is 1: the gradient is GRPO's.
- A weight of 3 keeps 42% of its gradient (one of 0.2, 86%), where GRPO's clip leaves nothing (or all).
- Nothing is clipped, so that `clip_fraction` is 0: watch `ratio/max`.

TRL's `loss_type="sapo"` is the same.
"""

from dataclasses import dataclass

from posttrain.algorithms.algorithm import Tokens, positive, unused
from posttrain.algorithms.grpo import GRPOWithoutKL
from posttrain.objectives.policy import PolicyLoss, soft_gated_surrogate


@dataclass(frozen=True)
class SAPO(GRPOWithoutKL):
    """Hyperparameters of SAPO; an `OnlineAlgorithm`."""

    tau_positive: float = 1.0
    """Temperature of the gate for tokens of positive advantage; a higher one holds back more."""

    tau_negative: float = 1.05
    """Temperature of the gate for tokens of negative advantage."""

    changes = "ratio"
    paper = "2511.20347"

    def __post_init__(self) -> None:
        super().__post_init__()
        unused(self, "clip_low", "clip_high")
        positive(self, "tau_positive", "tau_negative")

    def surrogate(self, tokens: Tokens) -> PolicyLoss:
        """Each token's ratio through the gate."""
        return soft_gated_surrogate(*tokens[:3], tau_positive=self.tau_positive, tau_negative=self.tau_negative)
