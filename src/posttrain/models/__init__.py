"""Models: loading, running by plan, token logprobs, packaged weights."""

import os

KERNELS = "64"
"""Kernels that oneDNN keeps, and that torch's wrapper of it keeps; by default 1,024 each.

There is one for each shape of a product, of about half a megabyte, and each new number of rows is a new shape. Both
read this when the first kernel is made. A user's own settings stay.
"""

for _name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_name, KERNELS)
