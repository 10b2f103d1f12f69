"""Pass@k training: reward sets of k completions, with the advantage in closed form.

Chen et al. 2025, Pass@k Training for Adaptively Balancing Exploration and Exploitation of Large Reasoning Models
(https://arxiv.org/abs/2508.10751), analytical derivation.

A set of k completions is solved if one of them is right. Averaged over all sets of k of a group of G, W of them wrong:

    R      = 1 - C(W, k) / C(G, k),   std = sqrt(R (1 - R))                   R: pass@k of the group
    A_i    = (1 - R) / std                                                    for a right completion
    A_i    = (1 - R - C(W - 1, k - 1) / C(G - 1, k - 1)) / std                for a wrong one
    L      as GRPO's, without a KL

Published settings: k 8 of G 32, DAPO's loss without its dynamic sampling. Checked against the formulas that the authors
give in their repository (RUCAIBox/Passk_Training); the paper's equation numbers could not be read.

What to know about it:
- Where fewer than k are wrong, R is 1 and nothing is learned: an easy prompt is left alone, which keeps entropy up.
- pass@1 rises more slowly. Train with it first and with another algorithm (`--algorithm grpo`) from there.
- `pass_at_k` is the mean R of the batch. k of 1 is GRPO with the population's standard deviation.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from posttrain import errors
from posttrain.algorithms.algorithm import unused
from posttrain.algorithms.grpo import GRPOWithoutKL
from posttrain.objectives.advantages import pass_at_k


@dataclass(frozen=True)
class PassAtK(GRPOWithoutKL):
    """Hyperparameters of pass@k training; an `OnlineAlgorithm`."""

    k: int = 4
    """Completions of a set; at most those of a prompt."""

    right_from: float = 1.0
    """Reward from which on a completion is right."""

    token_advantages = False
    paper = "2508.10751"

    def __post_init__(self) -> None:
        super().__post_init__()
        unused(self, "std_epsilon")
        if self.k < 1:
            raise errors.UserError(f"k is a number of completions, 1 or more; got {self.k}")

    @property
    def least_group(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """A set, and at least two completions."""
        return max(2, self.k)

    def compare(self, rewards_PG: Float[Tensor, "P G"]) -> Float[Tensor, "P G"]:
        """The advantage of pass@k of groups of G rows."""
        return pass_at_k(rewards_PG >= self.right_from, self.k).to(rewards_PG.dtype)
