"""GMPO: Geometric-Mean Policy Optimization.

Zhao et al. 2025 (https://arxiv.org/abs/2507.20673).

GRPO takes the arithmetic mean over a completion's tokens, which a single token with an extreme ratio dominates. The
geometric mean is less sensitive, so that a wider clip is possible:

    l_it = log( pi(o_it | q, o_i,<t) / pi_old(o_it | q, o_i,<t) )
    c_it = min(l_it, clip(l_it, -eps_low, eps_high)) where A_i > 0, max of the two where A_i < 0
    L    = -1/G sum_i A_i exp( 1/|o_i| sum_t c_it )

averaged over prompts, with A_i as in GRPO and no KL.

Published settings: ratios clipped to (e^-0.4, e^0.4), so eps 0.4 in nats. Formula and range were checked against TRL's
documentation of it and the implementation in verl; of the paper only the abstract could be read.

What to know about it:
- As GSPO it has one ratio for a completion. GSPO clips that one; here tokens are clipped before the mean is taken.
- A completion of several branches has one mean per branch, weighted by the branch's share of its tokens.
"""

from dataclasses import dataclass

from posttrain.algorithms.algorithm import Tokens
from posttrain.algorithms.grpo import GRPOWithoutKL
from posttrain.objectives.policy import PolicyLoss, geometric_surrogate


@dataclass(frozen=True)
class GMPO(GRPOWithoutKL):
    """Hyperparameters of GMPO; an `OnlineAlgorithm`."""

    clip_low: float = 0.4
    """A token's log-ratio is clipped at -clip_low from below, in nats."""

    clip_high: float = 0.4
    """A token's log-ratio is clipped at clip_high from above, in nats."""

    changes = "ratio"
    token_advantages = False
    sequence_ratio = True
    paper = "2507.20673"

    def surrogate(self, tokens: Tokens) -> PolicyLoss:
        """The geometric mean of each branch's clipped ratios."""
        return geometric_surrogate(*tokens[:4], clip_low=self.clip_low, clip_high=self.clip_high)
