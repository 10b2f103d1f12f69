"""Loss of attribute heads on partial ratings.

Shape letters: E sequences, K attributes, D hidden width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from posttrain.algorithms.algorithm import Counts
from posttrain.data.packing import Example, Graded, PackedRow, pack
from posttrain.models.attributes import AttributeModel, RatingScale, Reading
from posttrain.objectives.attributes import rating_error
from posttrain.training.learner import POLICY, Batch, Models, Share


@dataclass(frozen=True)
class RatingLoss:
    """The mean over responses of `rating_error`, in units of each attribute's spread.

    An error of 1 is that of a constant prediction of the mean.
    """

    reaches: ClassVar[tuple[str, ...]] = (POLICY,)
    extremes: ClassVar[tuple[str, ...]] = ()

    def of_row(self, row: PackedRow, batch: Batch, parts: Models[AttributeModel]) -> Share:
        """As in `Loss`."""
        predicted_EK, units = parts.model.read(row).attributes_EK, parts.model.units
        graded = [batch.units["graded"][number] for number in row.examples]
        rated_EK, known_EK = standard(units, graded, like=predicted_EK)
        error_E = rating_error(predicted_EK, rated_EK, known_EK)
        squared_EK = (predicted_EK - rated_EK).square()
        each = zip(units.names, squared_EK.T, known_EK.T, strict=True)
        seen = {f"error/{name}": squared_E[known_E] for name, squared_E, known_E in each}
        return Share(error_E.sum() / batch.counts.sequences, seen)


def rated_batch(graded: Sequence[Graded], *, seed: int | None = None) -> Batch:
    """Rated responses; `seed` as in `Batch`."""
    examples = [one.example for one in graded]
    return Batch(examples, Counts(len(examples), 0), units={"graded": graded}, seed=seed)


def standard(units: RatingScale, graded: Sequence[Graded], *, like: Tensor) -> tuple[Tensor, Tensor]:
    """Standardised ratings and their mask, [E, K] each."""
    rows = [
        [
            (one.ratings[name] - mean) / spread if name in one.ratings else math.nan
            for name, mean, spread in zip(*units, strict=True)
        ]
        for one in graded
    ]
    rated_EK = like.new_tensor(rows)
    return rated_EK, ~rated_EK.isnan()


@torch.no_grad()
def read_all(model: AttributeModel, examples: Sequence[Example], *, microbatch_tokens: int) -> Reading:
    """The trunk's hidden state of each, in order, in float32 or wider."""
    found: dict[int, tuple[Tensor, Tensor]] = {}
    for row in pack(examples, microbatch_tokens):
        prompts_ED, attributes_EK = model.read(row)
        found |= dict(
            zip(row.examples, zip(prompts_ED.to(attributes_EK.dtype), attributes_EK, strict=True), strict=True)
        )
    prompts, attributes = zip(*(found[i] for i in range(len(examples))), strict=True)
    return Reading(torch.stack(prompts), torch.stack(attributes))
