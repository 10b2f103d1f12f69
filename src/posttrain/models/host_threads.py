"""OpenMP threads of the host."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def in_ended_thread(work: Callable[[], T]) -> T:
    """What `work` returns or raises; it is called in a thread that ends, and its OpenMP threads with it.

    For servers, which load a model in one thread and compute in another. A thread that has computed in parallel keeps a
    team of OpenMP threads for as long as it lives. If all teams of a process have more threads than there are
    processors, libgomp lets a waiting thread sleep after 100 turns instead of `GOMP_SPINCOUNT`: a decoding step with
    two threads on two cores took 0.32 s instead of 0.15 (docs/LOG.md).
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()
