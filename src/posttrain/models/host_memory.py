"""The host's memory allocator between the phases of a step."""

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def _trim() -> Callable[[int], Any] | None:
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not


def release_freed_memory() -> None:
    """Give what has been freed back to the system, where the C library can.

    Sampling and training ask for blocks of other sizes, which differ from step to step. glibc keeps the freed ones, the
    heap breaks up, and resident memory creeps up by a gigabyte over a run; giving them back costs milliseconds.
    """
    if (trim := _trim()) is not None:
        trim(0)
