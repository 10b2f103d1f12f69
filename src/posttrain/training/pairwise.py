"""One step of learning from pairs, for any preference algorithm.

Shape letters: N learned tokens of a micro-batch, E its sequences, B its pairs.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from posttrain.algorithms.algorithm import PairLoss, PreferenceAlgorithm, Responses
from posttrain.algorithms.inputs import ReferenceDivergence, declared
from posttrain.data.packing import Example, PackedRow, Pair, pack
from posttrain.models.language_model import LanguageModel
from posttrain.models.logprobs import token_divergence, token_logprobs
from posttrain.models.reference import Predictions
from posttrain.objectives import reduce
from posttrain.training.inputs.context import Reference
from posttrain.training.means import Means
from posttrain.training.microbatch import accumulate_gradients
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.responses import responses_of

PairLossOf = Callable[[PackedRow], PairLoss]
"""A packed row to the losses of its pairs, in order."""


@runtime_checkable
class WholeReference(Reference, Protocol):
    """A reference that can say what it predicts over the whole vocabulary."""

    def predictions(self, row: PackedRow) -> Predictions:
        """Of a row's learned tokens, without gradient."""
        ...


def preference_loss(
    model: LanguageModel, algorithm: PreferenceAlgorithm, reference: Reference | None = None
) -> PairLossOf:
    """What a preference algorithm makes of a row: both responses of each pair, by the policy and by the reference."""

    def loss_of(row: PackedRow) -> PairLoss:
        if declared(algorithm, ReferenceDivergence):
            assert isinstance(reference, WholeReference), "logprobs alone do not say how far two models are apart"
            policy, anchor = _with_divergence(model, reference, row)
        else:
            policy = _both(responses_of(model.logprobs(row).logprobs, row))
            anchor = None if reference is None else _both(responses_of(reference.logprobs(row, 1.0), row))
        found = algorithm.loss(*policy, reference=anchor)
        chosen, rejected = policy
        seen = {"logprob/chosen": chosen.logprob_B, "logprob/rejected": rejected.logprob_B}
        lengths = {"length/chosen": chosen.length_B, "length/rejected": rejected.length_B}
        return PairLoss(found.loss_B, {**found.metrics, **seen, **lengths})

    return loss_of


def pairwise_step(
    optimizer: MasterAdamW, pairs: Sequence[Pair], loss_of: PairLossOf, *, lr: float, microbatch_tokens: int
) -> dict[str, float]:
    """One update on the mean over pairs of their losses."""
    seen = Means()

    def share_of(row: PackedRow) -> Tensor:
        found = loss_of(row)
        seen.add(found.metrics)
        return reduce.pair_mean(found.loss_B, len(pairs))

    loss = accumulate_gradients(
        optimizer, examples_of(pairs), share_of, microbatch_tokens=microbatch_tokens, together=len(Pair._fields)
    )
    return {"loss": loss, "grad_norm": optimizer.step(lr), **seen.summary()}


@torch.inference_mode()
def pairwise_loss(pairs: Sequence[Pair], loss_of: PairLossOf, *, microbatch_tokens: int) -> dict[str, float]:
    """The mean loss and metrics over pairs, without training."""
    seen = Means()
    for row in pack(examples_of(pairs), microbatch_tokens, together=len(Pair._fields)):
        found = loss_of(row)
        seen.add({"loss": found.loss_B, **found.metrics})
    return seen.summary()


def examples_of(pairs: Sequence[Pair]) -> list[Example]:
    """The sequences of pairs: chosen, rejected, chosen, and so on."""
    return list(chain.from_iterable(pairs))


Both = tuple[Responses, Responses]
"""The chosen and the rejected response of each pair of a row."""


def _both(responses: Responses) -> Both:
    """Chosen and rejected ones, which follow each other in a row."""
    columns = [(None, None) if x_E is None else x_E.view(-1, 2).unbind(1) for x_E in responses]
    chosen, rejected = (Responses(*side) for side in zip(*columns, strict=True))
    return chosen, rejected


def _with_divergence(model: LanguageModel, reference: WholeReference, row: PackedRow) -> tuple[Both, Both]:
    """Both responses by the policy, with how far it is from the reference along the way, and by the reference."""
    states, targets = model.learned_states(row), model.ids(row.targets)
    given = reference.predictions(row)
    policy_N = token_logprobs(states, model.head, targets, readout=model.readout).logprobs
    with torch.no_grad():
        anchor_N = token_logprobs(given.states, given.head, targets, readout=model.readout).logprobs
    divergence_N = token_divergence(states, model.head, *given, model.readout)
    return _both(responses_of(policy_N, row, divergence_N)), _both(responses_of(anchor_N, row))
