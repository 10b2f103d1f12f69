"""MaxRL: Maximum Likelihood Reinforcement Learning.

Tajwar et al. 2026 (https://arxiv.org/abs/2602.02710).

With rewards 0 and 1, the mean reward of a prompt is its probability p of a right completion. RL raises p; maximum
likelihood raises log p, whose gradient is that of p divided by p, so that hard prompts weigh more:

    A_i = (r_i - mean(r)) / mean(r)                                    0 where none of the group is right
    L   = -1/(G M) sum_i sum_t min(w_it A_i, clip(w_it, 1 - eps, 1 + eps) A_i)

averaged over prompts, with w as in GRPO and M, the maximum completion length, as in Dr. GRPO: the estimator sums the
score of whole completions. With G completions it is unbiased for log p truncated after G terms of its series,
-sum_{k <= G} (1 - p)^k / k: that is RL for G = 1, and maximum likelihood for many.

Published settings: rewards 0 and 1, no KL, Qwen3 1.7B and 4B. The clip, PPO's, is for later updates on a batch. The
advantage was checked against the project's page and TRL's `MaxRLTrainer`; equation numbers could not be read.

What to know about it:
- For rewards of 0 and 1. Others are taken as shares of a success; a group whose mean is not above 0 is left out.
- A right completion that is alone in its group has an advantage of G - 1: use a clipped gradient, or smaller groups.
- GRPO divides by sqrt(p (1 - p)), which weighs prompts that are almost always solved as much as the hardest.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from posttrain.algorithms.dr_grpo import DrGRPO
from posttrain.objectives.advantages import by_success_rate


@dataclass(frozen=True)
class MaxRL(DrGRPO):
    """Hyperparameters of MaxRL; an `OnlineAlgorithm`."""

    token_advantages = False
    paper = "2602.02710"

    def compare(self, rewards_PG: Float[Tensor, "P G"]) -> Float[Tensor, "P G"]:
        """Subtract the group's mean, and divide by it."""
        return by_success_rate(rewards_PG)
