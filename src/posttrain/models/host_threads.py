"""OpenMP thread teams on the host."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def in_temporary_thread(work: Callable[[], T]) -> T:
    """Run `work` in a temporary thread, and return its result or raise its exception.

    For servers, which load a model in one thread and compute in another. A thread that has run an OpenMP parallel
    region keeps its thread team until it exits. If the teams of a process have more threads than there are processors,
    libgomp limits spinning to 100 iterations instead of `GOMP_SPINCOUNT`: a decoding step with two threads on two cores
    took 0.32 s instead of 0.15 (docs/LOG.md).
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()
