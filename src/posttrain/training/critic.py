"""Critic-only loss, for warmup.

Shape letters: N sampled tokens of a micro-batch.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from posttrain.algorithms.algorithm import ActorCritic, OnlineAlgorithm
from posttrain.data.packing import PackedRow
from posttrain.training.learner import CRITIC, Batch, Parts, Share


@dataclass(frozen=True)
class CriticLoss:
    """The critic's part of the loss of an actor-critic algorithm; the policy gets no gradient."""

    algorithm: OnlineAlgorithm

    reaches: ClassVar[tuple[str, ...]] = (CRITIC,)
    extremes: ClassVar[tuple[str, ...]] = ()

    def of_row(self, row: PackedRow, batch: Batch, parts: Parts[object]) -> Share:
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
