"""Micro-batched forward and backward passes; the split never changes the result."""

import contextlib
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from posttrain.data.packing import Example, PackedRow, pack
from posttrain.errors import TrainingError
from posttrain.training.optimizer import MasterAdamW

LossOf = Callable[[PackedRow], Tensor]
"""From a packed row to its share of the batch's loss; runs the model's forward pass."""


def accumulate_gradients(
    optimizer: MasterAdamW,
    examples: Sequence[Example],
    loss_of: LossOf,
    *,
    microbatch_tokens: int,
    together: int | Sequence[int] = 1,
    beside: Sequence[MasterAdamW] = (),
) -> float:
    """Add the gradient of the whole batch to the optimiser's and return the batch's loss.

    Args:
        optimizer: of the trained model.
        examples: the batch.
        loss_of: a packed row's share of its loss.
        microbatch_tokens: of one row, at most.
        together: number of consecutive examples that must be in one row, or that of each unit (`pack`).
        beside: optimisers of other parameters that receive a gradient.

    Raises:
        TrainingError: a loss is not finite; names the examples in question. The accumulated gradient is discarded.
    """
    total = 0.0
    with contextlib.ExitStack() as stack:
        for each in (optimizer, *beside):
            stack.enter_context(each.collecting())
        for row in pack(examples, microbatch_tokens, together=together):
            loss = loss_of(row)
            value = loss.item()
            if not math.isfinite(value):
                for each in (optimizer, *beside):
                    each.discard()
                raise TrainingError(
                    f"the loss is {value} for examples {row.examples} of the batch; the weights were not touched"
                )
            loss.backward()
            total += value
    return total


@torch.no_grad()
def by_example(
    examples: Sequence[Example],
    of_row: Callable[[PackedRow], Tensor],
    *,
    microbatch_tokens: int,
    together: int | Sequence[int] = 1,
) -> list[tuple[float, ...]]:
    """A number for each learned token of each example, where `of_row` gives those of a packed row, [N]."""
    found: dict[int, tuple[float, ...]] = {}
    for row in pack(examples, microbatch_tokens, together=together):
        sizes = [sum(examples[number].learned) for number in row.examples]
        parts = of_row(row).split(sizes)
        found |= {number: tuple(part.tolist()) for number, part in zip(row.examples, parts, strict=True)}
    return [found[number] for number in range(len(examples))]
