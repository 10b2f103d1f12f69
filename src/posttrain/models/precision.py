"""Compute dtype selection, by a short benchmark; the clock of other measurements."""

import math
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from posttrain.errors import UserError

if TYPE_CHECKING:
    from posttrain.models.language_model import LanguageModel

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WORTH_IT = 1.3  # bfloat16 must be this much faster than float32 to be chosen: below that its rounding buys nothing


def gpus_here() -> int:
    """How many GPUs this process sees."""
    return torch.cuda.device_count()


def default_device() -> str:
    """`cuda` where there is one, else `cpu`."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def dtype_of(precision: str, device: str = "cpu") -> torch.dtype:
    """The dtype of `float32`, `bfloat16` or `auto` (the faster one on `device`); raises `UserError` for others."""
    if precision not in ("auto", *PRECISIONS):
        raise UserError(f"precision must be auto, {' or '.join(PRECISIONS)}; got '{precision}'")
    return fastest(device).dtype if precision == "auto" else PRECISIONS[precision]


def product_seconds(*dtypes: torch.dtype, size: int = 768, repeats: int = 7) -> list[float]:
    """The least seconds of one [size, size] matrix product in each format.

    In turn, and the least: what else a machine does can only add, and a burst of it must not hit one format alone.
    """
    pairs = [(torch.ones(size, size, dtype=dtype), torch.ones(size, size, dtype=dtype)) for dtype in dtypes]
    for a, b in pairs:
        torch.mm(a, b)  # the first call pays for choosing a kernel
    least = [math.inf] * len(pairs)
    for _ in range(repeats):
        for number, (a, b) in enumerate(pairs):
            start = time.perf_counter()
            torch.mm(a, b)
            least[number] = min(least[number], time.perf_counter() - start)
    return least


def seconds_of(work: Callable[[], object], device: str = "cpu", repeats: int = 2) -> float:
    """The shortest time of some repetitions, after one to warm up: others on the machine only make it longer."""
    times: list[float] = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        work()
        if device != "cpu":
            torch.cuda.synchronize()  # products are only queued there
        times.append(time.perf_counter() - began)
    return min(times[1:])


def products_per_second(dtype: torch.dtype, device: str = "cpu") -> float:
    """Operations per second of a large square product: a multiplication and an addition count as two."""
    size = 2048 if device == "cpu" else 4096
    a, b = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    return 2 * size**3 / seconds_of(lambda: torch.mm(a, b), device, repeats=5)


class Fastest(NamedTuple):
    """The number format to compute in, and why."""

    dtype: torch.dtype
    reason: str


@cache
def fastest(device: str = "cpu") -> Fastest:
    """bfloat16 where products in it are clearly faster than in float32, float32 elsewhere. Takes about 0.1 s."""
    if device != "cpu":
        able = torch.cuda.is_bf16_supported()
        return Fastest(torch.bfloat16 if able else torch.float32, f"the GPU {'has' if able else 'lacks'} bfloat16")
    wide, narrow = product_seconds(torch.float32, torch.bfloat16)
    times = f"{wide / narrow:.1f} times as fast" if wide > narrow else f"{narrow / wide:.1f} times as slow"
    reason = f"matrix products in bfloat16 are {times} as in float32 here"
    return Fastest(torch.bfloat16 if wide / narrow > WORTH_IT else torch.float32, reason)


def compute_of(model: "LanguageModel", precision: str) -> dict[str, Any]:
    """The compute environment, for a run's `environment.json`; `precision` is what was asked for."""
    device = str(model.device)
    found: dict[str, Any] = {
        "device": device,
        "precision": str(model.dtype),
        "precision_reason": "`precision`" if precision != "auto" else fastest(device).reason,
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),  # instructions; ATEN_CPU_CAPABILITY can lower them
    }
    return found if device == "cpu" else found | {"gpu": torch.cuda.get_device_name(model.device)}
