import resource
import sys

import pytest
import torch

from posttrain.models import host_memory


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(host_memory._trim() is None, reason="the C library here cannot give memory back")
def test_what_was_freed_between_blocks_still_in_use_goes_back_to_the_system():
    blocks = [torch.ones(25_000) for _ in range(2000)]  # 100 kB each, on the heap: 200 MB
    kept = blocks[::100]  # these keep the heap from shrinking by itself
    before = resident_bytes()
    del blocks
    host_memory.release_freed_memory()
    assert before - resident_bytes() > 100e6
    assert all(block.sum() == 25_000 for block in kept)


def test_a_system_without_it_is_left_alone(monkeypatch):
    host_memory._trim.cache_clear()
    monkeypatch.setattr(sys, "platform", "darwin")
    try:
        assert host_memory._trim() is None
        host_memory.release_freed_memory()
    finally:
        host_memory._trim.cache_clear()
