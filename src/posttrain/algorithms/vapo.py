"""VAPO: Value-model-based Augmented Proximal Policy Optimization.

Yue et al. 2025, section 4 (https://arxiv.org/abs/2504.05118): PPO, modified for long chains of thought and outcome
rewards.

    value pretraining    for the first steps only the critic is updated, on the returns of a fixed policy
    decoupled GAE        the critic's target has lam 1, the return itself; the advantage a lam below 1
    length-adaptive GAE  lam = 1 - 1/(alpha l) for a completion of l tokens: the horizon grows with the length
    clip-higher          clip(w, 1 - eps_low, 1 + eps_high) with eps_high > eps_low: an unlikely token may grow
    token-level loss     every token of the batch weighs the same
    positive examples    L + mu L_NLL,   L_NLL = -mean of log pi over the tokens of completions of positive reward
    groups               several completions of each prompt, so that some of a hard one have a positive reward

with no KL, and everything else as in PPO.

Published settings (section 5.1): eps_low 0.2, eps_high 0.28, alpha 0.05, mu 0.1, 50 steps of value pretraining, 512
prompts of 16 completions, learning rates 1e-6 of the policy and 2e-6 of the critic.

What to know about it:
- Completions of up to 1/alpha tokens, 20 with the published alpha, have lam 0: their advantages depend fully on the
  critic. For short completions use a larger `--length-alpha`.
- A positive example is every completion whose reward is above 0: scale additional format rewards accordingly.
- The policy is not updated in the first `--critic-warmup-steps` steps.

No tool is known to have all seven parts; verl has its decoupled and adaptive GAE.
"""

from dataclasses import dataclass

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
    """GAE lambda of the critic's targets; that of the advantages depends on the length."""

    length_alpha: float = 0.05
    """Length-adaptive GAE: the horizon as a fraction of the completion's length (alpha)."""

    imitation_coefficient: float = 0.1
    """Weight of the auxiliary NLL loss on completions with positive reward (mu)."""

    critic_warmup_steps: int = 50
    """Critic warmup: number of initial steps in which only the critic is updated."""

    paper = "2504.05118"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "length_alpha")
        positive(self, "imitation_coefficient", or_zero=True)

    def advantages(self, rollout: Rollout) -> Advantages:
        """As PPO's, with token weights of the NLL loss on completions of positive reward."""
        good_N = rollout.per_token((rollout.rewards_R > 0).double())
        return super().advantages(rollout)._replace(imitation_N=good_N / good_N.mean().clamp(min=1 / len(good_N)))

    def estimate(self, rewards_N: Tensor, values_N: Tensor, row_N: Tensor) -> tuple[Tensor, Tensor]:
        """Length-adaptive GAE advantages, and the lam-returns as the critic's targets."""
        lam_N = length_adaptive_lambda(row_N, self.length_alpha)
        target_N = values_N + gae(rewards_N, values_N, row_N, discount=self.discount, lam=self.gae_lambda)
        return gae(rewards_N, values_N, row_N, discount=self.discount, lam=lam_N), target_N

    def loss(self, tokens: Tokens) -> TokenLoss:
        """PPO's loss plus the NLL on positive completions; the metric `imitation` is the NLL, not weighted."""
        if tokens.imitation_N is None:
            raise ValueError("VAPO imitates what earned something, so loss() needs imitation_N; got None")
        found = super().loss(tokens)
        likelihood_N = -tokens.imitation_N * tokens.logprobs_N
        loss_N = found.loss_N + self.imitation_coefficient * likelihood_N
        return TokenLoss(loss_N, {**found.metrics, "imitation": likelihood_N.detach()})
