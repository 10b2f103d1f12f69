"""SimPO: Simple Preference Optimization with a reference-free reward.

Meng et al. 2024, eq. 6 (https://arxiv.org/abs/2405.14734).

The implicit reward is the mean logprob of a response, the quantity that decoding maximises, with a target margin:

    r(x, y) = beta/|y| log pi(y | x)
    L       = -log sigmoid( r(x, y_w) - r(x, y_l) - gamma )

averaged over pairs. No reference policy, so one model in memory and one forward pass.

Published settings (table 8): beta 2.0 to 2.5, gamma 0.3 to 1.6 (gamma/beta 0.1 to 0.8), learning rate 3e-7 to 1e-6,
128 pairs a batch, one epoch; later models beta 10 with gamma 3 (Llama 3, version 0.2, appendix H) and 5 (Gemma 2, the
authors' README). The defaults here are beta 2.0 and gamma 1.0.

What to know about it:
- There is no KL constraint: only the learning rate and the number of steps limit the drift; results are sensitive to
  the learning rate (see the paper).
- Logprobs are length-normalised: a longer response is not less likely for its length.

TRL has it as `CPOTrainer(loss_type="simpo", cpo_alpha=0.0)`, with beta 0.1 and gamma 0.5 by default.
"""

from dataclasses import dataclass

import torch

from posttrain.algorithms.algorithm import PairLoss, PreferenceAlgorithm, Responses, compared, positive
from posttrain.objectives.pairwise import bradley_terry


@dataclass(frozen=True)
class SimPO(PreferenceAlgorithm):
    """Hyperparameters of SimPO; a `PreferenceAlgorithm`."""

    beta: float = 2.0
    """Scale of the implicit reward, the mean logprob per token (beta)."""

    gamma: float = 1.0
    """Target reward margin between the chosen and the rejected response, in units of the reward (gamma)."""

    paper = "2405.14734"

    def __post_init__(self) -> None:
        positive(self, "beta")
        positive(self, "gamma", or_zero=True)

    def loss(
        self, chosen: Responses, rejected: Responses, *, reference: tuple[Responses, Responses] | None = None
    ) -> PairLoss:
        """Compare mean logprobs, with a margin; see `PreferenceAlgorithm.loss`. Ignores `reference`."""
        chosen_B, rejected_B = (self.beta * r.logprob_B / r.length_B for r in (chosen, rejected))
        margin_B = torch.full_like(chosen_B, self.gamma)
        return PairLoss(bradley_terry(chosen_B, rejected_B, margin_B=margin_B), compared(chosen_B, rejected_B))
