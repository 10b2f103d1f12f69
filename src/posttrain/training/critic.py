"""A critic with its own optimiser, and how it learns alone.

Shape letters: N sampled tokens of a micro-batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.algorithms.algorithm import ActorCritic, OnlineAlgorithm
from posttrain.data.packing import PackedRow
from posttrain.models.critic import Critic
from posttrain.training.means import Means
from posttrain.training.microbatch import accumulate_gradients
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.policy_batch import PolicyBatch, of_row


@dataclass(frozen=True)
class TrainedCritic:
    """A critic, and what updates the parameters that are its own."""

    critic: Critic
    optimizer: MasterAdamW
    lr: float


def critic_step(
    critic: TrainedCritic, algorithm: OnlineAlgorithm, batch: PolicyBatch, *, microbatch_tokens: int
) -> dict[str, float]:
    """One update of the critic's own parameters; the policy stays as it is."""
    if not batch.examples:  # every group was lost
        return {"loss": 0.0, "critic_grad_norm": 0.0}
    assert isinstance(algorithm, ActorCritic)
    assert batch.values is not None and batch.returns is not None
    before, target = batch.values, batch.returns
    seen = Means()

    def loss_of(row: PackedRow) -> Tensor:
        values_N = critic.critic.values_alone(row)
        old_N, returns_N = (of_row(column, row, values_N) for column in (before, target))
        loss_N, per_token = algorithm.critic_loss(values_N, old_N, returns_N)
        seen.add(per_token)
        return algorithm.reduce(loss_N, torch.tensor(row.rows, device=loss_N.device), batch.counts)

    loss = accumulate_gradients(critic.optimizer, batch.examples, loss_of, microbatch_tokens=microbatch_tokens)
    return {"loss": loss, "critic_grad_norm": critic.optimizer.step(critic.lr), **seen.summary()}
