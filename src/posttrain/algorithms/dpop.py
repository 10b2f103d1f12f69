"""DPOP: DPO-Positive.

Pal et al. 2024, Smaug, eq. 3 of its second version (https://arxiv.org/abs/2402.13228).

DPO may lower the chosen response so long as it lowers the rejected one more, and where the two differ in a few tokens
(a digit of a sum) it does. DPOP charges for that:

    r_w, r_l = as in DPO
    L        = -log sigmoid( r_w - r_l - lambda beta max(0, log( pi_ref(y_w | x) / pi(y_w | x) )) )

averaged over pairs.

Published settings (section 5): beta 0.3, lambda 50, learning rate 5e-5 with a LoRA of rank 32.

What to know about it:
- With lambda 50 the penalty rules as soon as the chosen response falls by a tenth of a nat; what is learned then is
  mostly to keep it, and the margin grows by the rejected one alone.

TRL does not have it.
"""

from dataclasses import dataclass
from typing import ClassVar

from posttrain import errors
from posttrain.algorithms.algorithm import PairLoss, Responses, compared, positive
from posttrain.algorithms.dpo import DPO
from posttrain.objectives.pairwise import bradley_terry


@dataclass(frozen=True)
class DPOP(DPO):
    """Hyperparameters of DPOP; a `PreferenceAlgorithm`."""

    beta: float = 0.3
    """How close to the reference: the strength of the KL constraint."""

    penalty: float = 50.0
    """What a nat costs by which the chosen response has become less likely than it was (lambda)."""

    paper: ClassVar[str] = "2402.13228"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "penalty", or_zero=True)
        if self.reference_free:
            raise errors.UserError("DPOP compares with what the reference thought likely; leave out --reference-free")

    def loss(
        self, chosen: Responses, rejected: Responses, *, reference: tuple[Responses, Responses] | None = None
    ) -> PairLoss:
        """As DPO's, less the penalty; see `PreferenceAlgorithm.loss`. `penalty` in the metrics is without lambda."""
        chosen_B, rejected_B = self.rewards(chosen, rejected, reference)
        lost_B = (-chosen_B).relu()
        loss_B = bradley_terry(
            chosen_B, rejected_B, margin_B=self.penalty * lost_B, label_smoothing=self.label_smoothing
        )
        return PairLoss(loss_B, compared(chosen_B, rejected_B) | {"penalty": lost_B.detach()})
