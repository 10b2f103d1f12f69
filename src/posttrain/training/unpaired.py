"""Loss of single responses labelled good or bad (KTO).

Shape letters: E sequences of a packed row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from statistics import fmean
from typing import ClassVar

import torch
from torch import Tensor

from posttrain.algorithms.algorithm import Counts, Responses, UnpairedAlgorithm
from posttrain.data.packing import Example, Labelled, PackedRow
from posttrain.models.language_model import LanguageModel
from posttrain.objectives import reduce
from posttrain.objectives.pairwise import wins
from posttrain.training.learner import POLICY, Batch, Column, Learner, Models, Share
from posttrain.training.metric_means import Means
from posttrain.training.sequence_logprobs import responses_of


@dataclass(frozen=True)
class UnpairedLoss:
    """The mean over responses of an unpaired algorithm's losses, on a batch of `unpaired_batch`."""

    algorithm: UnpairedAlgorithm

    reaches: ClassVar[tuple[str, ...]] = (POLICY,)
    extremes: ClassVar[tuple[str, ...]] = ()

    def of_row(self, row: PackedRow, batch: Batch, parts: Models[LanguageModel]) -> Share:
        """As in `Loss`."""
        logprobs_N = parts.model.logprobs(row).logprobs
        reference_N = batch.column("reference_logprobs", row, logprobs_N)
        assert reference_N is not None, "an unpaired algorithm compares with a reference"
        policy, anchor = responses_of(logprobs_N, row), responses_of(reference_N, row)
        good = [batch.units["good"][number] for number in row.examples]
        good_E = torch.tensor(good, device=logprobs_N.device)
        found = self.algorithm.loss_of_each(policy, good_E, reference=anchor, divergence=batch.scalars["divergence"])
        loss = reduce.pair_mean(found.loss_B, batch.counts.sequences)
        return Share(loss, {**found.metrics, **_by_verdict(policy, good_E)})


def unpaired_batch(
    judged: Sequence[Labelled], *, reference: Column, divergence: float, seed: int | None = None
) -> Batch:
    """Judged responses with the reference's logprobs; `divergence` as in `divergence_of`, `seed` as in `Batch`."""
    examples = [one.example for one in judged]
    counts = Counts(len(examples), sum(sum(example.learned) for example in examples))
    return Batch(
        examples,
        counts,
        tokens={"reference_logprobs": reference},
        units={"good": [one.good for one in judged]},
        scalars={"divergence": divergence},
        seed=seed,
    )


def unpaired_measures(
    learner: Learner,
    algorithm: UnpairedAlgorithm,
    units: Sequence[Sequence[Labelled]],
    reference: Callable[[Sequence[Example]], Column],
) -> dict[str, float]:
    """The mean loss and metrics over responses, without training.

    If units are a good and a bad response to the same prompt, `pair_accuracy` is the fraction in which the good one has
    the higher reward; ties count half.
    """
    batch = list(chain.from_iterable(units))
    examples, seen = [one.example for one in batch], Means()
    divergence = divergence_of(learner, reference, batch)
    policy, anchor = (_responses(column) for column in (learner.logprobs(examples), reference(examples)))
    good_E = torch.tensor([one.good for one in batch])
    found = algorithm.loss_of_each(policy, good_E, reference=anchor, divergence=divergence)
    seen.add({"loss": found.loss_B, **found.metrics, **_by_verdict(policy, good_E)})
    reward_E = algorithm.rewards(policy, anchor)
    first = [0, *accumulate(map(len, units))]
    pairs = [at for at, unit in zip(first, units, strict=False) if [judged.good for judged in unit] == [True, False]]
    better_B, worse_B = (reward_E[[at + i for at in pairs]] for i in (0, 1))
    right = {"pair_accuracy": wins(better_B, worse_B).mean().item()} if pairs else {}
    return {"divergence": divergence, **seen.summary(), **right}


def divergence_of(
    learner: Learner, reference: Callable[[Sequence[Example]], Column], batch: Sequence[Labelled]
) -> float:
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
