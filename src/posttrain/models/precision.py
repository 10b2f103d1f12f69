"""Which number format this machine computes fastest in, found by a short measurement."""

import time
from functools import cache
from statistics import median

import torch

WORTH_IT = 1.3  # bfloat16 must be this much faster than float32 to be chosen: below that its rounding buys nothing


def product_seconds(dtype: torch.dtype, size: int = 768, repeats: int = 5) -> float:
    """Median seconds of one [size, size] matrix product."""
    a, b = torch.ones(size, size, dtype=dtype), torch.ones(size, size, dtype=dtype)
    torch.mm(a, b)  # the first call pays for choosing a kernel
    times: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        torch.mm(a, b)
        times.append(time.perf_counter() - start)
    return median(times)


@cache
def fastest_dtype(device: str = "cpu") -> torch.dtype:
    """bfloat16 where products in it are clearly faster than in float32, float32 elsewhere. Takes about 0.1 s."""
    if device != "cpu":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    speedup = product_seconds(torch.float32) / product_seconds(torch.bfloat16)
    return torch.bfloat16 if speedup > WORTH_IT else torch.float32
