"""Critic and its optimiser, and the critic-only loss for warmup.

Shape letters: N sampled tokens of a micro-batch.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from posttrain.algorithms.algorithm import ActorCritic, OnlineAlgorithm
from posttrain.data.packing import PackedRow
from posttrain.models.critic import CRITICS, Critic
from posttrain.models.language_model import LanguageModel
from posttrain.options.online import RL
from posttrain.training.learner import CRITIC, Batch, Models, Share
from posttrain.training.optimizer import OPTIMIZERS, MasterAdamW


@dataclass(frozen=True)
class CriticLoss:
    """The value loss of an actor-critic algorithm; the policy gets no gradient."""

    algorithm: OnlineAlgorithm

    reaches: ClassVar[tuple[str, ...]] = (CRITIC,)
    extremes: ClassVar[tuple[str, ...]] = ()

    def of_row(self, row: PackedRow, batch: Batch, parts: Models[object]) -> Share:
        """As in `Loss`."""
        assert isinstance(self.algorithm, ActorCritic), "an algorithm without a critic"
        assert parts.critic is not None, "this learner has no critic"
        values_N = parts.critic.values_alone(row)
        old_N, returns_N = (batch.column(name, row, values_N) for name in ("values", "returns"))
        assert old_N is not None and returns_N is not None, "the batch has no values and returns"
        loss_N, per_token = self.algorithm.critic_loss(values_N, old_N, returns_N)
        length_N = batch.column("length", row, like=torch.tensor(row.rows, dtype=torch.long, device=loss_N.device))
        assert length_N is not None, "the batch has no length"
        return Share(self.algorithm.reduce(loss_N, length_N, batch.counts), per_token)


def critic_for(options: RL, model: LanguageModel) -> tuple[Critic, MasterAdamW]:
    """The critic of a policy that the options name, and the optimiser of its own parameters."""
    made = CRITICS[options.critic](model)
    optimizer = MasterAdamW(
        made.parameters(),
        weight_decay=options.weight_decay,
        max_grad_norm=options.max_grad_norm,
        moment_bits=OPTIMIZERS[options.optim],
        embedding=made.body.embedding,
        offload=options.offload_optimizer,
    )
    return made, optimizer
