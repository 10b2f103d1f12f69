import subprocess
import sys

import pytest
import torch

from posttrain.fast_paths import without
from posttrain.models import host_memory
from posttrain.models.host_memory import Heap, release_freed_memory, resident_bytes

needs_glibc = pytest.mark.skipif(host_memory._glibc() is None, reason="the C library here cannot give memory back")


@needs_glibc
def test_what_was_freed_between_blocks_still_in_use_goes_back_to_the_system():
    blocks = [torch.ones(25_000) for _ in range(2000)]  # 100 kB each, on the heap: 200 MB
    kept = blocks[::100]  # these keep the heap from shrinking by itself
    before = resident_bytes()
    del blocks
    release_freed_memory()
    assert before - resident_bytes() > 100e6
    assert all(block.sum() == 25_000 for block in kept)


LEFT_OF_A_FREED_BLOCK = """
import torch
from posttrain.models.host_memory import keep_freed_memory, release_freed_memory, resident_bytes
keep_freed_memory()
before = resident_bytes()
torch.ones(50_000_000)  # 200 MB
print(resident_bytes() - before)
release_freed_memory()
print(resident_bytes() - before)
"""


@needs_glibc
@pytest.mark.parametrize(("off", "kept"), [("", True), ("kept memory", False)])
def test_what_is_freed_stays_with_the_process_until_it_is_released(off, kept):
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OF_A_FREED_BLOCK],
        env={"POSTTRAIN_WITHOUT": off, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    freed, released = (int(number) for number in done.stdout.split())
    assert (freed > 150e6) == kept
    assert released < 50e6


LEFT_OF_LARGE_AND_SMALL_BLOCKS = """
import torch
from posttrain.models.host_memory import keep_freed_memory, resident_bytes, return_large_blocks
keep_freed_memory()
return_large_blocks()
before = resident_bytes()
torch.ones(50_000_000)  # 200 MB
print(resident_bytes() - before)
blocks = [torch.ones(25_000) for _ in range(2000)]  # 200 MB
del blocks
print(resident_bytes() - before)
"""


@needs_glibc
def test_large_blocks_are_returned_and_small_ones_kept():
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OF_LARGE_AND_SMALL_BLOCKS],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    large, small = (int(number) for number in done.stdout.split())
    assert large < 50e6 and small > 150e6


def phases_that_release(resident):
    """After which phases a heap gives memory back, if so much is resident after each."""
    begun, released = [], []
    heap = Heap(lambda: resident[len(begun) - 1], lambda: released.append(len(begun) - 1))
    for phase in resident:
        begun.append(phase)
        heap.settle()
    return released


@pytest.mark.parametrize(
    ("resident", "released"),
    [
        ([900, 100, 200, 100, 200, 219, 220], [0]),  # what loading left goes; 220 is just what is allowed
        ([900, 100, 200, 100, 200, 221, 100], [0, 5]),
        ([900, 100, 200, 300, 400, 430, 440], [0]),  # four phases say what is needed, the largest of them
        ([900, 400, 300, 200, 100, 430, 440], [0]),
        ([900, 100, 100, 100, 100, 200, 150, 150, 150, 150, 165, 166], [0, 5, 11]),  # what is needed is seen anew
        ([900, 200, 200, 200, 200, 221, 100, 100, 100, 100, 111], [0, 5, 10]),
    ],
)
def test_memory_is_given_back_once_it_has_grown(resident, released):
    assert phases_that_release(resident) == released


def test_with_the_fast_path_off_every_phase_gives_memory_back():
    with without("kept memory"):
        assert phases_that_release([100, 100, 100]) == [0, 1, 2]


def test_a_system_without_glibc_is_left_alone(monkeypatch):
    host_memory._glibc.cache_clear()
    monkeypatch.setattr(sys, "platform", "darwin")
    try:
        assert host_memory._glibc() is None
        host_memory.release_freed_memory()
        host_memory.keep_freed_memory.__wrapped__()
    finally:
        host_memory._glibc.cache_clear()
