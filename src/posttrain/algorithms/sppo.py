"""SPPO: Self-Play Preference Optimization.

Wu et al. 2024, eq. 4.7 and algorithm 1 (https://arxiv.org/abs/2405.00675).

Preferences may be intransitive: a preferred to b, b to c, and c to a. The policy plays against its previous iterate
(pi_t, here the reference), and each response's log-ratio is regressed to its win rate:

    L = ( log( pi(y_w | x) / pi_t(y_w | x) ) - eta (P_w - 1/2) )^2
      + ( log( pi(y_l | x) / pi_t(y_l | x) ) - eta (P_l - 1/2) )^2

averaged over pairs. P is the probability that the response beats one of pi_t; for a single pair, 1 and 0.

Published settings (section 5.1): eta 1000, learning rate 5e-7, three iterations of 20,000 prompts, five
responses of each ranked by PairRM, the best and the worst of them as a pair with P as PairRM estimates it.

What to know about it:
- Unlike in DPO, each response has an absolute target: the chosen logprob is to rise, not only to fall less.
- The targets are nats per response: eta 1000 asks for a ratio of e^500, so at the published learning rate the gradient
  is nearly constant and the target is never reached. The loss begins at half a million.
- In `online-preference`, `--ref-sync-every 1` makes the policy of the round before its opponent, as published.

TRL's `sppo_hard` is the same, with beta = 1/eta. The authors' code takes the mean of the two squares, half of this.
"""

from dataclasses import dataclass

from posttrain.algorithms.algorithm import PairLoss, PreferenceAlgorithm, Responses, compared, needed, positive
from posttrain.algorithms.inputs import Input, ReferenceLogprobs
from posttrain.objectives.pairwise import squared_distance


@dataclass(frozen=True)
class SPPO(PreferenceAlgorithm):
    """Hyperparameters of SPPO; a `PreferenceAlgorithm`."""

    eta: float = 1000.0
    """Target difference of the log-ratios, in nats, of a response that always wins and one that always loses."""

    paper = "2405.00675"

    def __post_init__(self) -> None:
        positive(self, "eta")

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The reference policy."""
        return (ReferenceLogprobs(),)

    def loss(
        self, chosen: Responses, rejected: Responses, *, reference: tuple[Responses, Responses] | None = None
    ) -> PairLoss:
        """Squared error of each log-ratio from its target; see `PreferenceAlgorithm.loss`.

        The rewards in its metrics are the log-ratios over eta: 0.5 and -0.5 where the targets are reached. Raises
        `ValueError` without a reference.
        """
        won_B, lost_B = (
            policy.logprob_B - anchor.logprob_B
            for policy, anchor in zip((chosen, rejected), needed(reference), strict=True)
        )
        loss_B = squared_distance(won_B, self.eta / 2) + squared_distance(lost_B, -self.eta / 2)
        return PairLoss(loss_B, compared(won_B / self.eta, lost_B / self.eta))
