"""Models that are trained beside the policy: a critic, or what else an algorithm's input declares (`TrainedModel`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from posttrain.algorithms.algorithm import OnlineAlgorithm, Tokens
from posttrain.algorithms.inputs import trained
from posttrain.data.packing import PackedRow
from posttrain.models.language_model import LanguageModel
from posttrain.models.reference import Critic, TrainedCopy
from posttrain.options.online import RL
from posttrain.training.learner import CRITIC, Batch, Learner, Loss, Models, Share
from posttrain.training.optimizer import MasterAdamW, optimizer_for
from posttrain.training.policy import OF_ADVANTAGES


@dataclass(frozen=True)
class BesideLoss(Loss[Any]):
    """The loss of a model beside the policy, alone; the policy gets no gradient."""

    algorithm: OnlineAlgorithm
    part: str = CRITIC
    temperature: float = 1.0  # of sampling

    @property
    def reaches(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """That model."""
        return (self.part,)

    def of_row(self, row: PackedRow, batch: Batch, parts: Models[Any]) -> Share:
        """As in `Loss`."""
        need, made = trained(self.algorithm)[self.part], parts.beside.get(self.part)
        assert made is not None, f"this learner has no {self.part}"
        said_N = made.values_alone(row) if need.head else made.logprobs(row, self.temperature)
        column, present = partial(batch.column, row=row, like=said_N), partial(batch.present, row=row, like=said_N)
        branch_N = torch.tensor(row.rows, dtype=torch.long, device=said_N.device)
        sampler_N = present("sampler_logprobs")
        tokens = Tokens(
            sampler_N,
            sampler_N,
            present("advantages"),
            branch_N,
            reference_N=column("reference_logprobs"),
            values_N=said_N,
            old_values_N=present(need.columns[0].removesuffix("_N")),
            sampler_N=sampler_N,
            **{name: column(name.removesuffix("_N")) for name in OF_ADVANTAGES},
        )
        loss_N, per_token = need.loss(self.algorithm, tokens)
        length_N = batch.present("length", row, branch_N)
        return Share(need.reduce(self.algorithm, loss_N, length_N, batch.counts), per_token)


def losses_beside(algorithm: OnlineAlgorithm, temperature: float, *, alone: bool) -> list[BesideLoss]:
    """The losses of models beside the policy; where these do not learn `alone`, without the critic's.

    `PolicyLoss` has that, since a critic may read the policy's states.
    """
    return [BesideLoss(algorithm, part, temperature) for part in trained(algorithm) if alone or part != CRITIC]


def models_beside(
    options: RL, algorithm: OnlineAlgorithm, model: LanguageModel
) -> dict[str, tuple[Critic | TrainedCopy, MasterAdamW]]:
    """Those models of a policy, by part, each with the optimiser of its own parameters."""
    own = options.critic == "own"
    made = {
        part: Critic(model, own=own) if need.head else TrainedCopy(model) for part, need in trained(algorithm).items()
    }
    return {
        part: (each, optimizer_for(options, each.parameters(), embedding=each.body.embedding, small=True))
        for part, each in made.items()
    }


def rates_beside(options: RL, algorithm: OnlineAlgorithm) -> dict[str, float]:
    """Their learning rates."""
    return {part: options.critic_lr if need.lr is None else need.lr for part, need in trained(algorithm).items()}


def gradients(learner: Learner, batch: Batch, losses: Sequence[Loss[Any]]) -> dict[str, float]:
    """Accumulate the gradients of losses on a batch; the first one's is the metric `loss`, others' are `PART_loss`."""
    found: dict[str, float] = {}
    for loss in losses:
        told = learner.forward_backward(batch, loss)
        if found and isinstance(loss, BesideLoss):
            told[f"{loss.part}_loss"] = told.pop("loss")
        found |= told
    return found
