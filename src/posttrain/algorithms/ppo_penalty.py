"""PPO-Penalty: PPO with an adaptive KL coefficient.

Ziegler et al. 2019, section 2.2 (https://arxiv.org/abs/1909.08593).

The KL that results from a fixed coefficient is not known in advance. Here a target KL is set, and the coefficient
adapted after each step, from the mean KL of its completions,

    e_t        = clip( (KL(pi_t, pi_ref) - KL_target) / KL_target, -0.2, 0.2 )
    beta_{t+1} = beta_t (1 + K_beta e_t)

and everything else as in PPO.

Published settings: K_beta 0.1. The target differs from task to task; TRL's, and here the default, was 6 nats. The first
value of the coefficient is PPO's here.

What to know about it:
- The target is per completion: longer completions need a larger one.
- The coefficient changes by at most 2% per step, so from a wrong initial value it needs 35 steps to double.
- The coefficient is saved with checkpoints and restored on resume.
- Section 4 of the PPO paper has another penalty, on the KL to the last policy, that is hardly used and not this one.

TRL's `AdaptiveKLController` was the same, with a horizon of 10000 completions in the place of K_beta.
"""

from dataclasses import dataclass, replace

from posttrain import errors
from posttrain.algorithms.algorithm import positive
from posttrain.algorithms.ppo import PPO


@dataclass(frozen=True)
class PPOPenalty(PPO):
    """Hyperparameters of PPO-Penalty; an `ActorCritic`."""

    kl_coefficient: float = 0.05
    """Initial weight of the KL to the reference policy in the reward (beta); above 0."""

    kl_target: float = 6.0
    """Target KL per completion of the adaptive controller, in nats."""

    kl_gain: float = 0.1
    """Proportional gain of the adaptive controller (K_beta)."""

    changes = "regulariser"
    paper = "1909.08593"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "kl_coefficient", "kl_target", "kl_gain")
        if self.kl_gain >= 5:
            raise errors.UserError(f"kl_gain must be below 5, or the coefficient could fall to 0; got {self.kl_gain}")

    def adapted(self, kl: float) -> "PPOPenalty":
        """Raise the coefficient if the KL is above the target, lower it if below."""
        error = min(max((kl - self.kl_target) / self.kl_target, -0.2), 0.2)
        return replace(self, kl_coefficient=self.kl_coefficient * (1 + self.kl_gain * error))
