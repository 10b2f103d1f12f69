"""Micro-batched forward and backward passes; the split never changes the result."""

import contextlib
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from posttrain.data.packing import Example, PackedRow, pack
from posttrain.errors import TrainingError
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.ranks import ALONE, Ranks, over

LossOf = Callable[[PackedRow, int], Tensor]
"""From a packed row and its number to its share of the batch's loss; runs the model's forward pass."""


def accumulate_gradients(
    optimizer: MasterAdamW,
    examples: Sequence[Example],
    loss_of: LossOf,
    *,
    microbatch_tokens: int,
    together: int | Sequence[int] = 1,
    beside: Sequence[MasterAdamW] = (),
    ranks: Ranks = ALONE,
) -> float:
    """Add the gradient of the whole batch to the optimiser's and return the batch's loss.

    Args:
        optimizer: of the trained model.
        examples: the batch.
        loss_of: a packed row's share of its loss.
        microbatch_tokens: of one row, at most.
        together: number of consecutive examples that must be in one row, or that of each unit (`pack`).
        beside: optimisers of other parameters that receive a gradient.
        ranks: those of the learner; each computes its own rows, and all learn together whether a loss is finite.

    Raises:
        TrainingError: a loss is not finite; names the examples in question. The accumulated gradient is discarded.
    """

    def share(number: int, row: PackedRow) -> tuple[float, list[int]]:
        loss = loss_of(row, number)
        if math.isfinite(value := loss.item()):
            loss.backward()
        return value, row.examples

    with contextlib.ExitStack() as stack:
        for each in (optimizer, *beside):
            stack.enter_context(each.collecting())
        losses = over(pack(examples, microbatch_tokens, together=together), share, ranks)
    total = 0.0
    for value, numbers in losses.values():
        if not math.isfinite(value):
            for each in (optimizer, *beside):
                each.discard()
            raise TrainingError(
                f"the loss is {value} for examples {numbers} of the batch; the weights were not touched"
            )
        total += value
    return total


@torch.no_grad()
def by_example(
    examples: Sequence[Example],
    of_row: Callable[[PackedRow], Tensor],
    *,
    microbatch_tokens: int,
    together: int | Sequence[int] = 1,
    ranks: Ranks = ALONE,
) -> list[tuple[float, ...]]:
    """A number for each learned token of each example, where `of_row` gives those of a packed row, [N]."""

    def of_examples(number: int, row: PackedRow) -> dict[int, tuple[float, ...]]:
        sizes = [sum(examples[number].learned) for number in row.examples]
        parts = of_row(row).split(sizes)
        return {example: tuple(part.tolist()) for example, part in zip(row.examples, parts, strict=True)}

    rows = over(pack(examples, microbatch_tokens, together=together), of_examples, ranks)
    found = {number: values for row in rows.values() for number, values in row.items()}
    return [found[number] for number in range(len(examples))]
