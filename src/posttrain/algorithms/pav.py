"""PAV: rewards for progress under a prover policy (process advantages).

Setlur et al. 2024, eq. 2 to 5 (https://arxiv.org/abs/2410.08146).

A step of reasoning is good if it makes success likelier, for another policy than the one that took it. With Q(s_k) the
success rate of the prover mu from where step k begins, by K continuations that mu samples,

    Q(s_k) = 1/K sum_j r(continuation j of s_k by mu)
    A_it   = r_i - 1/(G - 1) sum_{j != i} r_j  +  alpha ( Q(s_{k+1}) - Q(s_k) )     for all tokens t of step k

with the completion's reward r_i in the place of Q after its last step, and

    L      = -mean_t { min(w_t A_t, clip(w_t, 1 - eps, 1 + eps) A_t) - beta D_t }

averaged over all tokens of the batch, with w the token's ratio and D the KL estimator k3 as in GRPO.

Published settings (appendix E): alpha 5 for a policy of 2B parameters and 3 for one of 9B (0.5 to 6 helped), beta
0.001, learning rate 1e-7, a batch of 32; the best prover was the 2B model before RL, for both.

What to know about it:
- `--prover MODEL` is another model, with the policy's tokenizer. Its continuations cost what VinePPO's do: K for each
  state of each completion. The run says how many when it begins.
- A prover that always succeeds, or never, sees no progress: `unchanged` is the share of tokens whose step changed
  nothing. A weaker prover than the policy may help; the policy itself (VinePPO) adds nothing to the outcome.
- The paper trains a verifier to predict Q, and names continuations in training as future work: they have no fitting
  error, and a step costs more. It has REINFORCE with a learned baseline; here the baseline is the mean of the others.

No tool is known to have it.
"""

from dataclasses import dataclass

from posttrain.algorithms.algorithm import Advantages, enough_rows, positive, unused
from posttrain.algorithms.inputs import ProverValues
from posttrain.algorithms.rollout import Rollout
from posttrain.algorithms.vineppo import VinePPO
from posttrain.objectives.advantages import leave_one_out
from posttrain.objectives.values import first_of_rows, step_gains


@dataclass(frozen=True)
class PAV(VinePPO):
    """Hyperparameters of rewards for progress; an `OnlineAlgorithm`."""

    kl_coefficient: float = 1e-3
    """Weight of the KL to the reference policy in the loss (beta); 0: no KL term, and no reference is needed."""

    progress_weight: float = 3.0
    """Weight of progress beside the outcome (alpha)."""

    values_by = ProverValues
    least_group = 2
    paper = "2410.08146"

    def __post_init__(self) -> None:
        super().__post_init__()
        unused(self, "std_epsilon")
        positive(self, "progress_weight", or_zero=True)

    def advantages(self, rollout: Rollout) -> Advantages:
        """The outcome beside the others', and the progress of the token's step.

        Metrics: `value`, the prover's mean success rate from the prompts, `progress`, the mean size of a change, and
        `unchanged`, the share of tokens whose step changed nothing. Raises `ValueError` without values and steps.
        """
        enough_rows(self, rollout)
        if rollout.values_N is None or rollout.step_N is None:
            raise ValueError(
                "progress is between states, so advantages() needs values_N and step_N; one of them is None"
            )
        progress_N = step_gains(rollout.values_N, rollout.step_N, rollout.row_N, rollout.per_token(rollout.rewards_R))
        metrics = {
            "value": rollout.values_N[first_of_rows(rollout.row_N)].mean().item(),
            "progress": progress_N.abs().mean().item(),
            "unchanged": (progress_N == 0).double().mean().item(),
        }
        outcome_R = rollout.compare(rollout.rewards_R, leave_one_out)
        return Advantages(rollout.per_token(outcome_R) + self.progress_weight * progress_N, metrics)
