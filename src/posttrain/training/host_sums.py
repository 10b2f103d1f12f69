"""Gradient sums in the host's memory, of weights on a GPU (ZeRO-Offload, Ren et al. 2021, arXiv 2101.06840)."""

from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from posttrain.models.rounding import add_, narrow_

BUFFERS = 4  # page-locked, each as large as the largest gradient


class HostSums:
    """Adds gradients to sums in the host's memory while the GPU computes on.

    A gradient is copied to a page-locked buffer on the stream that computes it. One thread adds what has been copied,
    in the order of the calls, so that a sum does not depend on timing.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="host-sums")
        self._free: SimpleQueue[Tensor] = SimpleQueue()
        for _ in range(BUFFERS):
            self._free.put(torch.empty(0, dtype=torch.uint8))
        self._adding: list[Future[None]] = []

    def add(self, total: Tensor, part: Tensor, *, first: bool) -> None:
        """`total += part`, or with `first` `total = part`, not before `wait` returns; waits for a free buffer."""
        if part.is_sparse:  # of an embedding, whose rows are few
            self._adding.append(self._thread.submit(_add_sparse, total, part.cpu(), first=first))
            return
        buffer = self._buffer(part.nbytes)
        copy = _view(buffer, part).copy_(part, non_blocking=True)
        copied = torch.cuda.current_stream(part.device).record_event() if part.is_cuda else None
        self._adding.append(self._thread.submit(self._add, total, copy, buffer, copied, first=first))

    def wait(self) -> None:
        """Wait until all is added; raises what an addition has raised."""
        adding, self._adding = self._adding, []
        for each in adding:
            each.result()

    def narrow(self, weight: Tensor, master: Tensor, start: int) -> None:
        """`rounding.narrow_` of a master in the host's memory, which the GPU rounds faster than the host."""
        buffer = self._buffer(master.nbytes)
        try:
            narrow_(weight, _view(buffer, master).copy_(master).to(weight.device), start)
        finally:
            self._free.put(buffer)

    def _add(self, total: Tensor, copy: Tensor, buffer: Tensor, copied: Any, *, first: bool) -> None:
        try:
            if copied is not None:
                copied.synchronize()
            if first:
                total.copy_(copy)
            else:
                add_(total, copy)
        finally:
            self._free.put(buffer)

    def _buffer(self, size: int) -> Tensor:
        """A buffer of at least `size` bytes, which is to be put back."""
        buffer = self._free.get()
        if buffer.nbytes >= size:
            return buffer
        return torch.empty(size, dtype=torch.uint8, pin_memory=torch.cuda.is_available())


def _view(buffer: Tensor, like: Tensor) -> Tensor:
    return buffer[: like.nbytes].view(like.dtype).view(like.shape)


def _add_sparse(total: Tensor, part: Tensor, *, first: bool) -> None:
    if first:
        total.zero_()
    total.add_(part.to(total.dtype))
