"""TDPO: Token-level Direct Preference Optimization.

Zeng et al. 2024 (https://arxiv.org/abs/2404.11999); the equations as in the authors' code.

Derived at the token level, the implicit reward has a second term: the sequential KL to the reference, over the whole
vocabulary and not only at the sampled tokens.

    D(x, y) = sum_t KL( pi_ref(. | x, y_<t) || pi(. | x, y_<t) )
    u       = r_w - r_l as in DPO
    TDPO1:  L = -log sigmoid( u - beta ( D(x, y_l) - D(x, y_w) ) )
    TDPO2:  L = -log sigmoid( u - alpha beta ( D(x, y_l) - sg[ D(x, y_w) ] ) )

averaged over pairs; sg[.] is the stop-gradient. The policy is kept near the reference on the rejected response, and
in TDPO2 has no gradient away from it on the chosen one. TDPO1 is `--no-stop-gradient --alpha 1`.

Published settings (the authors' code): beta 0.1, alpha 0.5, learning rate 5e-6.

What to know about it:
- D needs both models' distributions at every token, so precomputed reference logprobs are not sufficient: each update
  runs both models.

TRL does not have it.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from posttrain import errors
from posttrain.algorithms.algorithm import PairLoss, Responses, compared, positive
from posttrain.algorithms.dpo import DPO
from posttrain.algorithms.inputs import Input, ReferenceDivergence
from posttrain.objectives.pairwise import bradley_terry


@dataclass(frozen=True)
class TDPO(DPO):
    """Hyperparameters of TDPO; a `PreferenceAlgorithm`."""

    alpha: float = 0.5
    """Weight of the sequential KL difference in the margin (alpha)."""

    stop_gradient: bool = True
    """Stop the gradient of the KL on the chosen response: TDPO2; without it and with alpha 1, TDPO1."""

    paper = "2404.11999"

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The reference policy, and the KL to it over the whole vocabulary."""
        return (*super().inputs, ReferenceDivergence())

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "alpha", or_zero=True)
        if self.reference_free:
            raise errors.UserError("TDPO is about the distance from a reference; leave out `reference_free`")

    def loss(
        self, chosen: Responses, rejected: Responses, *, reference: tuple[Responses, Responses] | None = None
    ) -> PairLoss:
        """As DPO's, with the divergences as a margin; see `PreferenceAlgorithm.loss`.

        Metrics: those of `compared`, and `divergence/chosen` and `divergence/rejected`, in nats per response. Raises
        `ValueError` if the divergences or the reference are missing.
        """
        chosen_B, rejected_B = self.rewards(chosen, rejected, reference)
        of_chosen_B, of_rejected_B = (_divergence(responses) for responses in (chosen, rejected))
        metrics = {"divergence/chosen": of_chosen_B.detach(), "divergence/rejected": of_rejected_B.detach()}
        kept_B = of_chosen_B.detach() if self.stop_gradient else of_chosen_B
        margin_B = self.alpha * self.beta * (of_rejected_B - kept_B)
        loss_B = bradley_terry(chosen_B, rejected_B, margin_B=margin_B, label_smoothing=self.label_smoothing)
        return PairLoss(loss_B, compared(chosen_B, rejected_B) | metrics)


def _divergence(responses: Responses) -> Float[Tensor, "B"]:
    if responses.divergence_B is None:
        raise ValueError("TDPO compares divergences from the reference, so loss() needs divergence_B; got None")
    return responses.divergence_B
