"""Forward and backward over a batch in pieces; how it is cut bounds memory and never changes the result."""

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from posttrain.data.packing import Example, PackedRow, pack
from posttrain.errors import TrainingError
from posttrain.training.optimizer import MasterAdamW

LossOf = Callable[[PackedRow], Tensor]
"""A packed row to its share of the batch's loss: this is where the model is asked."""


def accumulate_gradients(
    optimizer: MasterAdamW,
    examples: Sequence[Example],
    loss_of: LossOf,
    *,
    microbatch_tokens: int,
    together: int = 1,
) -> float:
    """Add the gradient of the whole batch to the optimiser's and return the batch's loss.

    `together`: how many examples that follow each other must be in one row (`pack`).

    Raises:
        TrainingError: a loss is not finite; names the examples in question. The collected gradient is discarded.
    """
    total = 0.0
    with optimizer.collecting():
        for row in pack(examples, microbatch_tokens, together=together):
            loss = loss_of(row)
            value = loss.item()
            if not math.isfinite(value):
                optimizer.discard()
                raise TrainingError(
                    f"the loss is {value} for examples {row.examples} of the batch; the weights were not touched"
                )
            loss.backward()
            total += value
    return total
