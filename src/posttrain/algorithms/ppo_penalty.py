"""PPO-Penalty: PPO with a KL coefficient that is steered towards a target.

Ziegler et al. 2019, section 2.2 (https://arxiv.org/abs/1909.08593).

How much KL a fixed coefficient buys cannot be known before. Here the KL is named, and the coefficient found: after each
step, from the mean KL of its completions,

    e_t        = clip( (KL(pi_t, pi_ref) - KL_target) / KL_target, -0.2, 0.2 )
    beta_{t+1} = beta_t (1 + K_beta e_t)

and everything else as in PPO.

Published settings: K_beta 0.1. The target differs from task to task; TRL's, and here the default, was 6 nats. The first
value of the coefficient is PPO's here.

What to know about it:
- The target is of a whole completion: longer completions need a larger one.
- The coefficient moves by 2% of itself in a step at most, so from a wrong beginning it needs 35 steps to double.
- It is part of a checkpoint: a resumed run goes on with the coefficient it had.
- Section 4 of the PPO paper has another penalty, on the KL to the last policy, that is hardly used and not this one.

TRL's `AdaptiveKLController` was the same, with a horizon of 10000 completions in the place of K_beta.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from posttrain import errors
from posttrain.algorithms.algorithm import positive
from posttrain.algorithms.ppo import PPO


@dataclass(frozen=True)
class PPOPenalty(PPO):
    """Hyperparameters of PPO-Penalty; an `ActorCritic`."""

    kl_coefficient: float = 0.05
    """Weight of the KL to the reference policy in the reward (beta) at first; above 0."""

    kl_target: float = 6.0
    """The KL of a completion that the coefficient aims at, in nats."""

    kl_gain: float = 0.1
    """How fast the coefficient is moved (K_beta)."""

    paper: ClassVar[str] = "1909.08593"

    def __post_init__(self) -> None:
        super().__post_init__()
        for knob in ("kl_coefficient", "kl_target", "kl_gain"):
            positive(self, knob)
        if self.kl_gain >= 5:
            raise errors.UserError(f"kl_gain must be below 5, or the coefficient could fall to 0; got {self.kl_gain}")

    def adapted(self, kl: float) -> "PPOPenalty":
        """With the coefficient raised after more KL than the target, and lowered after less."""
        error = min(max((kl - self.kl_target) / self.kl_target, -0.2), 0.2)
        return replace(self, kl_coefficient=self.kl_coefficient * (1 + self.kl_gain * error))
