"""One step of attribute heads: the ratings of single responses, as far as there are any.

Shape letters: E sequences, K attributes, D hidden width.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from posttrain.data.packing import Example, Graded, PackedRow, pack
from posttrain.models.attributes import AttributeModel, Reading, Units
from posttrain.objectives.attributes import rating_error
from posttrain.training.means import Means
from posttrain.training.microbatch import accumulate_gradients
from posttrain.training.optimizer import MasterAdamW


def rating_step(
    optimizer: MasterAdamW, model: AttributeModel, units: Sequence[Graded], *, lr: float, microbatch_tokens: int
) -> dict[str, float]:
    """One update on the mean over responses of `rating_error`, in units of each attribute's spread.

    An error of 1 is that of somebody who always says the mean.
    """
    seen = Means()

    def share_of(row: PackedRow) -> Tensor:
        predicted_EK = model.read(row).attributes_EK
        rated_EK, known_EK = standard(model.units, [units[i] for i in row.examples], like=predicted_EK)
        error_E = rating_error(predicted_EK, rated_EK, known_EK)
        squared_EK = (predicted_EK - rated_EK).square()
        each = zip(model.units.names, squared_EK.T, known_EK.T, strict=True)
        seen.add({f"error/{name}": squared_E[known_E] for name, squared_E, known_E in each})
        return error_E.sum() / len(units)

    examples = [unit.example for unit in units]
    loss = accumulate_gradients(optimizer, examples, share_of, microbatch_tokens=microbatch_tokens)
    return {"loss": loss, "grad_norm": optimizer.step(lr), **seen.summary()}


def standard(units: Units, graded: Sequence[Graded], *, like: Tensor) -> tuple[Tensor, Tensor]:
    """Ratings in units of mean 0 and spread 1, and which there are, [E, K] each."""
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
    """What the trunk makes of each, in order, in float32 or wider."""
    found: dict[int, tuple[Tensor, Tensor]] = {}
    for row in pack(examples, microbatch_tokens):
        prompts_ED, attributes_EK = model.read(row)
        found |= dict(
            zip(row.examples, zip(prompts_ED.to(attributes_EK.dtype), attributes_EK, strict=True), strict=True)
        )
    prompts, attributes = zip(*(found[i] for i in range(len(examples))), strict=True)
    return Reading(torch.stack(prompts), torch.stack(attributes))
