"""DAPO: Decoupled clip and dynamic sampling policy optimisation.

Yu et al. 2025, eq. 8 to 13 (https://arxiv.org/abs/2503.14476).

Four changes to GRPO for long chains of thought, and no KL:

    clip-higher          clip(w, 1 - eps_low, 1 + eps_high) with eps_high > eps_low: an unlikely token may grow
    dynamic sampling     a group whose rewards are all equal is discarded, and another sampled in its place
    token-level loss     L = -1/(sum_i |o_i|) sum_i sum_t min(w_it A_i, clip(w_it) A_i): every token weighs the same
    overlong punishment  r_i + R(|o_i|), which falls from 0 to -1 over the last tokens that a completion may have

with A_i and w as in GRPO; the loss is averaged over all tokens of the batch.

Published settings (section 4.1): eps_low 0.2, eps_high 0.28, G 16, 512 prompts a batch with 16 updates, learning rate
1e-6, at most 20480 tokens of which the last 4096 are punished: a fifth.

What to know about it:
- Dynamic sampling costs rollouts: `groups/thrown_away` counts the discarded groups of a step. The paper filters by
  correctness; here it is by the total reward, so with an additional small format reward fewer groups are discarded.
  If `--max-refills` draws yield no accepted group, the step has no gradient.
- The punishment is subtracted before advantages are computed, so completions of equal reward may differ in advantage.

TRL's `loss_type="dapo"` is the same loss; its dynamic sampling is not.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from posttrain import errors
from posttrain.algorithms.algorithm import Advantages, OnlineAlgorithm
from posttrain.algorithms.grpo import GRPOWithoutKL
from posttrain.algorithms.rollout import Rollout
from posttrain.objectives.shaping import soft_overlong


@dataclass(frozen=True)
class DAPO(GRPOWithoutKL):
    """Hyperparameters of DAPO; an `OnlineAlgorithm`."""

    clip_high: float = 0.28
    """The importance ratio is clipped at 1 + clip_high from above."""

    overlong_share: float = 0.2
    """Overlong buffer: the share of the maximum length over which the length penalty grows; 0: no penalty."""

    changes = "ratio"
    paper = "2503.14476"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.overlong_share <= 1:
            raise errors.UserError(f"overlong_share is a share, 0 to 1; got {self.overlong_share}")

    def accepts(self, rewards_G: Float[Tensor, "G"]) -> bool:
        """Accept a group whose rewards are not all equal."""
        return bool((rewards_G != rewards_G[0]).any())

    def advantages(self, rollout: Rollout) -> Advantages:
        """GRPO's advantages of the rewards with the overlong penalty; the metric `overlong` is its mean, 0 to -1."""
        buffer = round(self.overlong_share * rollout.longest)
        if not buffer:
            return super().advantages(rollout)
        punished_R = soft_overlong(rollout.lengths_R, rollout.longest, buffer).to(rollout.rewards_R.dtype)
        found = super().advantages(rollout._replace(rewards_R=rollout.rewards_R + punished_R))
        return Advantages(found.advantages_N, {**found.metrics, "overlong": punished_R.mean().item()})

    reduce = OnlineAlgorithm.reduce  # the mean over all tokens of the batch
