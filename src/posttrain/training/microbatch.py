"""Forward and backward over a batch in pieces; how it is cut bounds memory and never changes the result."""

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from posttrain.data.packing import Example, PackedRow, pack
from posttrain.errors import TrainingError
from posttrain.models.language_model import LanguageModel
from posttrain.models.logprobs import TokenLogprobs
from posttrain.training.optimizer import MasterAdamW

LossOf = Callable[[PackedRow, TokenLogprobs], Tensor]
"""A packed row and the logprobs of its learned tokens, to that row's share of the batch's loss."""


def accumulate_gradients(
    model: LanguageModel,
    optimizer: MasterAdamW,
    examples: Sequence[Example],
    loss_of: LossOf,
    *,
    microbatch_tokens: int,
    temperature: float = 1.0,
) -> float:
    """Add the gradient of the whole batch to the optimiser's and return the batch's loss.

    Raises:
        TrainingError: a loss is not finite; names the examples in question. The collected gradient is discarded.
    """
    total = 0.0
    for row in pack(examples, microbatch_tokens):
        loss = loss_of(row, model.logprobs(row, temperature))
        value = loss.item()
        if not math.isfinite(value):
            optimizer.discard()
            raise TrainingError(
                f"the loss is {value} for examples {row.examples} of the batch; the weights were not touched"
            )
        loss.backward()
        optimizer.collect()
        total += value
    return total
