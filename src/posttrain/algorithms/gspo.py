"""GSPO: Group Sequence Policy Optimization.

Zheng et al. 2025, eq. 5 to 7 (https://arxiv.org/abs/2507.18071).

A reward is given to a whole completion, so the importance ratio is sequence-level too, length-normalised, and whole
completions are clipped:

    s_i = ( pi(o_i | q) / pi_old(o_i | q) )^(1/|o_i|)
    L   = -1/G sum_i min(s_i A_i, clip(s_i, 1 - eps_low, 1 + eps_high) A_i)

averaged over prompts, with A_i as in GRPO and no KL.

Published settings (section 5.1): eps_low 3e-4, eps_high 4e-4, four updates a batch.

What to know about it:
- s_i is a geometric mean, so it stays near 1: its clip range is several hundred times narrower than GRPO's, and far
  more tokens are clipped (15% against 0.1% in the paper) while it learns faster.
- Noise in single tokens' ratios, from expert routing or an engine's rounding, averages out.
- A completion of several branches has one ratio per branch, weighted by the branch's share of its tokens.

TRL's `importance_sampling_level="sequence"` with `loss_type="grpo"` is the same.
"""

from dataclasses import dataclass

from posttrain.algorithms.algorithm import Tokens
from posttrain.algorithms.grpo import GRPOWithoutKL
from posttrain.objectives.policy import PolicyLoss, sequence_surrogate


@dataclass(frozen=True)
class GSPO(GRPOWithoutKL):
    """Hyperparameters of GSPO; an `OnlineAlgorithm`."""

    clip_low: float = 3e-4
    """A completion's ratio is clipped at 1 - clip_low from below."""

    clip_high: float = 4e-4
    """A completion's ratio is clipped at 1 + clip_high from above."""

    token_advantages = False
    sequence_ratio = True
    changes = "ratio"
    paper = "2507.18071"

    def surrogate(self, tokens: Tokens) -> PolicyLoss:
        """Each branch's ratio, clipped."""
        return sequence_surrogate(*tokens[:4], clip_low=self.clip_low, clip_high=self.clip_high, by_length=True)
