"""PPO: Proximal Policy Optimization, with a critic.

Schulman et al. 2017, eq. 7 and 9 (https://arxiv.org/abs/1707.06347), with the advantages of Schulman et al. 2015,
eq. 16 (https://arxiv.org/abs/1506.02438), and the rewards of Ziegler et al. 2019, section 2
(https://arxiv.org/abs/1909.08593).

A critic V estimates the expected return after each token, which gives token-level advantages. With the reward r(q, o)
at the end and a per-token KL penalty to the reference,

    r_t     = [t is the last] r(q, o) - beta log( pi_old(o_t) / pi_ref(o_t) )
    delta_t = r_t + gamma V_{t+1} - V_t
    A_t     = sum_{l >= 0} (gamma lam)^l delta_{t+l},   whitened over the batch (mean 0, standard deviation 1)
    R_t     = A_t + V_t                                                             before that: the critic's target
    L       = mean_t { -min(w_t A_t, clip(w_t, 1 - eps, 1 + eps) A_t) + c_1 L^V_t - c_2 H_t }
    L^V_t   = 1/2 max( (V_t - R_t)^2, (clip(V_t, V_old - eps_v, V_old + eps_v) - R_t)^2 )

with w the token's ratio and H the entropy of its distribution, averaged over all tokens of the batch.

Settings: eps 0.2 is the paper's, lam 0.95 too; gamma 1, beta 0.05, c_1 0.1, eps_v 0.2 and one completion of each prompt
are TRL's for language models. The paper takes several updates of each batch: --updates-per-step 4.

What to know about it:
- The critic is a value head on the policy's trunk (--critic trunk: no second model; its loss, weighted by c_1, also
  updates the trunk), or a separate network initialised from the policy (--critic own), with learning rate --critic-lr.
  The head is initialised to 0.
- `explained_variance` measures the critic: near 0 it is no better than a constant baseline, below 0 it is worse.
- Advantages are whitened over the whole batch: where rewards hardly vary, noise is scaled up.
- A completion truncated at the maximum length has no bootstrapped value: its return ends there.
- With --process-rewards each span's reward is given at the last token that it overlaps, and r(q, o) in r_t is only
  the rest. Without, the whole reward is given at the end.

TRL's `PPOTrainer` is the same with a separate critic, and optional reward whitening.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from posttrain import errors
from posttrain.algorithms.algorithm import ActorCritic, Advantages, TokenLoss, Tokens, positive
from posttrain.algorithms.inputs import CriticValues, Input, ReferenceLogprobs, StepRewards
from posttrain.algorithms.rollout import Rollout
from posttrain.objectives.advantages import batch_normalised
from posttrain.objectives.policy import clipped_surrogate
from posttrain.objectives.values import clipped_value_loss, explained_variance, gae


@dataclass(frozen=True)
class PPO(ActorCritic):
    """Hyperparameters of PPO; an `ActorCritic`."""

    clip_low: float = 0.2
    """A token's ratio is clipped at 1 - clip_low from below (eps)."""

    clip_high: float = 0.2
    """A token's ratio is clipped at 1 + clip_high from above (eps)."""

    kl_coefficient: float = 0.05
    """Weight of the KL to the reference policy in the reward (beta); 0: none, and no reference is needed."""

    discount: float = 1.0
    """Discount factor per token (gamma), above 0 and up to 1."""

    gae_lambda: float = 0.95
    """GAE lambda of the advantages (lam): 0 is the one-step TD error, 1 the Monte Carlo return."""

    value_clip: float = 0.2
    """Clip range of the value function, in the units of the reward (eps_v); inf: no clipping."""

    value_coefficient: float = 0.1
    """Weight of the value loss (c_1)."""

    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus (c_2), which prevents premature convergence."""

    std_epsilon: float = 1e-4
    """Added to the standard deviation in advantage whitening, so that rounding errors are not amplified."""

    critic_warmup_steps: int = 0
    """Critic warmup: number of initial steps in which only the critic is updated."""

    process_rewards: bool = False
    """Process supervision: give each span's reward at its last token, and only the rest at the end."""

    paper = "1707.06347"

    def __post_init__(self) -> None:
        positive(
            self, "clip_low", "clip_high", "kl_coefficient", "value_coefficient", "entropy_coefficient", or_zero=True
        )
        positive(self, "std_epsilon", or_zero=True)
        if not self.value_clip > 0:
            raise errors.UserError(f"value_clip must be above 0; got {self.value_clip}")
        if not (0 < self.discount <= 1 and 0 <= self.gae_lambda <= 1):
            raise errors.UserError(
                f"discount is above 0, gae_lambda 0 or more, and both up to 1; got {self.discount}, {self.gae_lambda}"
            )
        if self.critic_warmup_steps < 0:
            raise errors.UserError(f"critic_warmup_steps must be 0 or more; got {self.critic_warmup_steps}")

    @property
    def inputs(self) -> tuple[Input, ...]:
        """A critic, the reference policy if the reward has a KL term, and step rewards if `process_rewards`."""
        reference = (ReferenceLogprobs(),) if self.kl_coefficient else ()
        steps = (StepRewards(),) if self.process_rewards else ()
        return (CriticValues(self.critic_warmup_steps), *reference, *steps)

    @property
    def needs_entropy(self) -> bool:
        """Whether there is an entropy bonus."""
        return self.entropy_coefficient > 0

    def advantages(self, rollout: Rollout) -> Advantages:
        """Whitened GAE advantages, and the critic's targets.

        Metrics: `explained_variance`, 1 for a perfect critic; `value`, the mean of its values; with a reference `kl`,
        the mean over completions in nats, and `kl_coefficient`. Raises `ValueError` without values, or without the
        columns of `StepRewards` if `process_rewards`.
        """
        if rollout.values_N is None:
            raise ValueError("PPO compares with what a critic expected, so advantages() needs values_N; got None")
        rewards_N = rollout.paid_N if self.process_rewards else rollout.at_end(rollout.rewards_R)
        metrics = dict[str, float]()
        if self.kl_coefficient:
            kl_N = rollout.kl_N()
            rewards_N = rewards_N - self.kl_coefficient * kl_N
            metrics["kl_coefficient"] = self.kl_coefficient
            metrics["kl"] = kl_N.sum().item() / len(rollout.rewards_R)
        advantages_N, returns_N = self.estimate(rewards_N, rollout.values_N, rollout.row_N)
        metrics["value"] = rollout.values_N.mean().item()
        metrics["explained_variance"] = explained_variance(rollout.values_N, returns_N)
        return Advantages(batch_normalised(advantages_N, epsilon=self.std_epsilon), metrics, returns_N)

    def estimate(self, rewards_N: Tensor, values_N: Tensor, row_N: Tensor) -> tuple[Tensor, Tensor]:
        """The advantages and the critic's targets, both by GAE."""
        found_N = gae(rewards_N, values_N, row_N, discount=self.discount, lam=self.gae_lambda)
        return found_N, found_N + values_N

    def loss(self, tokens: Tokens) -> TokenLoss:
        """Clipped surrogate plus value loss minus entropy bonus; see `OnlineAlgorithm.loss`.

        Metrics per token: `ratio`, `clip_fraction`, and the critic's.
        """
        found = clipped_surrogate(*tokens[:3], clip_low=self.clip_low, clip_high=self.clip_high)
        if tokens.values_N is None or tokens.old_values_N is None or tokens.returns_N is None:
            raise ValueError("a critic learns from values_N, old_values_N and returns_N; one of them is None")
        critic = self.critic_loss(tokens.values_N, tokens.old_values_N, tokens.returns_N)
        loss_N = found.loss + critic.loss_N
        if self.needs_entropy:
            if tokens.entropy_N is None:
                raise ValueError(f"entropy_coefficient is {self.entropy_coefficient}, so loss() needs entropy_N")
            loss_N = loss_N - self.entropy_coefficient * tokens.entropy_N
        return TokenLoss(loss_N, {"ratio": found.ratio, "clip_fraction": found.clipped, **critic.metrics})

    def critic_loss(
        self, values_N: Float[Tensor, "N"], old_values_N: Float[Tensor, "N"], returns_N: Float[Tensor, "N"]
    ) -> TokenLoss:
        """The weighted value loss. Metrics per token: `value_loss`, not weighted, and `value_clip_fraction`."""
        found = clipped_value_loss(values_N, old_values_N, returns_N, clip=self.value_clip)
        metrics = {"value_loss": found.loss.detach(), "value_clip_fraction": found.clipped}
        return TokenLoss(self.value_coefficient * found.loss, metrics)
