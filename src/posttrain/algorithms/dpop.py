"""DPOP: DPO-Positive.

Pal et al. 2024, Smaug, eq. 3 of its second version (https://arxiv.org/abs/2402.13228).

DPO may lower the chosen response's likelihood if it lowers the rejected one's more, and does where the two differ in
few tokens (a digit of a sum). DPOP adds a penalty for that:

    r_w, r_l = as in DPO
    L        = -log sigmoid( r_w - r_l - lambda beta max(0, log( pi_ref(y_w | x) / pi(y_w | x) )) )

averaged over pairs.

Published settings (section 5): beta 0.3, lambda 50, learning rate 5e-5 with a LoRA of rank 32.

What to know about it:
- With lambda 50 the penalty dominates as soon as the chosen logprob falls by a tenth of a nat; the gradient then
  mostly restores it, and the margin grows only through the rejected one.

TRL does not have it.
"""

from dataclasses import dataclass

from posttrain import errors
from posttrain.algorithms.algorithm import PairLoss, Responses, compared, positive
from posttrain.algorithms.dpo import DPO
from posttrain.objectives.pairwise import bradley_terry


@dataclass(frozen=True)
class DPOP(DPO):
    """Hyperparameters of DPOP; a `PreferenceAlgorithm`."""

    beta: float = 0.3
    """Strength of the KL constraint to the reference; higher keeps the policy closer to it."""

    penalty: float = 50.0
    """Weight of the penalty per nat by which the chosen logprob falls below the reference's (lambda)."""

    paper = "2402.13228"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "penalty", or_zero=True)
        if self.reference_free:
            raise errors.UserError("DPOP compares with what the reference thought likely; leave out `reference_free`")

    def loss(
        self, chosen: Responses, rejected: Responses, *, reference: tuple[Responses, Responses] | None = None
    ) -> PairLoss:
        """DPO's loss with the penalty; see `PreferenceAlgorithm.loss`. The metric `penalty` is without lambda."""
        chosen_B, rejected_B = self.rewards(chosen, rejected, reference)
        lost_B = (-chosen_B).relu()
        loss_B = bradley_terry(
            chosen_B, rejected_B, margin_B=self.penalty * lost_B, label_smoothing=self.label_smoothing
        )
        return PairLoss(loss_B, compared(chosen_B, rejected_B) | {"penalty": lost_B.detach()})
