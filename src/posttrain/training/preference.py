"""Preference objectives by kind of feedback, paired or unpaired."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any, Protocol

from posttrain.algorithms.algorithm import PreferenceAlgorithm, UnpairedAlgorithm
from posttrain.algorithms.inputs import ReferenceLogprobs, declared
from posttrain.data.packing import Example, Labelled, Pair
from posttrain.training.learner import REFERENCE, Batch, Column, Learner, Loss
from posttrain.training.pairwise import TOGETHER, PairwiseLoss, needs_column, pairwise_batch
from posttrain.training.unpaired import UnpairedLoss, divergence_of, unpaired_batch, unpaired_measures

ReferenceOf = Callable[[Sequence[Example]], Column]
"""The reference's logprobs of examples."""


class Objective(Protocol):
    """Turns units of feedback into batches, and computes held-out metrics."""

    @property
    def loss(self) -> Loss[Any]:
        """Of its batches."""
        ...

    def batch(self, units: Sequence[Any], *, seed: int | None = None) -> Batch:
        """The batch of one update; `seed` as in `Batch`."""
        ...

    def evaluate(self, units: Sequence[Any]) -> dict[str, float]:
        """The mean loss and metrics, without training."""
        ...


@dataclass(frozen=True)
class OfPairs:
    """Pairs of a chosen and a rejected response."""

    algorithm: PreferenceAlgorithm
    learner: Learner
    remembered: ReferenceOf | None = None  # in place of the learner's reference

    @property
    def loss(self) -> PairwiseLoss:
        """As in `Objective`."""
        return PairwiseLoss(self.algorithm)

    def batch(self, units: Sequence[Pair], *, seed: int | None = None) -> Batch:
        """As in `Objective`."""
        batch = pairwise_batch(units, seed=seed)
        if not needs_column(self.algorithm):
            return batch
        reference = self.remembered or partial(self.learner.logprobs, model=REFERENCE, together=TOGETHER)
        return pairwise_batch(units, reference=reference(batch.examples), seed=seed)

    def evaluate(self, units: Sequence[Pair]) -> dict[str, float]:
        """As in `Objective`."""
        return self.learner.forward(self.batch(units), self.loss)


@dataclass(frozen=True)
class OfResponses:
    """Single responses, each labelled good or bad; a unit is all of one row of the data."""

    algorithm: UnpairedAlgorithm
    learner: Learner
    remembered: None = None

    @property
    def loss(self) -> UnpairedLoss:
        """As in `Objective`."""
        return UnpairedLoss(self.algorithm)

    def batch(self, units: Sequence[Sequence[Labelled]], *, seed: int | None = None) -> Batch:
        """As in `Objective`."""
        judged = list(chain.from_iterable(units))
        divergence = divergence_of(self.learner, self._reference, judged)
        reference = self._reference([one.example for one in judged])
        return unpaired_batch(judged, reference=reference, divergence=divergence, seed=seed)

    def evaluate(self, units: Sequence[Sequence[Labelled]]) -> dict[str, float]:
        """As in `Objective`."""
        return unpaired_measures(self.learner, self.algorithm, units, self._reference)

    def _reference(self, examples: Sequence[Example]) -> Column:
        return self.learner.logprobs(examples, REFERENCE)


_OBJECTIVES: Mapping[str, Callable[..., Objective]] = MappingProxyType({"pair": OfPairs, "response": OfResponses})
"""By the unit that an algorithm declares."""


def objective_for(
    algorithm: PreferenceAlgorithm | UnpairedAlgorithm, learner: Learner, remembered: ReferenceOf | None = None
) -> Objective:
    """The objective of an algorithm; `remembered` reference logprobs replace the learner's reference."""
    return _OBJECTIVES[algorithm.unit](algorithm, learner, remembered)


def may_be_remembered(algorithm: PreferenceAlgorithm | UnpairedAlgorithm) -> bool:
    """Whether response logprobs, which can be precomputed, are the only input needed from a reference."""
    return algorithm.unit == "pair" and (needs_column(algorithm) or not declared(algorithm, ReferenceLogprobs))
