"""Micro-batched forward and backward passes; the split never changes the result."""

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.utils.deterministic
from torch import Tensor

from posttrain.data.packing import Example, PackedRow, pack
from posttrain.errors import TrainingError
from posttrain.training.learner import Share
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.ranks import ALONE, REPLICATED, Ranks, Shards, over


def accumulate_gradients(
    optimizer: MasterAdamW,
    examples: Sequence[Example],
    share_of: Callable[[PackedRow], Share],
    *,
    microbatch_tokens: int,
    together: int | Sequence[int] = 1,
    owners: Sequence[int] = (),
    beside: Sequence[MasterAdamW] = (),
    ranks: Ranks = ALONE,
    shards: Shards = REPLICATED,
) -> tuple[float, list[Mapping[str, Tensor]]]:
    """Add the gradient of the whole batch to the optimiser's; the batch's loss, and the metrics of each row.

    `share_of` runs the model's forward pass of a row, packed with `together` and `owners`; parameters of optimisers
    `beside` receive a gradient as well. Each of the `ranks` computes its own rows. Raises `TrainingError`, with the
    examples in question, for a loss that is not finite; the accumulated gradient is discarded, on all ranks.
    """

    def computed(row: PackedRow, weight: float) -> tuple[float, list[int], Mapping[str, Tensor]]:
        loss, metrics = share_of(row)
        # also of a loss that is not finite: sharded ranks compute each backward pass together
        (loss * weight).backward()
        return loss.item(), row.examples, {name: numbers.detach() for name, numbers in metrics.items()}

    with contextlib.ExitStack() as stack:
        stack.enter_context(_FIXED_ORDER.held(optimizer.device))
        for each in (optimizer, *beside):
            stack.enter_context(each.collecting())
        rows = pack(examples, microbatch_tokens, together=together, owners=owners)
        losses = over(rows, computed, ranks, shards)
    total = 0.0
    for value, numbers, _ in losses.values():
        if not math.isfinite(value):
            for each in (optimizer, *beside):
                each.discard()
            raise TrainingError(f"the loss is {value} for examples {numbers} of the batch; the weights are unchanged")
        total += value
    return total, [metrics for *_, metrics in losses.values()]


class _FixedOrder:
    """While `held` by any thread, no sum on a CPU depends on which of torch's threads comes first.

    The backward pass of a gather (of experts' biases, a row for each token) is `index_put_(accumulate=True)`. From
    32,768 numbers in float32 on, torch's kernel adds them by atomic operations in the order of its threads, unless it
    is told not to; in a fixed order it is also faster. The setting is the process's: the first of several threads, such
    as ranks in one process, sets it, and the last one puts it back.
    """

    def __init__(self) -> None:
        self._counted, self._holders = threading.Lock(), 0
        self._before = (False, False, True)

    @contextlib.contextmanager
    def held(self, device: torch.device) -> Iterator[None]:
        """Add in a fixed order while the block runs, if it computes on a CPU."""
        if device.type != "cpu":
            yield
            return
        memory: Any = torch.utils.deterministic
        with self._counted:
            if not self._holders:
                self._before = (
                    torch.are_deterministic_algorithms_enabled(),
                    torch.is_deterministic_algorithms_warn_only_enabled(),
                    memory.fill_uninitialized_memory,
                )
                torch.use_deterministic_algorithms(True, warn_only=True)
                # every new tensor would be filled, which takes time and decides nothing
                memory.fill_uninitialized_memory = False
            self._holders += 1
        try:
            yield
        finally:
            with self._counted:
                self._holders -= 1
                if not self._holders:
                    enabled, warns, memory.fill_uninitialized_memory = self._before
                    torch.use_deterministic_algorithms(enabled, warn_only=warns)


_FIXED_ORDER = _FixedOrder()


@torch.no_grad()
def by_example(
    examples: Sequence[Example],
    of_row: Callable[[PackedRow], Tensor],
    *,
    microbatch_tokens: int,
    together: int | Sequence[int] = 1,
    ranks: Ranks = ALONE,
    shards: Shards = REPLICATED,
) -> list[tuple[float, ...]]:
    """Numbers of each example, where `of_row` gives those of a packed row: of tokens, [N], or of heads, [E, H]."""

    def of_examples(row: PackedRow, weight: float) -> dict[int, tuple[float, ...]]:
        numbers = of_row(row)
        sizes = [sum(examples[number].learned) for number in row.examples]
        parts = numbers.split(sizes) if numbers.dim() == 1 else numbers
        return {example: tuple(part.tolist()) for example, part in zip(row.examples, parts, strict=True)}

    rows = over(pack(examples, microbatch_tokens, together=together), of_examples, ranks, shards)
    found = {number: values for row in rows.values() for number, values in row.items()}
    return [found[number] for number in range(len(examples))]
