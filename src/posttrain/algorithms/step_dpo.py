"""Step-DPO: DPO on the first step that went wrong.

Lai et al. 2024, eq. 2 (https://arxiv.org/abs/2406.18629).

A long derivation that ends in a wrong answer is mostly right; DPO lowers all of it. Here a pair is two continuations
of a shared prefix of correct steps s_1 ... s_k-1:

    L = -log sigmoid( beta log( pi(s_win | x, s_1..k-1) / pi_ref(s_win | x, s_1..k-1) )
                    - beta log( pi(s_lose | x, s_1..k-1) / pi_ref(s_lose | x, s_1..k-1) ) )

averaged over pairs: DPO, with the shared steps as part of the prompt. They are computed once, without a loss.

Published settings (section 4.1): learning rate 5e-7, 128 pairs a batch, 8 epochs (4 for the 72B model), beta 0.4 (0.5
for the 72B model); the authors' scripts have it the other way round, 0.5 for 7B and 0.4 for 72B. The default is 0.5.

Its data have a column of the steps that both share: `initial_reason_steps`, as the authors' own set calls it, or
`steps`; see docs/data.md. Without one it is DPO with another beta.

TRL does not have it.
"""

from dataclasses import dataclass

from posttrain.algorithms.dpo import DPO


@dataclass(frozen=True)
class StepDPO(DPO):
    """Hyperparameters of Step-DPO; a `PreferenceAlgorithm`."""

    beta: float = 0.5
    """Strength of the KL constraint to the reference; higher keeps the policy closer to it."""

    paper = "2406.18629"
