"""Negative log-likelihood of demonstrations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from posttrain.algorithms.algorithm import Counts, SupervisedAlgorithm
from posttrain.data.packing import Example, PackedRow
from posttrain.models.language_model import LanguageModel
from posttrain.objectives import likelihood, reduce
from posttrain.training.learner import POLICY, Batch, Models, Share


@dataclass(frozen=True)
class NLL:
    """`weight` times the mean of a loss over all learned tokens of the batch, in nats; by default of -log p."""

    weight: float = 1.0
    algorithm: SupervisedAlgorithm | None = None

    reaches: ClassVar[tuple[str, ...]] = (POLICY,)
    extremes: ClassVar[tuple[str, ...]] = ()

    def of_row(self, row: PackedRow, batch: Batch, parts: Models[LanguageModel]) -> Share:
        """As in `Loss`."""
        logprobs_N = parts.model.logprobs(row).logprobs
        loss_of = self.algorithm.loss_of_tokens if self.algorithm else likelihood.negative_log_likelihood
        loss_N = loss_of(logprobs_N)
        return Share(self.weight * reduce.token_mean(loss_N, batch.counts.tokens), {})


def supervised_batch(examples: Sequence[Example], *, seed: int | None = None) -> Batch:
    """A batch of demonstrations, or of any text with a loss mask; `seed` as in `Batch`."""
    return Batch(examples, Counts(len(examples), sum(sum(example.learned) for example in examples)), seed=seed)
