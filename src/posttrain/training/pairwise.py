"""Loss of a batch of pairs, for any preference algorithm.

Shape letters: N learned tokens of a micro-batch, E its sequences, B its pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import torch
from torch import Tensor

from posttrain.algorithms.algorithm import Algorithm, Counts, PreferenceAlgorithm, Responses
from posttrain.algorithms.inputs import ReferenceDivergence, ReferenceLogprobs, declared
from posttrain.data.packing import Example, PackedRow, Pair
from posttrain.models.language_model import LanguageModel
from posttrain.models.logprobs import token_divergence, token_logprobs
from posttrain.models.reference import Reference
from posttrain.objectives import reduce
from posttrain.training.learner import POLICY, Batch, Column, Models, Share
from posttrain.training.sequence_logprobs import responses_of

TOGETHER = len(Pair._fields)

Both = tuple[Responses, Responses]
"""The chosen and the rejected response of each pair of a row."""


@dataclass(frozen=True)
class PairwiseLoss:
    """The mean over pairs of a preference algorithm's losses, on a batch of `pairwise_batch`."""

    algorithm: PreferenceAlgorithm

    reaches: ClassVar[tuple[str, ...]] = (POLICY,)
    extremes: ClassVar[tuple[str, ...]] = ()

    def of_row(self, row: PackedRow, batch: Batch, parts: Models[LanguageModel]) -> Share:
        """As in `Loss`."""
        if declared(self.algorithm, ReferenceDivergence):
            assert parts.reference is not None, "a divergence needs more than the logprobs of the tokens"
            policy, anchor = _with_divergence(parts.model, parts.reference, row)
        else:
            logprobs_N = parts.model.logprobs(row).logprobs
            reference_N = batch.column("reference_logprobs", row, logprobs_N)
            policy = _both(responses_of(logprobs_N, row))
            anchor = None if reference_N is None else _both(responses_of(reference_N, row))
        found = self.algorithm.loss(*policy, reference=anchor)
        chosen, rejected = policy
        seen = {"logprob/chosen": chosen.logprob_B, "logprob/rejected": rejected.logprob_B}
        lengths = {"length/chosen": chosen.length_B, "length/rejected": rejected.length_B}
        loss = reduce.pair_mean(found.loss_B, batch.counts.sequences // TOGETHER)
        return Share(loss, {**found.metrics, **seen, **lengths})


def pairwise_batch(pairs: Sequence[Pair], *, reference: Column | None = None, seed: int | None = None) -> Batch:
    """A batch of pairs, with reference logprobs if the algorithm needs them; `seed` as in `Batch`."""
    examples = examples_of(pairs)
    counts = Counts(len(examples), sum(sum(example.learned) for example in examples))
    tokens = {} if reference is None else {"reference_logprobs": reference}
    return Batch(examples, counts, TOGETHER, tokens, seed=seed)


def needs_column(algorithm: Algorithm) -> bool:
    """Whether response logprobs are the only input needed from a reference."""
    return bool(declared(algorithm, ReferenceLogprobs)) and not declared(algorithm, ReferenceDivergence)


def examples_of(pairs: Sequence[Pair]) -> list[Example]:
    """The sequences of pairs: chosen, rejected, chosen, and so on."""
    return list(chain.from_iterable(pairs))


def _both(responses: Responses) -> Both:
    """Split a row's alternating responses into chosen and rejected ones."""
    columns = [(None, None) if x_E is None else x_E.view(-1, 2).unbind(1) for x_E in responses]
    chosen, rejected = (Responses(*side) for side in zip(*columns, strict=True))
    return chosen, rejected


def _with_divergence(model: LanguageModel, reference: Reference, row: PackedRow) -> tuple[Both, Both]:
    """Both responses under the policy, with their sequential KL, and under the reference."""
    states, targets = model.learned_states(row), model.ids(row.targets)
    given = reference.predictions(row)

    def logprobs(states: Tensor, head: Tensor) -> Tensor:
        return token_logprobs(states, head, targets, readout=model.readout).logprobs

    policy_N = logprobs(states, model.head)
    with torch.no_grad():
        anchor_N = logprobs(given.states, given.head)
    divergence_N = token_divergence(states, model.head, *given, model.readout)
    return _both(responses_of(policy_N, row, divergence_N)), _both(responses_of(anchor_N, row))
