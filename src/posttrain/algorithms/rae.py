"""RAE: role-conditioned advantage estimation, for self-play of one policy in all seats.

Liu et al. 2025, SPIRAL, eq. 2 and 3, algorithm 1 (https://arxiv.org/abs/2506.24119).

In a zero-sum game the returns of two seats sum to 0, but the first move may be an advantage: the baseline is a moving
average of each seat's return. For each game g and seat p, episode by episode,

    b_gp <- alpha b_gp + (1 - alpha) R_p        from b_gp = 0
    A_p   = R_p - b_gp
    L     = -1/B sum_i w_i A_i,   w_i = pi(o_i | q) / pi_old(o_i | q)

averaged over the B rows of the batch, one for each episode and seat. A row's logprob is summed over all its turns, and
not divided by its length. w_i is 1 on the first update, and is not clipped (REINFORCE).

Published settings: alpha 0.95 (the authors' code), learning rate 1e-6, 128 games a step, temperature 1, one update a
batch, no KL.

What to know about it:
- The average is updated before it is subtracted, as in algorithm 1, so that A_p = alpha (R_p - b_gp) with the average
  before the update: no bias, a constant factor. The authors' code subtracts first, and has advantages 1/alpha as large.
- The column `kind` of a task names its game; without that column the environment is one game.
- Rows are processed in the order of the batch. The averages are saved with checkpoints. A seat without a turn in an
  episode has no row, and its average is unchanged.
- With one seat it is REINFORCE with a moving average as the baseline.
- grpo compares the rows of one task and seat within a batch: several episodes of each task, no state. Here one episode
  of each task is enough, and tasks of one game that differ in difficulty share a baseline.
- A KL in the reward (--kl-coefficient) is not in the average, which is of returns.

Not reproduced: discounting of rewards by the turns to the end of the game, and filtering of drawn games.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from posttrain.algorithms.algorithm import Advantages
from posttrain.algorithms.inputs import Input, SeatBaselines
from posttrain.algorithms.reinforce import Reinforce
from posttrain.algorithms.rollout import Rollout
from posttrain.errors import UserError


@dataclass(frozen=True)
class RAE(Reinforce):
    """Hyperparameters of RAE; an `OnlineAlgorithm`."""

    kl_coefficient: float = 0.0
    """Weight of the KL to the reference policy in the reward (beta); 0: none, and no reference is needed."""

    baseline_decay: float = 0.95
    """Decay of the moving average: weight of the old value per episode (alpha)."""

    paper = "2506.24119"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.baseline_decay < 1:
            raise UserError(f"baseline_decay must be between 0 and 1; got {self.baseline_decay}")

    @property
    def inputs(self) -> tuple[Input, ...]:
        """REINFORCE's, and the moving averages."""
        return (*super().inputs, SeatBaselines(self.baseline_decay))

    def advantages(self, rollout: Rollout) -> Advantages:
        """As REINFORCE's, with metrics `baseline/min` and `baseline/max` over the rows, in units of the reward."""
        found = super().advantages(rollout)
        low, high = (end.item() for end in self.baseline(rollout.rewards_R, rollout).aminmax())
        return found._replace(metrics={**found.metrics, "baseline/min": low, "baseline/max": high})

    def baseline(self, rewards_R: Float[Tensor, "R"], rollout: Rollout) -> Tensor:
        """The moving average of the row's seat; raises `ValueError` where that is missing."""
        if rollout.baselines_R is None:
            raise ValueError("RAE compares with moving averages, so advantages() needs baselines_R; got None")
        return rollout.baselines_R
