"""GRPO: Group Relative Policy Optimization.

Shao et al. 2024, DeepSeekMath, eq. 3 and 4, section 4.1.2 (https://arxiv.org/abs/2402.03300).

For each prompt q the policy samples a group of G completions o_1 ... o_G with rewards r_1 ... r_G. A completion is
compared with its group, so no value network is needed:

    A_i  = (r_i - mean(r)) / std(r)                                                    for all tokens t of o_i
    w_it = pi(o_it | q, o_i,<t) / pi_old(o_it | q, o_i,<t)
    D_it = pi_ref/pi - log(pi_ref/pi) - 1                                              the KL estimator k3
    L    = -1/G sum_i 1/|o_i| sum_t { min(w_it A_i, clip(w_it, 1 - eps, 1 + eps) A_i) - beta D_it }

averaged over prompts: the mean over the tokens of a completion, then over completions.

Published settings (section 4.2): beta 0.04, G 64, learning rate 1e-6, 1024 completions per batch, at most 1024 tokens,
one update per batch. The paper does not give eps; 0.2 is PPO's (https://arxiv.org/abs/1707.06347).

With --process-rewards (process supervision, section 4.1.3) the spans' rewards are normalised by step:

    r~_ij = (r_ij - mean(r)) / std(r)                     r_ij: spans' reward at token index(j); over all of the group
    A_it  = sum_{j : index(j) >= t} r~_ij + (o_i - mean(o)) / std(o)

o_i is the reward of completion i minus that of its steps, which the paper does not have. Without spans it is the whole
reward.

Not reproduced: the retraining of the reward model in iterative GRPO (section 4.1.4); `--ref-sync-every` updates the
reference. Chosen where the paper does not specify: the standard deviation is the sample's
(divisor G - 1, as in TRL and verl), and 1e-4 is added to it (TRL's value; verl's is 1e-6).

What to know about it:
- A group whose rewards are all equal has zero advantages. The published algorithm computes its loss nevertheless. Here
  it is skipped where that leaves the gradient unchanged, which is without a KL term, and still counts in the
  denominator. With a KL term every group is computed.
- In a loss, k3 has the gradient of KL(ref || policy), not of the KL(policy || ref) that it estimates; k2 has that one.
- Each completion has equal weight, also where groups differ in size, so a token of a long one weighs less, and a long
  wrong answer is penalised less per token; dividing by std overweights prompts that are almost always or almost never
  solved. Dr. GRPO (https://arxiv.org/abs/2503.20783) removes both. DAPO (https://arxiv.org/abs/2503.14476) weighs
  every token the same, clips high at 0.28, and has no KL. RLOO (https://arxiv.org/abs/2402.14740) subtracts the mean
  of the others.

The defaults of "GRPO" in seven tools, and the nearest options here:

    TRL              mean and std; token mean over the batch; no KL
                     --kl-coefficient 0; the reduction is that of dapo
    verl             mean and std; token mean; a second clip, for negative advantages
                     --std-epsilon 1e-6; the reduction and the second clip differ
    NeMo RL          leave-one-out mean and std
                     no flag: the baseline differs
    prime-rl         mean only
                     --algorithm dr-grpo, which leaves out the std too
    tinker-cookbook  mean only
                     --algorithm dr-grpo, which leaves out the std too
    open-instruct    mean only; clip 0.2 and 0.272; KL 0.05 by the estimator k2
                     --algorithm dr-grpo --clip-high 0.272 --kl-coefficient 0.05 --kl-estimator k2
    OpenRLHF         no default: must be specified

From their code and issue threads; defaults change, and only the listed settings were compared. A variant that no option
reproduces is a separate algorithm with its own file, not a mode of this one.
"""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from posttrain import errors
from posttrain.algorithms.algorithm import (
    Advantages,
    Counts,
    OnlineAlgorithm,
    TokenLoss,
    Tokens,
    enough_rows,
    positive,
)
from posttrain.algorithms.inputs import Input, ReferenceLogprobs, StepRewards
from posttrain.algorithms.rollout import Rollout
from posttrain.objectives import kl, reduce
from posttrain.objectives.advantages import group_normalised
from posttrain.objectives.policy import PolicyLoss, clipped_surrogate
from posttrain.objectives.shaping import process_advantages


