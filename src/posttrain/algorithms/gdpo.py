"""GDPO: Group reward-Decoupled Normalization Policy Optimization.

Liu et al. 2026 (https://arxiv.org/abs/2601.05242).

GRPO normalises the sum of several rewards, so that completions with different rewards of the same sum, and groups that
differ in one reward only, look alike. Here each reward is normalised in its group by itself:

    A_ik = (r_ik - mean_k) / std_k                       over the group, for reward k
    A_i  = sum_k w_k A_ik,   then A_i / std(A)           over all completions of the batch, whose mean is 0
    L    as GRPO's, without a KL

Published settings: tool calling, mathematics and code with two or three rewards. The order of steps was checked against
the abstract, reviews, and NeMo RL's and verl's descriptions; equation numbers could not be read.

What to know about it:
- The scale of a reward does not matter; only its weight does, of --reward "gym=1.0 tags=0.5". Rewards of weight 0 are
  logged. With one reward it is GRPO with a further division by the batch's standard deviation.
- A reward that does not apply to a completion (`Score.not_applicable`) is left out of the group's mean and standard
  deviation, and adds 0 to that completion's advantage.
- --length-penalty changes the sum of the rewards, which is not read here: it is refused. --reward length=0.5 is read.
"""

from dataclasses import dataclass
from functools import partial

import torch

from posttrain.algorithms.algorithm import Advantages, enough_rows
from posttrain.algorithms.grpo import GRPOWithoutKL
from posttrain.algorithms.inputs import Input, NamedScores
from posttrain.algorithms.rollout import Rollout
from posttrain.objectives.advantages import applicable_normalised


@dataclass(frozen=True)
class GDPO(GRPOWithoutKL):
    """Hyperparameters of GDPO; an `OnlineAlgorithm`."""

    token_advantages = False
    paper = "2601.05242"

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The score of each reward, and the reference policy, if the loss has a KL term."""
        return (*super().inputs, NamedScores())

    def advantages(self, rollout: Rollout) -> Advantages:
        """Compare each reward with its group; raises `ValueError` without scores. The metric is `zero_advantage`."""
        enough_rows(self, rollout)
        if rollout.scores_RK is None or rollout.weights_K is None:
            raise ValueError("GDPO needs the scores by name, scores_RK and weights_K; one of them is None")
        normalised = partial(applicable_normalised, epsilon=self.std_epsilon)
        compared = [rollout.compare(scores_R, normalised) for scores_R in rollout.scores_RK.unbind(1)]
        total_R = torch.stack(compared, dim=1) @ rollout.weights_K
        dead_P = rollout.per_group(total_R, lambda total_PG: (total_PG == 0).all(dim=-1))
        metrics = {"zero_advantage": dead_P.to(total_R.dtype).mean().item()}
        return Advantages(rollout.per_token(total_R / (total_R.std() + self.std_epsilon)), metrics)
