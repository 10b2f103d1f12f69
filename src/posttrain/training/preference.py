"""Preference algorithms: pairs and their loss; single responses are in unpaired.py.

Shape letters: N learned tokens of a micro-batch, E its sequences, B its pairs.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations
from types import MappingProxyType

import torch
from torch import Tensor

from posttrain.algorithms.algorithm import Algorithm, PreferenceAlgorithm, Responses, UnpairedAlgorithm
from posttrain.algorithms.inputs import ReferenceDivergence, ReferenceLogprobs, declared
from posttrain.data.packing import Example, PackedRow, Pair, pack
from posttrain.models.language_model import LanguageModel
from posttrain.models.logprobs import token_divergence, token_logprobs
from posttrain.models.reference import Reference
from posttrain.objectives import reduce
from posttrain.training.learner import REFERENCE, Batch, Column, Learner, Loss, Models, Share, counts_of
from posttrain.training.policy import example_of
from posttrain.training.unpaired import OfResponses, ReferenceOf, responses_of
from posttrain.types import Group

TOGETHER = len(Pair._fields)
Both = tuple[Responses, Responses]  # the chosen and the rejected response of each pair of a row


def best_worst(rewards: Sequence[float]) -> list[tuple[int, int]]:
    """The completions of highest and of lowest reward; ties go to the first."""
    places = range(len(rewards))
    return [(max(places, key=lambda i: rewards[i]), min(places, key=lambda i: rewards[i]))]


def every_pair(rewards: Sequence[float]) -> list[tuple[int, int]]:
    """All pairs with unequal rewards."""
    return [(i, j) if rewards[i] > rewards[j] else (j, i) for i, j in combinations(range(len(rewards)), 2)]


PAIRINGS: Mapping[str, Callable[[Sequence[float]], list[tuple[int, int]]]] = MappingProxyType(
    {"best-worst": best_worst, "all": every_pair}
)
"""By the name that a configuration gives: from the rewards of a group to (chosen, rejected)."""


def pairs_of(groups: Sequence[Group], pairing: str, *, margin: float = 0.0) -> list[Pair]:
    """The pairs of every group, with the tokens exactly as they were sampled, by a name in `PAIRINGS`.

    Two rows make a pair where one seat was asked the same: what it is first shown may depend on other seats. Pairs of
    equal rewards, and of rewards less than `margin` apart, are left out.
    """
    found: list[Pair] = []
    for group in groups:
        examples = [example_of(row.trajectory) for row in group.rows]
        alike: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        for place, (row, example) in enumerate(zip(group.rows, examples, strict=True)):
            alike.setdefault((row.seat, tuple(example.prefix)), []).append(place)
        for places in alike.values():
            for better, worse in PAIRINGS[pairing]([group.rows[place].reward for place in places]):
                chosen, rejected = places[better], places[worse]
                apart = group.rows[chosen].reward - group.rows[rejected].reward
                if apart > 0 and apart >= margin:
                    found.append(Pair(examples[chosen], examples[rejected]))
    return found


def examples_of(pairs: Sequence[Pair]) -> list[Example]:
    """The sequences of pairs: chosen, rejected, chosen, and so on."""
    return list(chain.from_iterable(pairs))


@dataclass(frozen=True)
class PairwiseLoss(Loss[LanguageModel]):
    """The mean over pairs of a preference algorithm's losses."""

    algorithm: PreferenceAlgorithm

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


def _both(responses: Responses) -> Both:
    """Split a row's alternating responses into chosen and rejected ones."""
    columns = [(None, None) if x_E is None else x_E.view(-1, 2).unbind(1) for x_E in responses]
    chosen, rejected = (Responses(*side) for side in zip(*columns, strict=True))
    return chosen, rejected


