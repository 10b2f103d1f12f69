"""One step of a reward model: all pairs of a prompt's responses in one forward pass.

Shape letters: E sequences of a row or a batch, H heads, B pairs of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import NamedTuple

import torch
from torch import Tensor

from posttrain.data.packing import Example, PackedRow, Ranked, pack
from posttrain.models.heads import RewardModel
from posttrain.objectives.debias import centring, length_apart, overlap
from posttrain.objectives.pairwise import bradley_terry, wins
from posttrain.training.means import Means
from posttrain.training.microbatch import accumulate_gradients
from posttrain.training.optimizer import MasterAdamW


@dataclass(frozen=True)
class RewardLoss:
    """What a reward model learns by. Every prompt weighs the same, however many of its pairs were judged.

        L = 1/P sum_p 1/|pairs of p| sum_b 1/H sum_h v_ph ( BT(r_h(chosen_b), r_h(rejected_b); m s_b) + c C_b )

    BT is `bradley_terry`, C `centring`. For one head it is eq. 1 of Ouyang et al. 2022
    (https://arxiv.org/abs/2203.02155), all C(K, 2) pairs of a ranking at once.

    With `length` above 0 r is the sum of a head for quality and one for length, and added to L, over the whole batch:

        length ( L_L + L_O )

    as in ODIN (`length_apart`, `overlap`); the paper has 1.
    """

    label_smoothing: float = 0.0
    margin: float = 0.0  # m: times how much better the chosen one was found
    centring: float = 0.0  # c
    length: float = 0.0


class _Pairs(NamedTuple):
    """The pairs of a row or of a batch."""

    chosen_B: Tensor  # which of its sequences
    rejected_B: Tensor
    strength_B: Tensor
    weight_BH: Tensor


def reward_step(
    optimizer: MasterAdamW,
    model: RewardModel,
    units: Sequence[Ranked],
    loss: RewardLoss,
    *,
    lr: float,
    microbatch_tokens: int,
) -> dict[str, float]:
    """One update on a batch of rankings; a pair is a ranking of two."""
    learn = _apart_from_length if loss.length else _learn
    total, metrics = learn(optimizer, model, units, loss, microbatch_tokens)
    return {"loss": total, "grad_norm": optimizer.step(lr), **metrics}


def _learn(
    optimizer: MasterAdamW, model: RewardModel, units: Sequence[Ranked], loss: RewardLoss, microbatch_tokens: int
) -> tuple[float, dict[str, float]]:
    seen = Means()

    def share_of(row: PackedRow) -> Tensor:
        scores_EH = model.scores(row)
        pairs = _pairs(units, row.examples, scores_EH)
        seen.add(_measures(scores_EH, pairs))
        return _compared(scores_EH, pairs, loss).sum() / len(units)

    total = accumulate_gradients(
        optimizer, sequences_of(units), share_of, microbatch_tokens=microbatch_tokens, together=_sizes(units)
    )
    return total, seen.summary()


def _apart_from_length(
    optimizer: MasterAdamW, model: RewardModel, units: Sequence[Ranked], loss: RewardLoss, microbatch_tokens: int
) -> tuple[float, dict[str, float]]:
    """A correlation is of the whole batch, and a row has a part of it: all are scored first, and learned from then.

    The gradient of the loss by each score is known after the first pass; the second carries it on into the weights. So
    it does not depend on how the batch is cut.
    """
    examples = sequences_of(units)
    found: dict[int, Tensor] = {}
    with torch.no_grad():
        for row in pack(examples, microbatch_tokens, together=_sizes(units)):
            found |= dict(zip(row.examples, model.scores_and_length(row), strict=True))
    scores_EH = torch.stack([found[i] for i in range(len(examples))]).requires_grad_()
    quality_E, length_E = scores_EH[:, 0], scores_EH[:, 1]
    tokens_E = torch.tensor([len(e.continuation) for e in examples], dtype=scores_EH.dtype, device=scores_EH.device)
    pairs = _pairs(units, range(len(examples)), quality_E[:, None])
    ranked = _compared((quality_E + length_E)[:, None], pairs, loss).sum() / len(units)
    apart = length_apart(quality_E, length_E, tokens_E)
    (grad_EH,) = torch.autograd.grad(ranked + loss.length * apart, scores_EH)

    def angle() -> Tensor:
        assert model.length_head is not None
        return loss.length * overlap(model.head[0].float(), model.length_head[0].float())

    def share_of(row: PackedRow) -> Tensor:
        carried = (model.scores_and_length(row) * grad_EH[row.examples]).sum()
        return carried + angle() if 0 in row.examples else carried

    accumulate_gradients(optimizer, examples, share_of, microbatch_tokens=microbatch_tokens, together=_sizes(units))
    seen = Means()
    seen.add(_measures(quality_E[:, None], pairs))
    with torch.no_grad():
        total = ranked + loss.length * apart + angle()
    return total.item(), seen.summary() | {"length/apart": apart.item()}


def _compared(scores_EH: Tensor, pairs: _Pairs, loss: RewardLoss) -> Tensor:
    """What each pair costs, weighed, [B]."""
    chosen_BH, rejected_BH = scores_EH[pairs.chosen_B], scores_EH[pairs.rejected_B]
    margin_BH = (loss.margin * pairs.strength_B)[:, None].expand_as(chosen_BH)
    cost_BH = bradley_terry(chosen_BH, rejected_BH, margin_B=margin_BH, label_smoothing=loss.label_smoothing)
    if loss.centring:
        cost_BH = cost_BH + loss.centring * centring(chosen_BH, rejected_BH)
    return (cost_BH * pairs.weight_BH).mean(1)


def _pairs(units: Sequence[Ranked], examples: Sequence[int], scores_EH: Tensor) -> _Pairs:
    """The pairs of the sequences that a row has, by their places in it."""
    place = {number: at for at, number in enumerate(examples)}
    starts = list(accumulate(_sizes(units), initial=0))
    rows = [
        (place[start + chosen], place[start + rejected], strength, 1 / len(unit.pairs), unit.bag)
        for start, unit in zip(starts, units, strict=False)
        if start in place
        for chosen, rejected, strength in unit.pairs
    ]
    heads = scores_EH.shape[1]
    chosen, rejected, strength, share, bags = zip(*rows, strict=True)

    def numbers(values: Sequence[object]) -> Tensor:
        return torch.tensor(values, dtype=scores_EH.dtype, device=scores_EH.device)

    weight_BH = numbers([bag or (1.0,) * heads for bag in bags]) * numbers(share)[:, None]
    chosen_B, rejected_B = torch.tensor([chosen, rejected], device=scores_EH.device)
    return _Pairs(chosen_B, rejected_B, numbers(strength), weight_BH)


def _measures(scores_EH: Tensor, pairs: _Pairs) -> dict[str, Tensor]:
    """Worth logging of each pair, [B]: of the mean over the heads."""
    chosen_B, rejected_B = scores_EH.mean(1)[pairs.chosen_B], scores_EH.mean(1)[pairs.rejected_B]
    return {
        "score/chosen": chosen_B,
        "score/rejected": rejected_B,
        "margin": chosen_B - rejected_B,
        "accuracy": wins(chosen_B, rejected_B),
    }


def sequences_of(units: Sequence[Ranked]) -> list[Example]:
    """The responses of all rankings, one after the other."""
    return list(chain.from_iterable(unit.examples for unit in units))


def _sizes(units: Sequence[Ranked]) -> list[int]:
    return [len(unit.examples) for unit in units]
