"""Equations: tensors in, one value per token (or per completion) out. The only reductions are in `reduce.py`."""
