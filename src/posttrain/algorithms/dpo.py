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

TRL's `sigmoid` loss is the same, with the same beta and label smoothing.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from posttrain import errors
from posttrain.algorithms.algorithm import PairLoss, Responses
from posttrain.objectives.pairwise import bradley_terry, implicit_reward


@dataclass(frozen=True)
class DPO:
    """The knobs of DPO, with the defaults of the paper; a `PreferenceAlgorithm`."""

    beta: float = 0.1
    """How close to the reference: the strength of the KL constraint whose solution is looked for."""

    label_smoothing: float = 0.0
    """How often a label is taken to be the wrong way round (e); below 0.5."""

    family: ClassVar[str] = "preference"
    paper: ClassVar[str] = "2305.18290"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.beta) and self.beta > 0):
            raise errors.UserError(f"beta must be a number above 0; got {self.beta}")
        if not 0 <= self.label_smoothing < 0.5:
            raise errors.UserError(f"label_smoothing must be at least 0 and below 0.5; got {self.label_smoothing}")

    @property
    def needs_reference(self) -> bool:
        """Always."""
        return True

    def loss(
        self, chosen: Responses, rejected: Responses, *, reference: tuple[Responses, Responses] | None = None
    ) -> PairLoss:
        """Compare the implicit rewards of the two responses; see `PreferenceAlgorithm.loss`.

        Metrics per pair: `reward/chosen` and `reward/rejected` (implicit, so in nats), their `margin`, and `accuracy`:
        1.0 where the chosen one's is larger. Raises `ValueError` without a reference.
        """
        if reference is None:
            raise ValueError("DPO compares with a reference policy, so loss() needs its logprobs; got None")
        chosen_B, rejected_B = (
            implicit_reward(policy.logprob_B, anchor.logprob_B, self.beta)
            for policy, anchor in zip((chosen, rejected), reference, strict=True)
        )
        metrics = {
            "reward/chosen": chosen_B.detach(),
            "reward/rejected": rejected_B.detach(),
            "margin": (chosen_B - rejected_B).detach(),
            "accuracy": (chosen_B > rejected_B).to(chosen_B.dtype),
        }
        return PairLoss(bradley_terry(chosen_B, rejected_B, label_smoothing=self.label_smoothing), metrics)