@dataclass(frozen=True)
class GRPO(OnlineAlgorithm):
    """Hyperparameters of GRPO, with the defaults of the paper; an `OnlineAlgorithm`."""

    clip_low: float = 0.2
    """The importance ratio is clipped at 1 - clip_low from below (eps of the paper)."""

    clip_high: float = 0.2
    """The importance ratio is clipped at 1 + clip_high from above; larger than clip_low encourages exploration."""

    kl_coefficient: float = 0.04
    """Weight of the KL to the reference policy in the loss (beta); 0: no KL term, and no reference is needed."""

    kl_estimator: str = "k3"
    """k3 as published; k2 for the gradient of KL(policy || reference); k1 has no gradient in expectation."""

    std_epsilon: float = 1e-4
    """Added to the standard deviation of a group's rewards, in the units of the reward."""

    process_rewards: bool = False
    """Process supervision: normalise the rewards of spans by step, for the tokens up to each step's end."""

    token_advantages = True
    """Whether the tokens of a completion may differ in advantage, as process rewards require."""

    least_group = 2
    paper = "2402.03300"

    def __post_init__(self) -> None:
        positive(self, "clip_low", "clip_high", "kl_coefficient", "std_epsilon", or_zero=True)
        if self.kl_estimator not in kl.ESTIMATORS:
            raise errors.unknown("KL estimator", self.kl_estimator, kl.ESTIMATORS)
        if self.process_rewards and not self.token_advantages:
            raise errors.UserError(
                "this algorithm has advantages of its own, which process rewards do not enter; leave out "
                "process_rewards, or use grpo, dr-grpo, dapo or ppo"
            )

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The reference policy, if the loss has a KL term, and step rewards, if `process_rewards`."""
        reference = (ReferenceLogprobs(),) if self.kl_coefficient else ()
        return (*reference, StepRewards()) if self.process_rewards else reference

    @property
    def silent_at_zero(self) -> bool:
        """Without a KL term."""
        return not self.kl_coefficient

    def advantages(self, rollout: Rollout) -> Advantages:
        """Compare each row with its group, the rows of the same task and the same seat.

        Metrics: `zero_advantage`, the share of groups with zero advantages (near 1 there is no learning signal), and
        `reward_std`, the mean over groups of the standard deviation within a group, in the units of the reward. With
        process rewards `steps`, the mean number of rewarded steps per row.
        Raises `UserError` for groups of one, `ValueError` for process rewards without the columns of `StepRewards`.
        """
        enough_rows(self, rollout)
        rewards_R, metrics = rollout.rewards_R, dict[str, float]()
        advantages_R = rollout.compare(rollout.outcome_R if self.process_rewards else rewards_R, self.compare)
        advantages_N, size_R = rollout.per_token(advantages_R), advantages_R.abs()
        if self.process_rewards:
            steps_N = process_advantages(rollout.compare_steps(self.compare), rollout.row_N)
            advantages_N, size_R = advantages_N + steps_N, size_R + rollout.per_row(steps_N.abs())
            metrics["steps"] = rollout.steps / len(rewards_R)
        dead_P = rollout.per_group(size_R, lambda size_PG: (size_PG == 0).all(dim=-1))
        std_P = rollout.per_group(rewards_R, lambda rewards_PG: rewards_PG.std(dim=-1))
        metrics |= {"zero_advantage": dead_P.to(rewards_R.dtype).mean().item(), "reward_std": std_P.mean().item()}
        return Advantages(advantages_N, metrics)

    def compare(self, rewards_PG: Float[Tensor, "P G"]) -> Float[Tensor, "P G"]:
        """Normalise the rewards of groups of G rows by each group's mean and standard deviation."""
        return group_normalised(rewards_PG, epsilon=self.std_epsilon)

    def loss(self, tokens: Tokens) -> TokenLoss:
        """Clip the surrogate and add the KL penalty, one value per token; see `OnlineAlgorithm.loss`.

        Metrics per token: `ratio`, `clip_fraction` (1.0 where the clip changed the loss), and with a reference `kl`.
        Raises `ValueError` if the KL term has no reference logprobs.
        """
        surrogate = self.surrogate(tokens)
        metrics = {"ratio": surrogate.ratio, "clip_fraction": surrogate.clipped}
        if not self.kl_coefficient:
            return TokenLoss(surrogate.loss, metrics)
        if tokens.reference_N is None:
            raise ValueError(f"kl_coefficient is {self.kl_coefficient}, so loss() needs reference_N; got None")
        kl_N = kl.ESTIMATORS[self.kl_estimator](tokens.logprobs_N, tokens.reference_N)
        return TokenLoss(surrogate.loss + self.kl_coefficient * kl_N, metrics | {"kl": kl_N.detach()})

    def surrogate(self, tokens: Tokens) -> PolicyLoss:
        """Each token's own ratio, clipped."""
        return clipped_surrogate(*tokens[:3], clip_low=self.clip_low, clip_high=self.clip_high)

    def reduce(self, values_N: Float[Tensor, "N"], length_N: Int[Tensor, "N"], counts: Counts) -> Float[Tensor, ""]:
        """Average over the tokens of a row, then over the batch's rows."""
        return reduce.sequence_mean(values_N, length_N, denominator=counts.sequences)


@dataclass(frozen=True)
class GRPOWithoutKL(GRPO):
    """The base of those that change something else, too; an `OnlineAlgorithm`."""

    kl_coefficient: float = 0.0
    """Weight of the KL to the reference policy in the loss (beta); 0: no KL term, and no reference is needed."""
