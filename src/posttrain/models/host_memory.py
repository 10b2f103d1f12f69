"""Host allocator settings: freed memory is reused by the next step; and threads that leave no OpenMP team behind.

glibc returns every large block to the system when it is freed, and the next step faults it in again: a
million page faults and a fifth of the time of an update. If kept, the blocks are reused; but sizes differ between
sampling and training and from step to step, so that the heap fragments and resident memory grows. So a training
process keeps freed memory, and returns it once resident memory exceeds the need of earlier steps.
"""

import ctypes
import resource
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from posttrain import fast_paths

T = TypeVar("T")

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -2, -3, -4  # of glibc's malloc.h
LARGE = 4 * 2**20  # bytes of a block that `return_large_blocks` returns
NEVER = -1
GROWN = 1.1  # freed memory is given back when this times what was needed is resident
SETTLING = 4  # phases that determine the need: two of sampling and two of training


@cache
def _glibc() -> Any:
    """The C library, if it is glibc: musl and others have no such calls."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None


@cache
def keep_freed_memory() -> None:
    """From now on, leave memory that was freed with this process; `settle` bounds how much. Does so once."""
    if (library := _glibc()) is not None and fast_paths.on("kept memory"):
        for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, NEVER), (M_TOP_PAD, 64 * 2**20)):
            library.mallopt(option, value)


def return_large_blocks() -> None:
    """From now on, return blocks of `LARGE` bytes or more when they are freed, and keep smaller ones.

    For FSDP, which unshards one layer after another: blocks that are kept in between would fragment the heap.
    """
    if (library := _glibc()) is not None and fast_paths.on("kept memory"):
        for option, value in ((M_MMAP_THRESHOLD, LARGE), (M_MMAP_MAX, 2**16)):
            library.mallopt(option, value)


def release_freed_memory() -> None:
    """Give what has been freed back to the system, where the C library can."""
    if (library := _glibc()) is not None:
        library.malloc_trim(0)


def resident_bytes() -> int:
    """Resident memory of this process; 0 if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


@dataclass
class Heap:
    """Bounds the memory that is kept; call it at the end of each phase of a step."""

    resident: Callable[[], int] = resident_bytes
    release: Callable[[], None] = release_freed_memory
    _needed: int = field(default=0, init=False)
    _phases: int = field(default=-1, init=False)  # since memory was given back; -1 before the first time

    def settle(self) -> None:
        """A phase has ended: give freed memory back if there is more than the first phases needed.

        Also at the first call, when the garbage of loading a model lies about.
        """
        resident = self.resident()
        if not fast_paths.on("kept memory"):
            self.release()
        elif self._phases == -1 or (self._phases >= SETTLING and resident > GROWN * self._needed):
            self.release()
            self._needed = self._phases = 0
        elif self._phases < SETTLING:
            self._needed = max(self._needed, resident)
            self._phases += 1


HEAP = Heap()  # a process has one


def in_temporary_thread(work: Callable[[], T]) -> T:
    """Run `work` in a temporary thread, and return its result or raise its exception.

    For servers, which load a model in one thread and compute in another. A thread that has run an OpenMP parallel
    region keeps its thread team until it exits. If the teams of a process have more threads than there are processors,
    libgomp limits spinning to 100 iterations instead of `GOMP_SPINCOUNT`: a decoding step with two threads on two cores
    took 0.32 s instead of 0.15 (docs/LOG.md).
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()
