"""Products of ever new shapes take no more memory."""

import os
import subprocess
import sys

import pytest

from posttrain.models.fused import packing_supported
from posttrain.models.host_memory import _glibc

NAMES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
PROGRAM = """
import ctypes, torch
import posttrain.models

names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
Heap = type("Heap", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in names]})
library = ctypes.CDLL(None)
library.mallinfo2.restype = Heap
weight = torch.ones(1536, 576, dtype=torch.bfloat16)
before = 0
for rows in range(1, 400):
    torch.nn.functional.linear(torch.ones(rows, 576, dtype=torch.bfloat16), weight)
    if rows == 100:
        before = library.mallinfo2().uordblks
print((library.mallinfo2().uordblks - before) / 1e6)
"""


def grown_mb(**settings):
    """What 300 further shapes add to the heap."""
    environment = {name: value for name, value in os.environ.items() if name not in NAMES} | settings
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.skipif(not packing_supported(), reason="oneDNN has no bfloat16 products on this processor")
@pytest.mark.skipif(_glibc() is None or not hasattr(_glibc(), "mallinfo2"), reason="asks glibc")
def test_kernels_of_earlier_shapes_are_freed():
    unlimited = grown_mb(**dict.fromkeys(NAMES, "1024"))
    if unlimited < 20:
        pytest.skip("kernels take no memory here")
    assert grown_mb() < unlimited / 10
