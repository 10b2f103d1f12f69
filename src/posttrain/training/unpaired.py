"""One step of learning from single responses that were each found good or bad.

Shape letters: E sequences of a packed row.
"""

from collections.abc import Sequence
from itertools import accumulate, chain
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from posttrain.algorithms.algorithm import UnpairedAlgorithm
from posttrain.data.packing import Example, Judged, PackedRow, pack
from posttrain.models.language_model import LanguageModel
from posttrain.objectives import reduce
from posttrain.objectives.pairwise import wins
from posttrain.training.inputs.context import Reference
from posttrain.training.means import Means
from posttrain.training.microbatch import accumulate_gradients
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.responses import responses_of


def unpaired_step(
    model: LanguageModel,
    optimizer: MasterAdamW,
    algorithm: UnpairedAlgorithm,
    reference: Reference,
    batch: Sequence[Judged],
    *,
    lr: float,
    microbatch_tokens: int,
) -> dict[str, float]:
    """One update on the mean over responses of their losses."""
    seen = Means()
    divergence = divergence_of(model, reference, batch, microbatch_tokens=microbatch_tokens)

    def share_of(row: PackedRow) -> Tensor:
        found = _loss(model, algorithm, reference, batch, row, divergence)
        seen.add(found.metrics)
        return reduce.pair_mean(found.loss_B, len(batch))

    loss = accumulate_gradients(optimizer, _examples(batch), share_of, microbatch_tokens=microbatch_tokens)
    return {"loss": loss, "grad_norm": optimizer.step(lr), "divergence": divergence, **seen.summary()}


@torch.inference_mode()
def unpaired_loss(
    model: LanguageModel,
    algorithm: UnpairedAlgorithm,
    reference: Reference,
    units: Sequence[Sequence[Judged]],
    *,
    microbatch_tokens: int,
) -> dict[str, float]:
    """The mean loss and metrics over responses, without training.

    Where a unit is a good response and a bad one to the same prompt, `pair_accuracy` is how often the good one's reward
    is the higher; equal ones count half.
    """
    batch = list(chain.from_iterable(units))
    seen = Means()
    rewards: dict[int, float] = {}
    divergence = divergence_of(model, reference, batch, microbatch_tokens=microbatch_tokens)
    for row in pack(_examples(batch), microbatch_tokens):
        found = _loss(model, algorithm, reference, batch, row, divergence)
        seen.add({"loss": found.loss_B, **found.metrics})
        rewards |= zip(row.examples, found.reward_B.tolist(), strict=True)
    first = [0, *accumulate(map(len, units))]
    pairs = [at for at, unit in zip(first, units, strict=False) if [judged.good for judged in unit] == [True, False]]
    better, worse = (torch.tensor([rewards[at + i] for at in pairs], dtype=torch.float64) for i in (0, 1))
    right = {"pair_accuracy": wins(better, worse).mean().item()} if pairs else {}
    return {"divergence": divergence, **seen.summary(), **right}


@torch.no_grad()
def divergence_of(
    model: LanguageModel, reference: Reference, batch: Sequence[Judged], *, microbatch_tokens: int
) -> float:
    """How far the policy is from the reference, in nats per response, and at least 0.

        z = max(0, 1/m sum_i log( pi(y_j | x_i) / pi_ref(y_j | x_i) ))

    y_j are the responses to the next prompt of the batch: of pairs, its chosen and its rejected one. Ethayarajh et al.
    2024, section 4.1 (https://arxiv.org/abs/2402.01306): a crude estimate, whose point is that it costs no sampling. 0
    for a batch of one prompt. What would be longer than the batch's longest sequence is cut there.
    """
    moved = _moved_on(_examples(batch))
    ratios: list[float] = []
    for row in pack(moved, microbatch_tokens):
        policy, anchor = (
            responses_of(logprobs_N, row).logprob_B
            for logprobs_N in (model.logprobs(row).logprobs, reference.logprobs(row, 1.0))
        )
        ratios += (policy - anchor).tolist()
    return max(0.0, fmean(ratios)) if ratios else 0.0


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


class _Found(NamedTuple):
    loss_B: Tensor
    metrics: dict[str, Tensor]
    reward_B: Tensor


def _loss(
    model: LanguageModel,
    algorithm: UnpairedAlgorithm,
    reference: Reference,
    batch: Sequence[Judged],
    row: PackedRow,
    divergence: float,
) -> _Found:
    policy = responses_of(model.logprobs(row).logprobs, row)
    anchor = responses_of(reference.logprobs(row, 1.0), row)
    good_E = torch.tensor([batch[number].good for number in row.examples], device=policy.logprob_B.device)
    found = algorithm.loss_of_each(policy, good_E, reference=anchor, divergence=divergence)
    logprobs = {"logprob/good": policy.logprob_B[good_E], "logprob/bad": policy.logprob_B[~good_E]}
    lengths = {"length/good": policy.length_B[good_E], "length/bad": policy.length_B[~good_E]}
    return _Found(found.loss_B, {**found.metrics, **logprobs, **lengths}, algorithm.rewards(policy, anchor).detach())


def _examples(batch: Sequence[Judged]) -> list[Example]:
    return [judged.example for judged in batch]
