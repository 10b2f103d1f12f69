"""DPO: Direct Preference Optimization.

Rafailov et al. 2023, eq. 7 (https://arxiv.org/abs/2305.18290).

Every policy is the best one for some reward, so long as it must stay close to a reference: this implicit reward is
beta log(pi / pi_ref). Put into the Bradley-Terry model of which response people choose, the reward model vanishes:

    r_w = beta log( pi(y_w | x) / pi_ref(y_w | x) ),   r_l = beta log( pi(y_l | x) / pi_ref(y_l | x) )
    L   = -(1 - e) log sigmoid(r_w - r_l) - e log sigmoid(r_l - r_w)

averaged over pairs of a chosen response y_w and a rejected one y_l. As published e is 0; above it, this is conservative
DPO (https://ericmitchell.ai/cdpo.pdf), which takes a share e of the labels to be the wrong way round.

Published settings (appendix B): beta 0.1 (0.5 for summaries), 64 pairs per batch, RMSprop with a learning rate of 1e-6
after 150 steps of warmup, one epoch. Here the optimiser is AdamW.

What to know about it:
- Only the difference counts, so both logprobs may fall, the chosen one's too; watch `logprob/chosen`.
- The loss of a pair is bounded by nothing but the reference: with beta near 0 the policy may go far to win a pair.
- Its gradient is weighted by how wrong the implicit reward is: sigmoid(r_l - r_w). A pair that is won weighs little.
- Logprobs are sums over tokens, so long responses move more. SimPO (https://arxiv.org/abs/2405.14734) takes means.

Without a reference (`--reference-free`) pi_ref is taken to be the same for every response: only the policy's own
logprobs are compared, nothing holds it where it was, and longer responses are the less likely ones.

TRL's `sigmoid` loss is the same, with the same beta. It has no label smoothing of this kind (its `robust` is another
one) and no option without a reference.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from posttrain import errors
from posttrain.algorithms.algorithm import PairLoss, Responses, compared, needed, positive
from posttrain.algorithms.inputs import Input, ReferenceLogprobs
from posttrain.objectives.pairwise import bradley_terry, implicit_reward


@dataclass(frozen=True)
class DPO:
    """Hyperparameters of DPO, with the defaults of the paper; a `PreferenceAlgorithm`."""

    beta: float = 0.1
    """How close to the reference: the strength of the KL constraint whose solution is looked for."""

    label_smoothing: float = 0.0
    """How often a label is taken to be the wrong way round (e); below 0.5."""

    reference_free: bool = False
    """Compare the policy's own logprobs, without a reference."""

    family: ClassVar[str] = "preference"
    paper: ClassVar[str] = "2305.18290"
    unit: ClassVar[str] = "pair"

    def __post_init__(self) -> None:
        positive(self, "beta")
        if not 0 <= self.label_smoothing < 0.5:
            raise errors.UserError(f"label_smoothing must be at least 0 and below 0.5; got {self.label_smoothing}")

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The reference policy, unless it is left out."""
        return () if self.reference_free else (ReferenceLogprobs(),)

    def rewards(
        self, chosen: Responses, rejected: Responses, reference: tuple[Responses, Responses] | None
    ) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"]]:
        """The implicit rewards of the two responses, in nats; raises `ValueError` where a reference is missing."""
        if self.reference_free:
            return self.beta * chosen.logprob_B, self.beta * rejected.logprob_B
        of_chosen, of_rejected = needed(reference)
        return (
            implicit_reward(chosen.logprob_B, of_chosen.logprob_B, self.beta),
            implicit_reward(rejected.logprob_B, of_rejected.logprob_B, self.beta),
        )

    def loss(
        self, chosen: Responses, rejected: Responses, *, reference: tuple[Responses, Responses] | None = None
    ) -> PairLoss:
        """Compare the implicit rewards of the two responses; see `PreferenceAlgorithm.loss`.

        The metrics are those of `compared`. Raises `ValueError` where a reference is missing.
        """
        rewards = self.rewards(chosen, rejected, reference)
        return PairLoss(bradley_terry(*rewards, label_smoothing=self.label_smoothing), compared(*rewards))
