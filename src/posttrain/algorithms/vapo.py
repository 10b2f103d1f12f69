"""VAPO: Value-model-based Augmented Proximal Policy Optimization.

Yue et al. 2025, section 4 (https://arxiv.org/abs/2504.05118): PPO, mended for long chains of thought and rewards that
come at their end.

    value pretraining    the critic learns alone for the first steps, from the returns of a policy that stands still
    decoupled GAE        the critic's target has lam 1, the return itself; the advantage a lam below 1
    length-adaptive GAE  lam = 1 - 1/(alpha l) for a completion of l tokens: it looks ahead over a share of it
    clip-higher          clip(w, 1 - eps_low, 1 + eps_high) with eps_high > eps_low: an unlikely token may grow
    token-level loss     every token of the batch weighs the same
    positive examples    L + mu L_NLL,   L_NLL = -mean over the tokens of completions that earned something of log pi
    groups               several completions of each prompt, so that some of a hard one earn something

with no KL, and everything else as in PPO.

Published settings (section 5.1): eps_low 0.2, eps_high 0.28, alpha 0.05, mu 0.1, 50 steps of value pretraining, 512
prompts of 16 completions, learning rates 1e-6 of the policy and 2e-6 of the critic.

What to know about it:
- Completions of up to 1/alpha tokens, 20 with the published alpha, have lam 0: their advantages are as good as the
  critic. For short ones a larger `--length-alpha` looks further ahead.
- Who "earned something" is every completion whose reward is above 0: with rewards for form beside, choose them so.
- The first `--critic-warmup-steps` of a run's steps leave the policy as it is.

No tool is known to have all seven parts; verl has its decoupled and adaptive GAE.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from posttrain.algorithms.algorithm import Advantages, TokenLoss, Tokens, positive
from posttrain.algorithms.ppo import PPO
from posttrain.algorithms.rollout import Rollout
from posttrain.objectives.values import gae, length_adaptive_lambda


@dataclass(frozen=True)
class VAPO(PPO):
    """Hyperparameters of VAPO; an `ActorCritic`."""

    clip_high: float = 0.28
    """A token's ratio is clipped at 1 + clip_high from above."""

    kl_coefficient: float = 0.0
    """Weight of the KL to the reference policy in the reward (beta); 0: none, and no reference is needed."""

    gae_lambda: float = 1.0
    """Of what the critic learns; that of the advantages follows the length."""

    length_alpha: float = 0.05
    """The share of a completion that an advantage looks ahead over (alpha)."""

    imitation_coefficient: float = 0.1
    """Weight of the likelihood of what earned something (mu)."""

    critic_warmup_steps: int = 50
    """Critic warmup: number of initial steps in which only the critic is updated."""

    paper: ClassVar[str] = "2504.05118"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "length_alpha")
        positive(self, "imitation_coefficient", or_zero=True)

    def advantages(self, rollout: Rollout) -> Advantages:
        """As PPO's; what earned something is imitated beside, token by token alike."""
        good_N = rollout.per_token((rollout.rewards_R > 0).double())
        return super().advantages(rollout)._replace(imitation_N=good_N / good_N.mean().clamp(min=1 / len(good_N)))

    def estimate(self, rewards_N: Tensor, values_N: Tensor, row_N: Tensor) -> tuple[Tensor, Tensor]:
        """The advantages by the length of each completion, and the lam-returns that the critic learns."""
        lam_N = length_adaptive_lambda(row_N, self.length_alpha)
        target_N = values_N + gae(rewards_N, values_N, row_N, discount=self.discount, lam=self.gae_lambda)
        return gae(rewards_N, values_N, row_N, discount=self.discount, lam=lam_N), target_N

    def loss(self, tokens: Tokens) -> TokenLoss:
        """PPO's, and the likelihood of what earned something; `imitation` in the metrics is that, not weighted."""
        if tokens.imitation_N is None:
            raise ValueError("VAPO imitates what earned something, so loss() needs imitation_N; got None")
        found = super().loss(tokens)
        likelihood_N = -tokens.imitation_N * tokens.logprobs_N
        loss_N = found.loss_N + self.imitation_coefficient * likelihood_N
        return TokenLoss(loss_N, {**found.metrics, "imitation": likelihood_N.detach()})
