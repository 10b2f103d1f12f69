"""KTO: Kahneman-Tversky Optimization.

Ethayarajh et al. 2024, eq. 8 (7 in its first version; https://arxiv.org/abs/2402.01306).

Binary feedback on single responses is easier to collect than preferences between two. By prospect theory, people value
a response as a gain or a loss relative to a reference point, and are averse to losses:

    r(x, y) = beta log( pi(y | x) / pi_ref(y | x) ),   z = beta KL(pi || pi_ref)
    L       = w_g (1 - sigmoid( r - z ))   for a good response
    L       = w_b (1 - sigmoid( z - r ))   for a bad one

averaged over responses. z is estimated from the batch: max(0, the mean of beta log(pi/pi_ref) of responses to other
prompts, those of each prompt moved on to the one before). It carries no gradient.

Published settings (section 4.2, table 1): beta 0.1, w_g = w_b = 1, batches of 32 responses, learning rate 5e-6 with
AdamW (5e-7 with RMSprop in the first version's code). With imbalanced classes, the weights should satisfy
1 <= w_g n_g / (w_b n_b) <= 3/2 (eq. 9; 4/3 in the first version).

What to know about it:
- It takes pairs as well: each is a good response and a bad one.
- The loss of a response is bounded (by its weight), and its gradient vanishes for a label that the policy strongly
  contradicts: robust to label noise.
- z is meaningful only for batches with 2 responses or more, to different prompts.

TRL's `kto` is the same, with z from the responses of one worker's micro-batch (a mean over workers); here it is the
whole batch's, independent of the micro-batch size.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from posttrain.algorithms.algorithm import PairLoss, Responses, UnpairedAlgorithm, positive
from posttrain.algorithms.inputs import Input, ReferenceLogprobs
from posttrain.objectives.pairwise import implicit_reward, prospect, wins


@dataclass(frozen=True)
class KTO(UnpairedAlgorithm):
    """Hyperparameters of KTO; an `UnpairedAlgorithm`."""

    beta: float = 0.1
    """Scale of the implicit reward; higher keeps the policy closer to the reference (gains saturate earlier)."""

    good_weight: float = 1.0
    """Weight of the loss of good responses (lambda_D)."""

    bad_weight: float = 1.0
    """Weight of the loss of bad responses (lambda_U)."""

    paper = "2402.01306"

    def __post_init__(self) -> None:
        positive(self, "beta", "good_weight", "bad_weight")

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The reference policy."""
        return (ReferenceLogprobs(),)

    def rewards(self, responses: Responses, reference: Responses) -> Float[Tensor, "B"]:
        """The implicit rewards, in nats."""
        return implicit_reward(responses.logprob_B, reference.logprob_B, self.beta)

    def loss_of_each(
        self, responses: Responses, good_B: Bool[Tensor, "B"], *, reference: Responses, divergence: float
    ) -> PairLoss:
        """The KTO loss relative to the reference point; see `UnpairedAlgorithm.loss_of_each`.

        Metrics: `reward/good` and `reward/bad` (implicit, in nats), and `accuracy`: 1 for a good response above the
        reference point and for a bad one below it, 1/2 at the point itself.
        """
        reward_B = self.rewards(responses, reference)
        point = self.beta * divergence
        loss_B = prospect(reward_B, good_B, point, good=self.good_weight, bad=self.bad_weight)
        seen_B = reward_B.detach()
        above_B = wins(seen_B, torch.full_like(seen_B, point))
        right_B = torch.where(good_B, above_B, 1 - above_B)
        metrics = {"reward/good": seen_B[good_B], "reward/bad": seen_B[~good_B], "accuracy": right_B}
        return PairLoss(loss_B, metrics)
