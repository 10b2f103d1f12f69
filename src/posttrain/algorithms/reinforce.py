"""REINFORCE with a baseline.

Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement learning".

A completion is one action: its logprob is pushed up by how much better than usual it did.

    R_i = r_i - beta sum_t log( pi_old(o_it) / pi_ref(o_it) )
    A_i = R_i - mean(R over the batch)
    L   = -1/B sum_i w_i A_i,   w_i = pi(o_i | q) / pi_old(o_i | q)

averaged over the B completions of the batch. On the first update w_i is 1 and its gradient that of log pi(o_i | q): the
score function. Later updates of a batch are weighted by it, without a clip. The KL to the reference is in the reward,
where it is not differentiated; k1 is unbiased there.

Settings: the paper has none for language models; beta 0.05 is TRL's for RLOO.

What to know about it:
- The baseline is the whole batch's, so that completions of easy prompts are pushed up and those of hard ones down;
  RLOO's is the prompt's own, ReMax's what the prompt's most likely completion earns.
- The gradient of a completion is a sum over its tokens: long ones weigh more.
- The batch's mean contains the completion itself, which shrinks its advantage by 1/B.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from posttrain.algorithms.algorithm import Advantages, Counts, Rollout, TokenLoss, positive
from posttrain.objectives import kl, reduce
from posttrain.objectives.policy import PolicyLoss, sequence_surrogate


@dataclass(frozen=True)
class Reinforce:
    """The knobs of REINFORCE; an `OnlineAlgorithm`."""

    kl_coefficient: float = 0.05
    """Weight of the KL to the reference policy in the reward (beta); 0: none, and no reference is needed."""

    family: ClassVar[str] = "online"
    paper: ClassVar[str] = "Williams 1992"
    least_group: ClassVar[int] = 1
    needs_greedy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive(self, "kl_coefficient", or_zero=True)

    @property
    def needs_reference(self) -> bool:
        """Whether the reward has a KL term."""
        return self.kl_coefficient > 0

    @property
    def silent_at_zero(self) -> bool:
        """Always: the KL is in the advantage."""
        return True

    def accepts(self, rewards_G: Float[Tensor, "G"]) -> bool:
        """Every group."""
        return True

    def kl_N(self, rollout: Rollout) -> Float[Tensor, "N"]:
        """The KL of each token, k1, that the reward pays for; raises `ValueError` without a reference."""
        if rollout.sampler_N is None or rollout.reference_N is None:
            raise ValueError(f"kl_coefficient is {self.kl_coefficient}, so advantages() needs reference_N; got None")
        return kl.k1(rollout.sampler_N, rollout.reference_N)

    def advantages(self, rollout: Rollout) -> Advantages:
        """Subtract the baseline from each completion's reward less its KL.

        Metrics: `kl`, the mean over completions of their KL in nats, with a reference.
        """
        rewards_PG, metrics = rollout.rewards_PG, dict[str, float]()
        if self.needs_reference:
            kl_PG = reduce.sequence_sum(self.kl_N(rollout), rollout.row_N, rewards_PG.numel()).view(rewards_PG.shape)
            rewards_PG = rewards_PG - self.kl_coefficient * kl_PG
            metrics["kl"] = kl_PG.mean().item()
        return Advantages(rollout.per_token(rewards_PG - self.baseline(rewards_PG, rollout)), metrics)

    def baseline(self, rewards_PG: Float[Tensor, "P G"], rollout: Rollout) -> Tensor:
        """What a completion is compared with: the mean of the batch."""
        return rewards_PG.mean()

    def loss(
        self,
        logprobs_N: Float[Tensor, "N"],
        *,
        old_N: Float[Tensor, "N"],
        advantages_N: Float[Tensor, "N"],
        row_N: Int[Tensor, "N"],
        reference_N: Float[Tensor, "N"] | None = None,
    ) -> TokenLoss:
        """Weigh each completion's advantage by its ratio; see `OnlineAlgorithm.loss`. Metrics per token: `ratio`."""
        found = self.surrogate(logprobs_N, old_N, advantages_N, row_N)
        length_N = row_N.bincount()[row_N]
        return TokenLoss(found.loss / length_N, {"ratio": found.ratio, "clip_fraction": found.clipped})

    def surrogate(self, logprobs_N: Tensor, old_N: Tensor, advantages_N: Tensor, row_N: Tensor) -> PolicyLoss:
        """Each completion's own ratio, not clipped."""
        return sequence_surrogate(
            logprobs_N, old_N, advantages_N, row_N, clip_low=1.0, clip_high=math.inf, by_length=False
        )

    def reduce(self, values_N: Float[Tensor, "N"], row_N: Int[Tensor, "N"], counts: Counts) -> Float[Tensor, ""]:
        """Average over the batch's completions; the shares of a completion's tokens add up to its loss."""
        return reduce.token_mean(values_N, counts.sequences)
