"""DPO: Direct Preference Optimization.

Rafailov et al. 2023, eq. 7 (https://arxiv.org/abs/2305.18290).

Every policy is optimal for some reward under a KL constraint to a reference: this implicit reward is
beta log(pi / pi_ref). Substituted into the Bradley-Terry model of preferences, it replaces the reward model:

    r_w = beta log( pi(y_w | x) / pi_ref(y_w | x) ),   r_l = beta log( pi(y_l | x) / pi_ref(y_l | x) )
    L   = -(1 - e) log sigmoid(r_w - r_l) - e log sigmoid(r_l - r_w)

averaged over pairs of a chosen response y_w and a rejected one y_l. As published e is 0; above it, this is conservative
DPO (https://ericmitchell.ai/cdpo.pdf), which assumes that a fraction e of the labels is flipped.

Published settings (appendix B): beta 0.1 (0.5 for summaries), 64 pairs per batch, RMSprop with a learning rate of 1e-6
after 150 steps of warmup, one epoch. Here the optimiser is AdamW.

What to know about it:
- Only the difference counts, so both logprobs may fall, the chosen one's too; watch `logprob/chosen`.
- Only the reference constrains the policy: with beta near 0 it may move far from the reference to win a pair.
- The gradient is weighted by the error of the implicit reward: sigmoid(r_l - r_w). A pair with a large margin weighs
  little.
- Logprobs are sums over tokens, so long responses move more. SimPO (https://arxiv.org/abs/2405.14734) takes means.

Without a reference (`--reference-free`) pi_ref is taken to be uniform over responses: only the policy's own logprobs
are compared, there is no KL constraint, and longer responses have lower logprobs.

TRL's `sigmoid` loss is the same, with the same beta. It has no label smoothing of this kind (its `robust` is another
one) and no option without a reference.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from posttrain import errors
from posttrain.algorithms.algorithm import PairLoss, PreferenceAlgorithm, Responses, compared, needed, positive
from posttrain.algorithms.inputs import Input, ReferenceLogprobs
from posttrain.objectives.pairwise import bradley_terry, implicit_reward


@dataclass(frozen=True)
class DPO(PreferenceAlgorithm):
    """Hyperparameters of DPO, with the defaults of the paper; a `PreferenceAlgorithm`."""

    beta: float = 0.1
    """Strength of the KL constraint to the reference; higher keeps the policy closer to it."""

    label_smoothing: float = 0.0
    """Assumed fraction of flipped labels (e), as in conservative DPO; below 0.5."""

    reference_free: bool = False
    """Compare the policy's own logprobs, without a reference model."""

    paper = "2305.18290"

    def __post_init__(self) -> None:
        positive(self, "beta")
        if not 0 <= self.label_smoothing < 0.5:
            raise errors.UserError(f"label_smoothing must be at least 0 and below 0.5; got {self.label_smoothing}")

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The reference policy, unless `reference_free`."""
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
