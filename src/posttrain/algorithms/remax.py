"""ReMax: REINFORCE with the greedy completion as its baseline.

Li et al. 2023, eq. 5 and algorithm 1 (https://arxiv.org/abs/2310.10505).

The reward of the greedy completion is a baseline per prompt, at the cost of one more completion and without a critic:

    R_i = r_i - beta sum_t log( pi_old(o_it) / pi_ref(o_it) )
    A_i = R_i - r(greedy completion of the prompt)
    L   = -1/B sum_i w_i A_i,   w_i = pi(o_i | q) / pi_old(o_i | q)

averaged over the B completions of the batch, as in REINFORCE.

Published settings (the authors' scripts): one completion of each prompt and one greedy one, learning rate 1e-6, beta
0.05 (0.1 is their code's default, and the one here). Their code penalises each token's own KL; here it is the
completion's. Here a prompt may have several completions, with the same greedy one as their baseline.

What to know about it:
- If the greedy answer is right, only wrong samples have a gradient, and vice versa.
- The greedy completion is sampled and scored, but has no loss: with G completions it is 1/(G + 1) of the rollout.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from posttrain.algorithms.inputs import GreedyReward, Input
from posttrain.algorithms.reinforce import Reinforce
from posttrain.algorithms.rollout import Rollout


@dataclass(frozen=True)
class ReMax(Reinforce):
    """Hyperparameters of ReMax; an `OnlineAlgorithm`."""

    kl_coefficient: float = 0.1
    """Weight of the KL to the reference policy in the reward (beta); 0: none, and no reference is needed."""

    paper = "2310.10505"

    @property
    def inputs(self) -> tuple[Input, ...]:
        """REINFORCE's, and the rewards of greedy completions."""
        return (*super().inputs, GreedyReward())

    def baseline(self, rewards_R: Float[Tensor, "R"], rollout: Rollout) -> Tensor:
        """The reward of the same seat in the greedy episode of its task; raises `ValueError` if it is missing."""
        if rollout.greedy_R is None:
            raise ValueError("ReMax compares with the greedy completion, so advantages() needs greedy_R; got None")
        return rollout.greedy_R
