"""GRPO with a bucketed baseline: rewards are normalised over all completions of the same kind of prompt.

    A_i = (r_i - mean(r of the bucket)) / std(r of the bucket)

and the rest as in GRPO (Shao et al. 2024, eq. 3, https://arxiv.org/abs/2402.03300). A bucket is the completions of all
prompts of one kind in the batch, such as arithmetic or algebra: the field `kind` of a task. Tasks without one are all
of one kind. Where an episode has several seats, each has separate buckets.

Settings: those of GRPO; the original implementation clips at 0.2, monitors that the KL stays below 0.08, and makes
three updates a batch.

What to know about it:
- A group that is all right or all wrong still has an advantage, relative to the mean of its kind, so groups may be
  small, even of one; but prompts easier than their kind's mean get positive advantages, a variance that a per-prompt
  baseline does not have.

No tool is known to have it by this name.
"""

from dataclasses import dataclass

from posttrain.algorithms.algorithm import Advantages
from posttrain.algorithms.grpo import GRPO
from posttrain.algorithms.inputs import Input, PromptKinds
from posttrain.algorithms.rollout import Rollout
from posttrain.objectives.advantages import bucket_normalised


@dataclass(frozen=True)
class BucketedGRPO(GRPO):
    """Hyperparameters of GRPO with a bucketed baseline; an `OnlineAlgorithm`."""

    token_advantages = False
    least_group = 1

    @property
    def inputs(self) -> tuple[Input, ...]:
        """GRPO's, and the kinds of prompts."""
        return (*super().inputs, PromptKinds())

    def advantages(self, rollout: Rollout) -> Advantages:
        """Normalise by kind of prompt and seat.

        Metrics: `kinds`, the number of kinds, and `zero_advantage`, the share of groups with zero advantages.
        """
        kinds = rollout.kinds_R or ("",) * len(rollout.rewards_R)
        buckets = list(zip(kinds, rollout.seats, strict=True))
        advantages_R = bucket_normalised(rollout.rewards_R, buckets, epsilon=self.std_epsilon)
        dead_P = rollout.per_group(advantages_R, lambda advantages_PG: (advantages_PG == 0).all(dim=-1))
        metrics = {"kinds": float(len(set(kinds))), "zero_advantage": dead_P.double().mean().item()}
        return Advantages(rollout.per_token(advantages_R), metrics)
