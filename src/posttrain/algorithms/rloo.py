"""RLOO: REINFORCE Leave-One-Out.

Ahmadian et al. 2024, eq. 8 (https://arxiv.org/abs/2402.14740).

The baseline of a completion is the mean reward of the prompt's other completions, so it is independent of the
completion, and the gradient is unbiased:

    R_i = r_i - beta sum_t log( pi_old(o_it) / pi_ref(o_it) )
    A_i = R_i - 1/(G - 1) sum_{j != i} R_j
    L   = -1/G sum_i min(w_i A_i, clip(w_i, 1 - eps, 1 + eps) A_i),   w_i = pi(o_i | q) / pi_old(o_i | q)

averaged over prompts. A completion is one action: its ratio and its logprob are the whole sequence's.

Published settings (section 4, appendix C): beta 0.03 to 0.10, G 2 or 4, one update a batch, learning rate 1e-6. The
paper does not clip, since with one update a batch w is 1; TRL's 0.2 limits later updates.

What to know about it:
- It is Dr. GRPO's advantage times G/(G - 1), with a completion's tokens summed instead of averaged.
- A completion's ratio is a product over its tokens, so after an update or two long ones are clipped first.

TRL's `RLOOTrainer` is the same, with beta 0.05; its KL is of recomputed logprobs, here of the sampler's.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from posttrain.algorithms.algorithm import Tokens, enough_rows, positive
from posttrain.algorithms.reinforce import Reinforce
from posttrain.algorithms.rollout import Rollout
from posttrain.objectives.advantages import leave_one_out
from posttrain.objectives.policy import PolicyLoss, sequence_surrogate


@dataclass(frozen=True)
class RLOO(Reinforce):
    """Hyperparameters of RLOO; an `OnlineAlgorithm`."""

    clip: float = 0.2
    """A completion's ratio is clipped to [1 - clip, 1 + clip]; no effect on a batch's first update."""

    paper = "2402.14740"
    least_group = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "clip", or_zero=True)

    def baseline(self, rewards_R: Float[Tensor, "R"], rollout: Rollout) -> Tensor:
        """The mean of the other rows of the same task and seat; raises `UserError` for groups of one."""
        enough_rows(self, rollout)
        return rewards_R - rollout.compare(rewards_R, leave_one_out)

    def surrogate(self, tokens: Tokens) -> PolicyLoss:
        """Each branch's own ratio, clipped."""
        return sequence_surrogate(*tokens[:4], clip_low=self.clip, clip_high=self.clip, by_length=False)
