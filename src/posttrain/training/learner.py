"""How an algorithm learns from its kind of feedback: what a recipe needs to know of it, and no more."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from posttrain.algorithms.algorithm import PreferenceAlgorithm, UnpairedAlgorithm
from posttrain.algorithms.inputs import ReferenceDivergence, declared
from posttrain.data.packing import Judged, Pair
from posttrain.models.language_model import LanguageModel
from posttrain.training.feedback import JUDGEMENTS, PAIRS, Feedback
from posttrain.training.inputs.context import Reference
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.pairwise import pairwise_loss, pairwise_step, preference_loss
from posttrain.training.unpaired import unpaired_loss, unpaired_step


@dataclass(frozen=True)
class Learner:
    """One update on units of feedback, and their judgement without training."""

    step: Callable[[Sequence[Any], float], dict[str, float]]  # units and the learning rate to metrics
    judge: Callable[[Sequence[Any]], dict[str, float]]


def feedback_for(algorithm: PreferenceAlgorithm | UnpairedAlgorithm) -> Feedback[Any, Any]:
    """What an algorithm learns from."""
    return JUDGEMENTS if algorithm.unit == "response" else PAIRS


def needs_only_logprobs(algorithm: PreferenceAlgorithm | UnpairedAlgorithm) -> bool:
    """Whether of a reference nothing is needed but logprobs of the responses, which can be taken before training."""
    return isinstance(algorithm, PreferenceAlgorithm) and declared(algorithm, ReferenceDivergence) is None


def learner_for(
    algorithm: PreferenceAlgorithm | UnpairedAlgorithm,
    model: LanguageModel,
    optimizer: MasterAdamW,
    reference: Reference | None,
    *,
    microbatch_tokens: int,
) -> Learner:
    """How it learns."""
    if isinstance(algorithm, UnpairedAlgorithm):
        assert reference is not None, "an unpaired algorithm compares with a reference"
        return _unpaired(algorithm, model, optimizer, reference, microbatch_tokens)
    loss_of = preference_loss(model, algorithm, reference)

    def step(pairs: Sequence[Pair], lr: float) -> dict[str, float]:
        return pairwise_step(optimizer, pairs, loss_of, lr=lr, microbatch_tokens=microbatch_tokens)

    def judge(pairs: Sequence[Pair]) -> dict[str, float]:
        return pairwise_loss(pairs, loss_of, microbatch_tokens=microbatch_tokens)

    return Learner(step, judge)


def _unpaired(
    algorithm: UnpairedAlgorithm,
    model: LanguageModel,
    optimizer: MasterAdamW,
    reference: Reference,
    microbatch_tokens: int,
) -> Learner:
    def step(units: Sequence[Sequence[Judged]], lr: float) -> dict[str, float]:
        batch = list(chain.from_iterable(units))
        return unpaired_step(model, optimizer, algorithm, reference, batch, lr=lr, microbatch_tokens=microbatch_tokens)

    def judge(units: Sequence[Sequence[Judged]]) -> dict[str, float]:
        return unpaired_loss(model, algorithm, reference, units, microbatch_tokens=microbatch_tokens)

    return Learner(step, judge)
