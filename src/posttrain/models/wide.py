"""Sums in a wider format than the numbers that are summed."""

import torch
from torch import Tensor

BLOCK = 2**20  # numbers that are widened at a time; four times as many bytes stay in a processor's cache


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Where sums are taken: float64 for float64, float32 for everything else."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def add_(total: Tensor, part: Tensor) -> None:
    """`total += part`, in the format of `total`.

    Where the two formats differ, torch on a CPU first makes a widened copy of all of `part`. In blocks of rows that
    copy never leaves the cache: 7 instead of 39 ms for 28 million numbers.
    """
    if not total.dim() or total.device.type != "cpu" or total.dtype == part.dtype:
        total += part
        return
    rows = max(1, BLOCK * len(total) // max(1, total.numel()))
    for some, more in zip(total.split(rows), part.split(rows), strict=True):
        some += more
