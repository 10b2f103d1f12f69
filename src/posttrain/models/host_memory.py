"""The host's memory allocator, set up for training."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # malloc.h


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, for the next step to use; whether the C library could be told.

    glibc hands every large block back to the system, and each training step asks for the same gigabytes again, zeroed
    page by page: 10 to 20% of a step on a CPU. Peak memory stays the same; only what is held between steps grows.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and mallopt(_MMAP_MAX, 0) == 1 and mallopt(_TRIM_THRESHOLD, -1) == 1
