"""Losses of reward models: on rankings, all pairs of a prompt in one forward pass; on labelled steps.

Shape letters: E sequences of a row or a batch, H heads, B pairs of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import NamedTuple

import torch
from torch import Tensor

from posttrain.algorithms.algorithm import Counts
from posttrain.data.packing import Example, PackedRow, Ranked, Stepwise
from posttrain.models.heads import RewardModel, StepModel
from posttrain.objectives.pairwise import bradley_terry, wins
from posttrain.objectives.reward_models import centring, length_apart, overlap, step_correctness
from posttrain.training.learner import Batch, Learner, Loss, Means, Models, Share


@dataclass(frozen=True)
class RewardLoss(Loss[RewardModel]):
    """The loss of a reward model. Every prompt has equal weight, independent of its number of pairs.

        L = 1/P sum_p 1/|pairs of p| sum_b 1/H sum_h v_ph ( BT(r_h(chosen_b), r_h(rejected_b); m s_b) + c C_b )

    BT is `bradley_terry`, C `centring`. For one head it is eq. 1 of Ouyang et al. 2022
    (https://arxiv.org/abs/2203.02155), all C(K, 2) pairs of a ranking at once.

    With `length` above 0 r is the sum of a head for quality and one for length, and added to L, over the whole batch:

        length ( L_L + L_O )

    as in ODIN (`length_apart`, `overlap`); the paper has 1.
    """

    label_smoothing: float = 0.0
    margin: float = 0.0  # m: multiplied by the preference strength
    center_rewards: float = 0.0  # c
    length: float = 0.0

    def of_row(self, row: PackedRow, batch: Batch, parts: Models[RewardModel]) -> Share:
        """As in `Loss`, without the term of length, which is of the whole batch (`reward_gradient`)."""
        scores_EH, units = parts.model.scores(row), batch.units["ranked"]
        pairs = _pairs(units, row.examples, scores_EH)
        return Share(_compared(scores_EH, pairs, self).sum() / len(units), _measures(scores_EH, pairs))


class _Pairs(NamedTuple):
    chosen_B: Tensor  # which of its sequences
    rejected_B: Tensor
    strength_B: Tensor
    weight_BH: Tensor


@dataclass(frozen=True)
class ScoreGradient(Loss[RewardModel]):
    """A loss that is linear in the scores, to backpropagate precomputed gradients of the scores into the weights.

        L = sum_e g_e . (r_e, l_e) + overlap_weight O(w_r, w_l)

    O is the `overlap` of the rows for quality and for length.
    """

    overlap_weight: float

    def of_row(self, row: PackedRow, batch: Batch, parts: Models[RewardModel]) -> Share:
        """As in `Loss`; the overlap belongs to the row of the first example."""
        found_EH = parts.model.scores_and_length(row)
        gradient = [batch.units["gradient"][number] for number in row.examples]
        carried = (found_EH * found_EH.new_tensor(gradient)).sum()
        if 0 not in row.examples:
            return Share(carried, {})
        assert parts.model.length_head is not None, "this reward model has no length head"
        angle = overlap(parts.model.head[0].float(), parts.model.length_head[0].float())
        return Share(carried + self.overlap_weight * angle, {"length/overlap": angle.detach()[None]})


@dataclass(frozen=True)
class StepLoss(Loss[StepModel]):
    """The mean of `step_correctness` over the labelled steps of a batch, each of which has equal weight."""

    def of_row(self, row: PackedRow, batch: Batch, parts: Models[StepModel]) -> Share:
        """As in `Loss`."""
        logits_S = parts.model.logits(row)
        labels = [label for number in row.examples for label in batch.units["steps"][number].right]
        right_S = torch.tensor(labels, dtype=logits_S.dtype, device=logits_S.device)
        cost_S = step_correctness(logits_S, right_S)
        return Share(cost_S.sum() / batch.counts.tokens, {"accuracy": ((logits_S > 0) == (right_S > 0.5)).float()})


def step_batch(units: Sequence[Stepwise], *, seed: int | None = None) -> Batch:
    """Labelled reasonings; `seed` as in `Batch`."""
    counts = Counts(len(units), sum(len(unit.right) for unit in units))
    return Batch([unit.example for unit in units], counts, units={"steps": units}, seed=seed)


def reward_gradient(
    learner: Learner, units: Sequence[Ranked], loss: RewardLoss, *, seed: int | None = None
) -> dict[str, float]:
    """Add the gradient of a batch of rankings; the loss and metrics. `seed` as in `Batch`.

    The correlation of `loss.length` is over the whole batch, of which a row is a part, so there are two passes: the
    first scores all rows and computes the gradient of the loss by each score, the second backpropagates it into the
    weights. So the result is independent of the micro-batch split. Both passes use the same dropout masks.
    """
    examples = sequences_of(units)
    sizes = [len(unit.examples) for unit in units]
    batch = Batch(examples, Counts(len(examples), 0), sizes, units={"ranked": units}, seed=seed)
    if not loss.length:
        return learner.forward_backward(batch, loss)
    scores_EH = torch.tensor(learner.scores(batch.examples, seed=seed), dtype=torch.float64, requires_grad=True)
    quality_E, length_E = scores_EH[:, 0], scores_EH[:, 1]
    tokens_E = torch.tensor([len(e.continuation) for e in examples], dtype=scores_EH.dtype)
    pairs = _pairs(units, range(len(examples)), quality_E[:, None])
    ranked = _compared((quality_E + length_E)[:, None], pairs, loss).sum() / len(units)
    apart = length_apart(quality_E, length_E, tokens_E)
    (grad_EH,) = torch.autograd.grad(ranked + loss.length * apart, scores_EH)
    carried = replace(batch, together=1, units={"gradient": grad_EH.tolist()})
    angle = learner.forward_backward(carried, ScoreGradient(loss.length))["length/overlap"]
    seen = Means()
    seen.add(_measures(quality_E[:, None].detach(), pairs))
    total = ranked.item() + loss.length * (apart.item() + angle)
    return {"loss": total, **seen.summary(), "length/apart": apart.item(), "length/overlap": angle}


def _compared(scores_EH: Tensor, pairs: _Pairs, loss: RewardLoss) -> Tensor:
    """The weighted loss of each pair, [B]."""
    chosen_BH, rejected_BH = scores_EH[pairs.chosen_B], scores_EH[pairs.rejected_B]
    margin_BH = (loss.margin * pairs.strength_B)[:, None].expand_as(chosen_BH)
    cost_BH = bradley_terry(chosen_BH, rejected_BH, margin_B=margin_BH, label_smoothing=loss.label_smoothing)
    if loss.center_rewards:
        cost_BH = cost_BH + loss.center_rewards * centring(chosen_BH, rejected_BH)
    return (cost_BH * pairs.weight_BH).mean(1)


def _pairs(units: Sequence[Ranked], examples: Sequence[int], scores_EH: Tensor) -> _Pairs:
    """The pairs of the sequences that a row has, by their places in it."""
    place = {number: at for at, number in enumerate(examples)}
    starts = list(accumulate((len(unit.examples) for unit in units), initial=0))
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
    """Metrics of each pair, [B], from the mean over the heads."""
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
