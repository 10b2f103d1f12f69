"""REINFORCE with a baseline.

Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement learning".

A completion is one action: the gradient of its logprob is weighted by its advantage over a baseline.

    R_i = r_i - beta sum_t log( pi_old(o_it) / pi_ref(o_it) )
    A_i = R_i - mean(R over the batch)
    L   = -1/B sum_i w_i A_i,   w_i = pi(o_i | q) / pi_old(o_i | q)

averaged over the B completions of the batch. On the first update w_i is 1 and its gradient that of log pi(o_i | q): the
score function. Later updates of a batch are weighted by it, without a clip. The KL to the reference is in the reward,
where it is not differentiated; k1 is unbiased there.

Settings: the paper has none for language models; beta 0.05 is TRL's for RLOO.

What to know about it:
- The baseline is the batch mean, so completions of easy prompts are reinforced and those of hard ones suppressed;
  RLOO's is per prompt, ReMax's the reward of the prompt's greedy completion.
- The gradient of a completion is a sum over its tokens: long ones weigh more.
- The batch's mean contains the completion itself, which shrinks its advantage by 1/B.
- A completion of several branches has one ratio per branch, and its loss is the sum over them.
"""

import math
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from posttrain.algorithms.algorithm import Advantages, Counts, OnlineAlgorithm, TokenLoss, Tokens, positive
from posttrain.algorithms.inputs import Input, ReferenceLogprobs
from posttrain.algorithms.rollout import Rollout
from posttrain.objectives import reduce
from posttrain.objectives.policy import PolicyLoss, sequence_surrogate


@dataclass(frozen=True)
class Reinforce(OnlineAlgorithm):
    """Hyperparameters of REINFORCE; an `OnlineAlgorithm`."""

    kl_coefficient: float = 0.05
    """Weight of the KL to the reference policy in the reward (beta); 0: none, and no reference is needed."""

    sequence_ratio = True
    paper = "Williams 1992"

    def __post_init__(self) -> None:
        positive(self, "kl_coefficient", or_zero=True)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The reference policy, if the reward has a KL term."""
        return (ReferenceLogprobs(),) if self.kl_coefficient else ()

    @property
    def silent_at_zero(self) -> bool:
        """Always: the KL is in the advantage."""
        return True

    def advantages(self, rollout: Rollout) -> Advantages:
        """Subtract the KL and the baseline from each row's reward.

        Metrics: `kl`, the mean over rows of their KL in nats, with a reference.
        """
        rewards_R, metrics = rollout.rewards_R, dict[str, float]()
        if self.kl_coefficient:
            kl_R = reduce.sequence_sum(rollout.kl_N(), rollout.row_N, len(rewards_R))
            rewards_R = rewards_R - self.kl_coefficient * kl_R
            metrics["kl"] = kl_R.mean().item()
        return Advantages(rollout.per_token(rewards_R - self.baseline(rewards_R, rollout)), metrics)

    def baseline(self, rewards_R: Float[Tensor, "R"], rollout: Rollout) -> Tensor:
        """The baseline of each row: the mean of the batch."""
        return rewards_R.mean()

    def loss(self, tokens: Tokens) -> TokenLoss:
        """Multiply each branch's advantage by its ratio; see `OnlineAlgorithm.loss`. Metrics per token: `ratio`.

        A branch is one action: its loss is spread over its tokens and sums to it, whatever the length of its row.
        """
        found = self.surrogate(tokens)
        size_N = tokens.branch_N.bincount()[tokens.branch_N]
        return TokenLoss(found.loss / size_N, {"ratio": found.ratio, "clip_fraction": found.clipped})

    def surrogate(self, tokens: Tokens) -> PolicyLoss:
        """Each branch's own ratio, not clipped."""
        return sequence_surrogate(*tokens[:4], clip_low=1.0, clip_high=math.inf, by_length=False)

    def reduce(self, values_N: Float[Tensor, "N"], length_N: Int[Tensor, "N"], counts: Counts) -> Float[Tensor, ""]:
        """Average over the batch's rows; the values of a branch's tokens sum to its loss."""
        return reduce.token_mean(values_N, counts.sequences)
