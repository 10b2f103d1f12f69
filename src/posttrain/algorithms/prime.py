"""PRIME: Process Reinforcement through Implicit Rewards.

Cui et al. 2025, eq. 3, 5 and 6 (https://arxiv.org/abs/2502.01456); implicit rewards: https://arxiv.org/abs/2412.01981.

A second model phi begins as the policy, and learns from outcomes whether a completion is right. Its logprobs over the
reference's are rewards of tokens:

    r_it  = beta log( phi(o_it) / ref(o_it) )
    L_phi = -mean_i { y_i log sigmoid(sum_t r_it) + (1 - y_i) log(1 - sigmoid(sum_t r_it)) }
    A_it  = sum_{s >= t} ( r_is - 1/(G-1) sum_{j != i} mean_u r_ju )  +  R_i - 1/(G-1) sum_{j != i} R_j
    L     = -mean_t min(w_t A_t, clip(w_t, 1 - eps, 1 + eps) A_t)

with R the reward, the label y the same clamped to 0 to 1, and w the token's ratio; A is of phi before its update.

Published settings (section 4.2): beta 0.05, G 4, learning rates 1e-6 of phi and 5e-7 of the policy, no KL, and no
prompts that are solved less than 0.2 or more than 0.8 of the time: --min-reward-std 0.4.

What to know about it:
- It holds phi and the reference besides: two more forward passes, and a second update.
- `groups/prm_accuracy` is the share of completions whose implicit reward, at first 0, has the sign of their label.
- Where an environment begins a conversation again, each part has the row's label, and a sum of its own.
- The authors' code, verl's recipe, also scales both parts and whitens their sum over the batch; the paper does not.
"""

from dataclasses import dataclass
from typing import ClassVar

from posttrain.algorithms.algorithm import Advantages, OnlineAlgorithm, TokenLoss, Tokens, enough_rows, positive, unused
from posttrain.algorithms.grpo import GRPOWithoutKL
from posttrain.algorithms.inputs import Input, ReferenceLogprobs, TrainedModel, given
from posttrain.algorithms.rollout import Rollout
from posttrain.objectives.advantages import leave_one_out
from posttrain.objectives.reward_models import implicit_reward_loss
from posttrain.objectives.values import returns


@dataclass(frozen=True)
class ImplicitPRM(TrainedModel):
    """The second model's logprobs of the sampled tokens: `prm_N`."""

    beta: float = 0.05

    title: ClassVar[str] = "process reward model"
    columns: ClassVar[tuple[str, ...]] = ("prm_N",)
    part: ClassVar[str] = "prm"

    def loss(self, algorithm: OnlineAlgorithm, tokens: Tokens) -> TokenLoss:
        """The cross entropy of its completion's label, for each token."""
        columns = (tokens.values_N, tokens.reference_N, tokens.returns_N)
        said_N, reference_N, labels_N = (given(column, "labels") for column in columns)
        return TokenLoss(implicit_reward_loss(said_N, reference_N, labels_N, tokens.branch_N, beta=self.beta), {})


@dataclass(frozen=True)
class PRIME(GRPOWithoutKL):
    """Hyperparameters of PRIME; an `OnlineAlgorithm`."""

    prm_beta: float = 0.05
    """Scale of implicit rewards (beta)."""

    prm_lr: float = 1e-6
    """Learning rate of the process reward model; constant. In the paper twice the policy's."""

    token_advantages = False
    paper = "2502.01456"

    def __post_init__(self) -> None:
        super().__post_init__()
        unused(self, "std_epsilon")
        positive(self, "prm_beta", "prm_lr")

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The reference policy, and the process reward model."""
        return (ReferenceLogprobs(), ImplicitPRM(lr=self.prm_lr, beta=self.prm_beta))

    def advantages(self, rollout: Rollout) -> Advantages:
        """Returns of implicit rewards, and the outcome, beside the others'; the labels are `returns_N`."""
        enough_rows(self, rollout)
        prm_N, reference_N = (given(said, "logprobs") for said in (rollout.more.get("prm_N"), rollout.reference_N))
        implicit_N = self.prm_beta * (prm_N - reference_N)
        sum_R, labels_R = rollout.per_row(implicit_N), rollout.rewards_R.clamp(0.0, 1.0)
        mean_R = sum_R / rollout.lengths_R.clamp(min=1)
        others_R = mean_R - rollout.compare(mean_R, leave_one_out)
        process_N = returns(implicit_N - rollout.per_token(others_R), rollout.row_N)
        right_R = (sum_R > 0) == (labels_R > 0.5)
        metrics = {"implicit_reward": sum_R.mean().item(), "prm_accuracy": right_R.double().mean().item()}
        outcome_N = rollout.per_token(rollout.compare(rollout.rewards_R, leave_one_out))
        return Advantages(process_N + outcome_N, metrics, rollout.per_token(labels_R))

    reduce = OnlineAlgorithm.reduce  # the mean over all tokens of the batch
