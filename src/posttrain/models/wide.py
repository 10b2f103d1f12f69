"""Work in a wider format than the numbers come in, a block at a time.

On a CPU an operation over more numbers than its cache holds waits for memory, and for the system to hand out pages.
"""

import torch
from torch import Tensor

BLOCK = 2**18  # numbers that are widened at a time: 1 MiB in float32, which stays in a core's cache


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Where sums are taken: float64 for float64, float32 for everything else."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def block_rows(width: int, device: torch.device) -> int:
    """How many rows of `width` numbers to work on at a time; 64 times as many on a GPU, which loses by small pieces."""
    return max(1, BLOCK * (1 if device.type == "cpu" else 64) // width)


def add_(total: Tensor, part: Tensor) -> None:
    """`total += part`, in the format of `total`.

    Where the two formats differ, torch on a CPU first makes a widened copy of all of `part`. In blocks of rows that
    copy never leaves the cache: 7 instead of 39 ms for 28 million numbers.
    """
    if not total.dim() or total.device.type != "cpu" or total.dtype == part.dtype:
        total += part
        return
    rows = block_rows(max(1, total.numel() // max(1, len(total))), total.device)
    for some, more in zip(total.split(rows), part.split(rows), strict=True):
        some += more
