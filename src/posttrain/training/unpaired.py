"""Single responses labelled good or bad (KTO): N learned tokens of a packed row, E its sequences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from statistics import fmean

import torch
from torch import Tensor

from posttrain.algorithms.algorithm import Responses, UnpairedAlgorithm
from posttrain.data.packing import Example, Labelled, PackedRow
from posttrain.models.language_model import LanguageModel
from posttrain.objectives import reduce
from posttrain.objectives.pairwise import wins
from posttrain.objectives.reduce import sequence_sum
from posttrain.training.learner import REFERENCE, Batch, Column, Learner, Loss, Means, Models, Share, counts_of

ReferenceOf = Callable[[Sequence[Example]], Column]  # the reference's logprobs of examples


def responses_of(logprobs_N: Tensor, row: PackedRow, divergence_N: Tensor | None = None) -> Responses:
    """Token logprobs summed per response of a packed row, in the order of `row.examples`: [E] each."""
    place = {number: e for e, number in enumerate(row.examples)}
    row_N = torch.tensor([place[number] for number in row.rows], dtype=torch.long, device=logprobs_N.device)
    logprob_E, length_E = (sequence_sum(x_N, row_N, len(place)) for x_N in (logprobs_N, torch.ones_like(logprobs_N)))
    return Responses(
        logprob_E, length_E, None if divergence_N is None else sequence_sum(divergence_N, row_N, len(place))
    )


@dataclass(frozen=True)
class UnpairedLoss(Loss[LanguageModel]):
    """The mean over responses of an unpaired algorithm's losses, on a batch of `OfResponses`."""

    algorithm: UnpairedAlgorithm

    def of_row(self, row: PackedRow, batch: Batch, parts: Models[LanguageModel]) -> Share:
        """As in `Loss`."""
        logprobs_N = parts.model.logprobs(row).logprobs
        reference_N = batch.present("reference_logprobs", row, logprobs_N)
        policy, anchor = responses_of(logprobs_N, row), responses_of(reference_N, row)
        good = [batch.units["good"][number] for number in row.examples]
        good_E = torch.tensor(good, device=logprobs_N.device)
        found = self.algorithm.loss_of_each(policy, good_E, reference=anchor, divergence=batch.scalars["divergence"])
        loss = reduce.pair_mean(found.loss_B, batch.counts.sequences)
        return Share(loss, {**found.metrics, **_by_verdict(policy, good_E)})


@dataclass(frozen=True)
class OfResponses:
    """Turns judged responses into batches, and computes held-out metrics; a unit is all of one row of the data."""

    algorithm: UnpairedAlgorithm
    learner: Learner

    @property
    def loss(self) -> UnpairedLoss:
        """Of its batches."""
        return UnpairedLoss(self.algorithm)

    def batch(self, units: Sequence[Sequence[Labelled]], *, seed: int | None = None) -> Batch:
        """The batch of one update, with the reference's logprobs and `divergence_of`; `seed` as in `Batch`."""
        judged = list(chain.from_iterable(units))
        examples = [one.example for one in judged]
        divergence = divergence_of(self.learner, self._reference, judged)
        return Batch(
            examples,
            counts_of(examples),
            tokens={"reference_logprobs": self._reference(examples)},
            units={"good": [one.good for one in judged]},
            scalars={"divergence": divergence},
            seed=seed,
        )

    def evaluate(self, units: Sequence[Sequence[Labelled]]) -> dict[str, float]:
        """The mean loss and metrics over responses, without training.

        Of units of a good and a bad response, `pair_accuracy` is the share in which the good one has the higher reward.
        """
        batch = list(chain.from_iterable(units))
        examples, seen = [one.example for one in batch], Means()
        divergence = divergence_of(self.learner, self._reference, batch)
        policy, anchor = (_responses(of(examples)) for of in (self.learner.logprobs, self._reference))
        good_E = torch.tensor([one.good for one in batch])
        found = self.algorithm.loss_of_each(policy, good_E, reference=anchor, divergence=divergence)
        seen.add({"loss": found.loss_B, **found.metrics, **_by_verdict(policy, good_E)})
        reward_E = self.algorithm.rewards(policy, anchor)
        first = [0, *accumulate(map(len, units))]
        pairs = [at for at, unit in zip(first, units, strict=False) if [one.good for one in unit] == [True, False]]
        better_B, worse_B = (reward_E[[at + i for at in pairs]] for i in (0, 1))
        right = {"pair_accuracy": wins(better_B, worse_B).mean().item()} if pairs else {}
        return {"divergence": divergence, **seen.summary(), **right}

    def _reference(self, examples: Sequence[Example]) -> Column:
        return self.learner.logprobs(examples, REFERENCE)


def divergence_of(learner: Learner, reference: ReferenceOf, batch: Sequence[Labelled]) -> float:
    """KTO's estimate of the KL of the policy to the reference, in nats per response, at least 0.

        z = max(0, 1/m sum_i log( pi(y_j | x_i) / pi_ref(y_j | x_i) ))

    y_j are the responses to the next prompt of the batch: of pairs, its chosen and its rejected one. Ethayarajh et al.
    2024, section 4.1 (https://arxiv.org/abs/2402.01306): a biased estimate that requires no sampling. 0 for a batch of
    one prompt. Sequences are truncated at the length of the batch's longest.
    """
    moved = _moved_on([one.example for one in batch])
    if not moved:
        return 0.0
    policy, anchor = ([sum(tokens) for tokens in column] for column in (learner.logprobs(moved), reference(moved)))
    return max(0.0, fmean(ours - theirs for ours, theirs in zip(policy, anchor, strict=True)))


def _responses(column: Column) -> Responses:
    """The sums over the tokens of each example, [E] each."""
    sums, lengths = ([of(tokens) for tokens in column] for of in (sum, len))
    return Responses(*(torch.tensor(numbers, dtype=torch.float64) for numbers in (sums, lengths)))


def _by_verdict(policy: Responses, good_E: Tensor) -> dict[str, Tensor]:
    """Logprobs and lengths of the good ones and of the bad ones."""
    sides = {"good": good_E, "bad": ~good_E}
    logprobs = {f"logprob/{side}": policy.logprob_B[of_side_E] for side, of_side_E in sides.items()}
    return logprobs | {f"length/{side}": policy.length_B[of_side_E] for side, of_side_E in sides.items()}


def _moved_on(examples: Sequence[Example]) -> list[Example]:
    """Each prompt with the responses of the next prompt of the batch: every response is used about as often."""
    longest = max(len(e.prefix) + len(e.continuation) for e in examples)
    by_prompt: dict[tuple[int, ...], list[Example]] = {}
    for example in examples:
        by_prompt.setdefault(example.prefix, []).append(example)
    prompts = list(by_prompt)
    if len(prompts) < 2:
        return []
    moved: list[Example] = []
    for prompt, following in zip(prompts, [*prompts[1:], prompts[0]], strict=True):
        others, room = by_prompt[following], longest - len(prompt)
        for number in range(len(by_prompt[prompt])):
            other = others[number % len(others)]
            moved.append(Example(prompt, other.continuation[:room], other.learned[:room]))
    return moved
