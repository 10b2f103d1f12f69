"""Policy loss of a batch of samples, for any online algorithm, and the loss and optimiser of its critic.

Shape letters: N sampled tokens of a micro-batch.
"""

from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar

import torch
from torch import Tensor

from posttrain.algorithms.algorithm import ActorCritic, Advantages, OnlineAlgorithm, Tokens
from posttrain.data.packing import PackedRow
from posttrain.models.language_model import LanguageModel
from posttrain.models.reference import Critic
from posttrain.objectives.off_policy import importance_weights
from posttrain.options.online import RL
from posttrain.training.learner import CRITIC, POLICY, Batch, Column, Loss, Models, Share
from posttrain.training.optimizer import MasterAdamW, optimizer_for

OF_ADVANTAGES = tuple(name for name in Advantages._fields if name in Tokens._fields and name != "advantages_N")
"""Columns that an algorithm's advantages have for its loss."""


@dataclass(frozen=True)
class PolicyLoss(Loss[LanguageModel]):
    """The loss of an online algorithm on a batch of `policy_batch`.

    The ratio's denominator is the policy before the batch's first update, as the learner computes it: on the first
    update it equals the numerator, so the ratio is exactly 1. Its difference from the sampler's logprobs is logged as
    `logprob_gap`, which detects a mismatch between engine and learner.

    With an adapter's dropout on (`Batch.seed`), all updates on the batch use the same dropout mask, and the denominator
    is the policy under that mask: the ratio is still 1 on the first update, and later reflects only weight changes.
    Sampling has no dropout, so `logprob_gap` and the importance weights compare the sampler with the policy without
    dropout, which takes one more forward pass.

    Attributes:
        algorithm: whose loss it is.
        temperature: of sampling.
        tis_cap: above 0, each token's advantage is weighted by the policy before the first update over the
            sampler (`objectives.off_policy.importance_weights`), at most by this: it corrects the mismatch between
            engine and policy (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
            training"). KL and NLL terms of the loss are not weighted.
        importance: whether a weight that is outside is truncated, or masked.
        importance_level: token, product or mean; auto is token, and for algorithms with a sequence-level ratio product.
        importance_floor: the least weight that is not outside.
    """

    algorithm: OnlineAlgorithm
    temperature: float = 1.0
    tis_cap: float = 0.0
    importance: str = "truncated"
    importance_level: str = "auto"
    importance_floor: float = 0.0

    reaches: ClassVar[tuple[str, ...]] = (POLICY, CRITIC)
    extremes: ClassVar[tuple[str, ...]] = ("ratio", "logprob_gap", "importance")

    def of_row(self, row: PackedRow, batch: Batch, parts: Models[LanguageModel]) -> Share:
        """As in `Loss`."""
        model, algorithm = parts.model, self.algorithm
        states = model.learned_states(row)
        found = model.logprobs_at(states, row, self.temperature, entropy_gradient=algorithm.needs_entropy)
        old_N = parts.keep("old", row, found.logprobs.detach)
        trainer_N = parts.keep("undropped", row, lambda: self._undropped(model, row)) if model.drops else old_N

        def column(name: str) -> Tensor | None:
            return batch.column(name, row, old_N)

        def present(name: str) -> Tensor:
            return batch.present(name, row, old_N)

        branch_N = torch.tensor(row.rows, dtype=torch.long, device=old_N.device)
        gap_N = trainer_N - present("sampler_logprobs")
        advantages_N = present("advantages")
        per_token = {"entropy": found.entropy, "logprob_gap": gap_N.abs()}
        if self.tis_cap:
            level = "product" if algorithm.sequence_ratio else "token"
            weight_N, outside_N, log_N = importance_weights(
                gap_N,
                branch_N,
                level=level if self.importance_level == "auto" else self.importance_level,
                masked=self.importance == "masked",
                highest=self.tis_cap,
                lowest=self.importance_floor,
            )
            per_token |= {"importance": weight_N, "importance_capped": outside_N, "sampler_kl": -gap_N}
            per_token |= by_length(log_N.abs(), present("length"), batch.tokens["length"])
            advantages_N = advantages_N * weight_N
        tokens = Tokens(
            found.logprobs,
            old_N,
            advantages_N,
            branch_N,
            reference_N=column("reference_logprobs"),
            entropy_N=found.entropy,
            values_N=None if parts.critic is None else parts.critic.values(row, states),
            old_values_N=column("values"),
            sampler_N=present("sampler_logprobs"),
            **{name: column(name.removesuffix("_N")) for name in OF_ADVANTAGES},
        )
        loss_N, told = algorithm.loss(tokens)
        length_N = batch.present("length", row, branch_N)
        return Share(algorithm.reduce(loss_N, length_N, batch.counts), per_token | dict(told))

    @torch.no_grad()
    def _undropped(self, model: LanguageModel, row: PackedRow) -> Tensor:
        """The policy's logprobs of the row without dropout, as in sampling."""
        with model.dropping(None):
            return model.logprobs(row, self.temperature).logprobs


def by_length(log_N: Tensor, length_N: Tensor, lengths: Column) -> dict[str, Tensor]:
    """The logs of importance weights of the tokens of short and of long rows, to see whether they drift with length.

    Long is above the mean of `lengths`, those of the rows of all tokens of the batch.
    """
    long_N = length_N > fmean(length for example in lengths for length in example)
    return {"log_importance/short": log_N[~long_N], "log_importance/long": log_N[long_N]}


@dataclass(frozen=True)
class CriticLoss(Loss[Any]):
    """The value loss of an actor-critic algorithm, for warmup; the policy gets no gradient."""

    algorithm: OnlineAlgorithm

    reaches: ClassVar[tuple[str, ...]] = (CRITIC,)

    def of_row(self, row: PackedRow, batch: Batch, parts: Models[Any]) -> Share:
        """As in `Loss`."""
        assert isinstance(self.algorithm, ActorCritic), "an algorithm without a critic"
        assert parts.critic is not None, "this learner has no critic"
        values_N = parts.critic.values_alone(row)
        old_N, returns_N = (batch.present(name, row, values_N) for name in ("values", "returns"))
        loss_N, per_token = self.algorithm.critic_loss(values_N, old_N, returns_N)
        branch_N = torch.tensor(row.rows, dtype=torch.long, device=loss_N.device)
        length_N = batch.present("length", row, branch_N)
        return Share(self.algorithm.reduce(loss_N, length_N, batch.counts), per_token)


def critic_for(options: RL, model: LanguageModel) -> tuple[Critic, MasterAdamW]:
    """The critic of a policy that the options name, and the optimiser of its own parameters."""
    made = Critic(model, own=options.critic == "own")
    return made, optimizer_for(options, made.parameters(), embedding=made.body.embedding, small=True)
