"""Dr. GRPO: GRPO done right.

Liu et al. 2025, section 3.2 (https://arxiv.org/abs/2503.20783).

Two divisions in GRPO bias its gradient. The one by |o_i| penalises a long wrong completion less per token than a short
one, so wrong completions grow longer (length bias); the one by the group's standard deviation overweights prompts that
are almost always or almost never solved (difficulty bias). Both are left out:

    A_i = r_i - mean(r)
    L   = -1/(G M) sum_i sum_t min(w_it A_i, clip(w_it, 1 - eps, 1 + eps) A_i)

averaged over prompts, with w as in GRPO. M is a constant, here the maximum completion length.

Published settings (appendix): eps 0.2, no KL, G 8, learning rate 1e-6, 128 prompts a batch, at most 3000 tokens.

What to know about it:
- Gradients are smaller than GRPO's by about the ratio of the mean length to M: a learning rate does not transfer.
- Without the standard deviation, advantages, and so updates, scale with the reward.

TRL's `loss_type="dr_grpo"` with `scale_rewards="none"` is the same.
"""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from posttrain.algorithms.algorithm import Counts, unused
from posttrain.algorithms.grpo import GRPOWithoutKL
from posttrain.objectives import reduce
from posttrain.objectives.advantages import mean_centred


@dataclass(frozen=True)
class DrGRPO(GRPOWithoutKL):
    """Hyperparameters of Dr. GRPO; an `OnlineAlgorithm`."""

    paper = "2503.20783"

    def __post_init__(self) -> None:
        super().__post_init__()
        unused(self, "std_epsilon")

    def compare(self, rewards_PG: Float[Tensor, "P G"]) -> Float[Tensor, "P G"]:
        """Subtract the group's mean."""
        return mean_centred(rewards_PG)

    def reduce(self, values_N: Float[Tensor, "N"], length_N: Int[Tensor, "N"], counts: Counts) -> Float[Tensor, ""]:
        """Sum over all tokens, divided by the number of completions times the maximum length."""
        return reduce.token_mean(values_N, counts.sequences * counts.longest)
