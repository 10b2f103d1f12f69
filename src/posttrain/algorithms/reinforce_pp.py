"""REINFORCE++: REINFORCE with PPO's clip, a per-token KL and batch-level advantage normalisation.

Hu et al. 2025, eq. 1, 4 and 5 (https://arxiv.org/abs/2501.03262).

Advantages normalised per prompt differ in scale between prompts; here they are normalised over all tokens of the batch:

    a_t = r(q, o) - beta sum_{u >= t} log( pi_old(o_u) / pi_ref(o_u) )
    A_t = (a_t - mean(a)) / std(a)                                        over all tokens of the batch
    L   = -mean_t min(w_t A_t, clip(w_t, 1 - eps, 1 + eps) A_t)

with w the token's ratio, averaged over all tokens of the batch. The KL is summed over the current and later tokens.

Published settings (table 1 of its first version): eps 0.2, beta 0.01 (0.001 for mathematics), four completions of each
prompt (later versions: one), learning rate 5e-7.

What to know about it:
- If all rewards are equal, normalisation would amplify rounding errors of the KL: `std_epsilon` prevents that.
- One completion of each prompt is enough, so a batch can have more prompts.
- Prompts that are always solved have a positive advantage: easy prompts are reinforced. The paper's variant with a
  group's mean subtracted first is for several completions of a prompt.
"""

from dataclasses import dataclass

from posttrain.algorithms.algorithm import Advantages, OnlineAlgorithm, TokenLoss, Tokens, positive
from posttrain.algorithms.reinforce import Reinforce
from posttrain.algorithms.rollout import Rollout
from posttrain.objectives.advantages import batch_normalised
from posttrain.objectives.policy import clipped_surrogate
from posttrain.objectives.values import returns


@dataclass(frozen=True)
class ReinforcePlusPlus(Reinforce):
    """Hyperparameters of REINFORCE++; an `OnlineAlgorithm`."""

    kl_coefficient: float = 0.01
    """Weight of the KL to the reference policy in the reward (beta); 0: none, and no reference is needed."""

    clip: float = 0.2
    """A token's ratio is clipped to [1 - clip, 1 + clip]."""

    std_epsilon: float = 1e-4
    """Added to the standard deviation of the batch, in the units of the reward, so that rounding is not amplified."""

    sequence_ratio = False
    paper = "2501.03262"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "clip", "std_epsilon", or_zero=True)

    def advantages(self, rollout: Rollout) -> Advantages:
        """Normalise the return-to-go of each token; the metric `kl_per_token` is in nats."""
        returns_N, metrics = rollout.per_token(rollout.rewards_R), dict[str, float]()
        if self.kl_coefficient:
            kl_N = rollout.kl_N()
            returns_N = returns_N - self.kl_coefficient * returns(kl_N, rollout.row_N)
            metrics["kl_per_token"] = kl_N.mean().item()
        return Advantages(batch_normalised(returns_N, epsilon=self.std_epsilon), metrics)

    def loss(self, tokens: Tokens) -> TokenLoss:
        """Clip each token's ratio; see `OnlineAlgorithm.loss`. Metrics per token: `ratio` and `clip_fraction`."""
        found = clipped_surrogate(*tokens[:3], clip_low=self.clip, clip_high=self.clip)
        return TokenLoss(found.loss, {"ratio": found.ratio, "clip_fraction": found.clipped})

    reduce = OnlineAlgorithm.reduce  # the mean over all tokens of the batch
