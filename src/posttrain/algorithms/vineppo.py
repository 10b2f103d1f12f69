"""VinePPO: PPO with Monte Carlo value estimates instead of a critic.

Kazemnejad et al. 2024, section 4 (https://arxiv.org/abs/2410.01679).

A language model can be reset to any state: from the beginning of each reasoning step s_k of a completion, K
continuations are sampled, and their mean reward is the value of the state,

    V(s_k) = 1/K sum_j r(continuation j of s_k)
    A_t    = V(s_{k+1}) - V(s_k)   for all tokens t of step k,   r(q, o) in the place of V after the last step

whitened over the batch (mean 0, standard deviation 1), and

    L = -mean_t { min(w_t A_t, clip(w_t, 1 - eps, 1 + eps) A_t) - beta D_t }

averaged over all tokens of the batch, with w the token's ratio and D the KL estimator k3 as in GRPO.

Published settings (the authors' code): K 9, beta 1e-4, eps 0.2, at most 25 steps of a GSM8K solution, two passes over
512 completions in updates of 64, learning rate 1e-6.

What to know about it:
- Unbiased, without a second model, at the cost of K continuations of each state, which have no loss.
- A step is a line, or `--step-tokens` tokens. Lines beyond the first `--max-states` are one step.
- The authors' beta multiplies the sum of D over a completion's tokens, at most 10 each; here it is their mean, as in
  GRPO, so 1e-4 is a weaker constraint here. They normalise over each micro-batch, here over the whole batch.
- Identical states, such as the initial state of a prompt's completions, are continued only once.

No other tool is known to have it.
"""

from dataclasses import dataclass
from typing import ClassVar

from posttrain import errors
from posttrain.algorithms.algorithm import Advantages, OnlineAlgorithm
from posttrain.algorithms.grpo import GRPO
from posttrain.algorithms.inputs import Input, StateValues
from posttrain.algorithms.rollout import Rollout
from posttrain.objectives.advantages import batch_normalised
from posttrain.objectives.values import first_of_rows, step_gains


@dataclass(frozen=True)
class VinePPO(GRPO):
    """Hyperparameters of VinePPO; an `OnlineAlgorithm`."""

    kl_coefficient: float = 1e-4
    """Weight of the KL to the reference policy in the loss (beta); 0: no KL term, and no reference is needed."""

    continuations: int = 9
    """Number of continuations sampled from each state (K)."""

    step_tokens: int = 0
    """Tokens of a step; 0: a step is a line."""

    max_states: int = 25
    """Maximum number of states per completion to sample continuations from, the initial state included."""

    values_by: ClassVar[type[StateValues]] = StateValues
    token_advantages = False
    least_group = 1
    paper = "2410.01679"

    def __post_init__(self) -> None:
        super().__post_init__()
        for knob, least in (("continuations", 1), ("step_tokens", 0), ("max_states", 1)):
            if getattr(self, knob) < least:
                raise errors.UserError(f"{knob} must be {least} or more; got {getattr(self, knob)}")

    @property
    def inputs(self) -> tuple[Input, ...]:
        """GRPO's, and the values of states."""
        return (*super().inputs, self.values_by(self.continuations, self.step_tokens, self.max_states))

    def advantages(self, rollout: Rollout) -> Advantages:
        """The whitened change of value over each step.

        Metrics: `value`, the mean value of the initial states, and `unchanged`, the share of tokens whose step did
        not change the value. Raises `ValueError` without values and steps.
        """
        if rollout.values_N is None or rollout.step_N is None:
            raise ValueError("VinePPO compares states, so advantages() needs values_N and step_N; one of them is None")
        gains_N = step_gains(rollout.values_N, rollout.step_N, rollout.row_N, rollout.per_token(rollout.rewards_R))
        metrics = {
            "value": rollout.values_N[first_of_rows(rollout.row_N)].mean().item(),
            "unchanged": (gains_N == 0).double().mean().item(),
        }
        return Advantages(batch_normalised(gains_N, epsilon=self.std_epsilon), metrics)

    reduce = OnlineAlgorithm.reduce  # the mean over all tokens of the batch
