"""IPO: Identity Preference Optimization.

Azar et al. 2023, eq. 17 (https://arxiv.org/abs/2310.12036).

DPO's loss keeps decreasing as a pair's margin grows, so with deterministic labels the KL constraint vanishes and the
policy overfits. IPO regresses the difference of the log-ratios to a finite target:

    h = log( pi(y_w | x) / pi_ref(y_w | x) ) - log( pi(y_l | x) / pi_ref(y_l | x) )
    L = ( h - 1/(2 tau) )^2

averaged over pairs. tau is called beta here, as in DPO: the strength of the KL constraint.

Published settings (sections 5.3 and 5.4 have bandits only): none for language models; 0.1 is TRL's.

What to know about it:
- The target is a difference of sums over tokens: at beta 0.1 it is 5 nats for a pair of short answers and for one of
  essays alike. With `--length-normalised` each log-ratio is divided by its number of tokens, which the authors
  are said to have done in their own experiments, and which TRL's `ipo` always does.
- Losses are squares of nats, so at beta 0.1 they begin at 25 and gradients are large: watch `grad_norm`.
"""

from dataclasses import dataclass

from posttrain.algorithms.algorithm import PairLoss, PreferenceAlgorithm, Responses, compared, needed, positive
from posttrain.algorithms.inputs import Input, ReferenceLogprobs
from posttrain.objectives.pairwise import squared_distance


@dataclass(frozen=True)
class IPO(PreferenceAlgorithm):
    """Hyperparameters of IPO; a `PreferenceAlgorithm`."""

    beta: float = 0.1
    """Strength of the KL constraint (tau); the target difference of the log-ratios is 1 / (2 beta)."""

    length_normalised: bool = False
    """Divide each log-ratio by its response's number of tokens."""

    paper = "2310.12036"

    def __post_init__(self) -> None:
        positive(self, "beta")

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The reference policy."""
        return (ReferenceLogprobs(),)

    def loss(
        self, chosen: Responses, rejected: Responses, *, reference: tuple[Responses, Responses] | None = None
    ) -> PairLoss:
        """Squared error of the difference of the log-ratios from its target; see `PreferenceAlgorithm.loss`.

        The rewards in its metrics are beta times the log-ratios. Raises `ValueError` without a reference.
        """
        ratios = [
            (policy.logprob_B - anchor.logprob_B) / (policy.length_B if self.length_normalised else 1)
            for policy, anchor in zip((chosen, rejected), needed(reference), strict=True)
        ]
        loss_B = squared_distance(ratios[0] - ratios[1], 1 / (2 * self.beta))
        return PairLoss(loss_B, compared(self.beta * ratios[0], self.beta * ratios[1]))
