"""The collective calls of FSDP, before which the ranks meet, and gradients before FSDP rounds them."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class _Meeting:
    """A collective call of FSDP; before it the ranks `meet`, with the number of elements that each sends."""

    def __init__(self, meet: Callable[[int], None]) -> None:
        self._meet = meet

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for what is sent or received."""
        return torch.empty(*size, dtype=dtype, device=device)


class AllGather(_Meeting):
    """Conforms to FSDP's `AllGather`."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> None:
        """Gather the shards of all ranks."""
        self._meet(input_tensor.numel())
        dist.all_gather_single(as_bytes(output_tensor), as_bytes(input_tensor), group=group)


class ReduceScatter(_Meeting):
    """Conforms to FSDP's `ReduceScatter`; keeps the last sum until it is taken, if FSDP has it `rounded`."""

    last: Tensor | None = None
    _taken = 0  # of its numbers

    def __init__(self, meet: Callable[[int], None], *, rounded: bool) -> None:
        super().__init__(meet)
        self._rounded = rounded

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for what is sent, and then for the sum; FSDP makes no call for the sum of a single rank."""
        found = super().allocate(size, dtype=dtype, device=device)
        if self._rounded:
            self.last, self._taken = found, 0
        return found

    def exact(self, rounded: Tensor, rows: int) -> Tensor:
        """The gradient of a shard before FSDP has rounded it to the format of its weight.

        FSDP gives the gradients of a sum one after another, in the order in which they are in it, each padded to as
        many `rows` as the largest shard has.
        """
        if not self._rounded:
            return rounded
        wide, start = self.last, self._taken
        assert wide is not None
        self._taken += rows * math.prod(rounded.shape[1:])
        if self._taken == wide.numel():
            self.last = None  # all of it is taken: the sums of all layers are as large as the gradient
        copied = rounded.device != wide.device  # to the host's memory
        assert copied or rounded.storage_offset() == start, "FSDP has another layout of gradients"
        assert self._taken <= wide.numel(), "FSDP has given a gradient twice"
        return wide[start : start + rounded.numel()].view(rounded.shape)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Sum over the ranks; each gets its shard."""
        self._meet(input_tensor.numel())
        dist.reduce_scatter_single(output_tensor, input_tensor, op, group=group)


def as_bytes(tensor: Tensor) -> Tensor:
    """The same memory; gloo does not know every number format."""
    return tensor.view(-1).view(torch.uint8)
