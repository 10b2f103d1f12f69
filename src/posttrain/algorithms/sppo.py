"""SPPO: Self-Play Preference Optimization.

Wu et al. 2024, eq. 4.7 and algorithm 1 (https://arxiv.org/abs/2405.00675).

Preferences need not come from a reward: a may be preferred to b, b to c, and c to a. The policy plays against itself as
it was a round ago (pi_t, here the reference), and each response's log-ratio is pulled to how often it wins:

    L = ( log( pi(y_w | x) / pi_t(y_w | x) ) - eta (P_w - 1/2) )^2
      + ( log( pi(y_l | x) / pi_t(y_l | x) ) - eta (P_l - 1/2) )^2

averaged over pairs. P is the probability that the response beats one of pi_t. A pair alone says 1 and 0.

Published settings (section 5.1): eta 1000, learning rate 5e-7, three iterations of 20,000 prompts, five
responses of each ranked by PairRM, the best and the worst of them as a pair with P as PairRM estimates it.

What to know about it:
- Unlike DPO's, the target of each response is a number: the chosen one is to rise, not only to fall less.
- The targets are so many nats for a whole response: eta 1000 asks for e^500, so that at the published learning rate
  the loss is a steady pull and never reached. It begins at half a million.
- In `online-preference`, `--ref-sync-every 1` makes the policy of the round before its opponent, as published.

TRL's `sppo_hard` is the same, with beta = 1/eta. The authors' code takes the mean of the two squares, half of this.
"""

from dataclasses import dataclass
from typing import ClassVar

from posttrain.algorithms.algorithm import PairLoss, Responses, compared, needed, positive
from posttrain.algorithms.inputs import Input, ReferenceLogprobs
from posttrain.objectives.pairwise import squared_distance


@dataclass(frozen=True)
class SPPO:
    """Hyperparameters of SPPO; a `PreferenceAlgorithm`."""

    eta: float = 1000.0
    """Nats between a response that always wins and one that always loses."""

    family: ClassVar[str] = "preference"
    paper: ClassVar[str] = "2405.00675"
    unit: ClassVar[str] = "pair"

    def __post_init__(self) -> None:
        positive(self, "eta")

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The reference policy."""
        return (ReferenceLogprobs(),)

    def loss(
        self, chosen: Responses, rejected: Responses, *, reference: tuple[Responses, Responses] | None = None
    ) -> PairLoss:
        """Square how far each log-ratio is from its target; see `PreferenceAlgorithm.loss`.

        The rewards in its metrics are the log-ratios over eta: 0.5 and -0.5 where the targets are reached. Raises
        `ValueError` without a reference.
        """
        won_B, lost_B = (
            policy.logprob_B - anchor.logprob_B
            for policy, anchor in zip((chosen, rejected), needed(reference), strict=True)
        )
        loss_B = squared_distance(won_B, self.eta / 2) + squared_distance(lost_B, -self.eta / 2)
        return PairLoss(loss_B, compared(won_B / self.eta, lost_B / self.eta))