def _with_divergence(model: LanguageModel, reference: Reference, row: PackedRow) -> tuple[Both, Both]:
    """Both responses under the policy, with their sequential KL, and under the reference."""
    states, targets = model.learned_states(row), model.ids(row.targets)
    given, head = reference.predictions(row)

    def logprobs(states: Tensor, head: Tensor) -> Tensor:
        return token_logprobs(states, head, targets, readout=model.readout).logprobs

    policy_N = logprobs(states, model.head)
    with torch.no_grad():
        anchor_N = logprobs(given, head)
    divergence_N = token_divergence(states, model.head, given, head, model.readout)
    return _both(responses_of(policy_N, row, divergence_N)), _both(responses_of(anchor_N, row))


@dataclass(frozen=True)
class OfPairs:
    """Turns pairs of a chosen and a rejected response into batches, and computes held-out metrics."""

    algorithm: PreferenceAlgorithm
    learner: Learner
    remembered: ReferenceOf | None = None  # in place of the learner's reference

    @property
    def loss(self) -> PairwiseLoss:
        """Of its batches."""
        return PairwiseLoss(self.algorithm)

    def batch(self, units: Sequence[Pair], *, seed: int | None = None) -> Batch:
        """The batch of one update, with reference logprobs if the algorithm needs them; `seed` as in `Batch`."""
        examples, tokens = examples_of(units), dict[str, Column]()
        if needs_column(self.algorithm):
            reference = self.remembered or partial(self.learner.logprobs, model=REFERENCE, together=TOGETHER)
            tokens["reference_logprobs"] = reference(examples)
        return Batch(examples, counts_of(examples), TOGETHER, tokens, seed=seed)

    def evaluate(self, units: Sequence[Pair]) -> dict[str, float]:
        """The mean loss and metrics, without training."""
        return self.learner.forward(self.batch(units), self.loss)


Objective = OfPairs | OfResponses


def objective_for(
    algorithm: PreferenceAlgorithm | UnpairedAlgorithm, learner: Learner, remembered: ReferenceOf | None = None
) -> Objective:
    """The objective of an algorithm; `remembered` reference logprobs replace the learner's reference."""
    if isinstance(algorithm, UnpairedAlgorithm):
        return OfResponses(algorithm, learner)
    return OfPairs(algorithm, learner, remembered)


def needs_column(algorithm: Algorithm) -> bool:
    """Whether response logprobs are the only input needed from a reference."""
    return bool(declared(algorithm, ReferenceLogprobs)) and not declared(algorithm, ReferenceDivergence)


def may_be_remembered(algorithm: PreferenceAlgorithm | UnpairedAlgorithm) -> bool:
    """Whether response logprobs, which can be precomputed, are the only input needed from a reference."""
    return algorithm.unit == "pair" and (needs_column(algorithm) or not declared(algorithm, ReferenceLogprobs))


def remember(
    learner: Learner,
    batches: Iterable[Sequence[Example]],
    *,
    microbatch_tokens: int,
    together: int = TOGETHER,
    on_batch: Callable[[int], None] = lambda done: None,
) -> ReferenceOf:
    """Precompute the reference logprobs of all pairs with a learner's current policy: no second model in memory.

    The batches are those of training, in order, so that rows are packed identically and the results do not depend on
    where a run is resumed. A repeated sequence is computed once; a row of only cached sequences is skipped. The policy
    must not have been updated yet; `on_batch` is called with the number of finished batches.
    """
    kept: dict[tuple[tuple[int, ...], int], Sequence[float]] = {}
    for done, batch in enumerate(batches, 1):
        for row in pack(batch, microbatch_tokens, together=together):
            examples = [batch[number] for number in row.examples]
            if any(_key(example) not in kept for example in examples):
                for example, found in zip(examples, learner.logprobs(examples, together=together), strict=True):
                    kept.setdefault(_key(example), array("d", found))
        on_batch(done)
    return lambda examples: [kept[_key(example)] for example in examples]


def _key(example: Example) -> tuple[tuple[int, ...], int]:
    return (*example.prefix, *example.continuation), sum(example.learned)
