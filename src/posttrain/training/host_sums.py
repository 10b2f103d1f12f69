"""Gradient sums in the host's memory, of weights on a GPU (ZeRO-Offload, Ren et al. 2021, arXiv 2101.06840)."""

from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from posttrain.models.rounding import add_, narrow_

BUFFERS, PIECE = 8, 2**26  # page-locked memory, and bytes of each


class _Buffer:
    """Page-locked memory, from when it is first used."""

    memory: Tensor | None = None


class HostSums:
    """Adds gradients to sums in the host's memory while the GPU computes on.

    A gradient is copied in pieces to page-locked buffers, on the stream that computes it. One thread adds what has been
    copied, in the order of the calls, so that a sum does not depend on timing.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="host-sums")
        self._free: SimpleQueue[_Buffer] = SimpleQueue()
        for _ in range(BUFFERS):
            self._free.put(_Buffer())
        self._adding: list[Future[None]] = []

    def add(self, total: Tensor, part: Tensor, *, first: bool) -> None:
        """`total += part`, or with `first` `total = part`, not before `wait` returns; waits for free buffers."""
        if part.is_sparse:  # of an embedding, whose rows are few
            self._adding.append(self._thread.submit(_add_sparse, total, part.cpu(), first=first))
            return
        size = PIECE // part.itemsize
        for room, piece in zip(total.view(-1).split(size), part.reshape(-1).split(size), strict=True):
            buffer = self._free.get()
            try:
                copy, copied = _copy(buffer, piece)
                self._adding.append(self._thread.submit(self._add, room, copy, buffer, copied, first=first))
            except BaseException:
                self._free.put(buffer)
                raise

    def wait(self) -> None:
        """Wait until all is added; raises what an addition has raised."""
        adding, self._adding = self._adding, []
        wait(adding)
        for each in adding:
            each.result()

    def narrow(self, weight: Tensor, master: Tensor, start: int) -> None:
        """`rounding.narrow_` of a master in the host's memory, which the GPU rounds faster than the host."""
        if not weight.is_contiguous():
            narrow_(weight, master.to(weight.device), start)
            return
        size = PIECE // master.itemsize
        buffer = self._free.get()
        try:
            for number, (room, piece) in enumerate(
                zip(weight.view(-1).split(size), master.view(-1).split(size), strict=True)
            ):
                copy, _ = _copy(buffer, piece)
                narrow_(room, copy.to(weight.device), start + number * size)
        finally:
            self._free.put(buffer)

    def _add(self, total: Tensor, copy: Tensor, buffer: _Buffer, copied: Any, *, first: bool) -> None:
        try:
            if copied is not None:
                copied.synchronize()
            if first:
                total.copy_(copy)
            else:
                add_(total, copy)
        finally:
            self._free.put(buffer)


def _copy(buffer: _Buffer, piece: Tensor) -> tuple[Tensor, Any]:
    """A copy in a buffer, and the event after which it is there; None for now."""
    if buffer.memory is None:
        buffer.memory = torch.empty(PIECE, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
    copy = buffer.memory[: piece.nbytes].view(piece.dtype).copy_(piece, non_blocking=True)
    return copy, torch.cuda.current_stream(piece.device).record_event() if piece.is_cuda else None


def _add_sparse(total: Tensor, part: Tensor, *, first: bool) -> None:
    if first:
        total.zero_()
    total.add_(part.to(total.dtype))
