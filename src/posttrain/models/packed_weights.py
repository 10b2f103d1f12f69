"""Weights in the layout of small-batch matrix products, for sampling.

On a CPU torch multiplies bfloat16 with oneDNN, which reorders a weight into tiles at every call. For
the few rows of a decoding step that costs as much as the product. Packed once, a weight serves a whole rollout, with
bitwise identical results.
"""

import contextlib
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

ROWS = 64  # what the layout is made for; it serves any number


@contextlib.contextmanager
def packed_weights(network: nn.Module) -> Iterator[int]:
    """While the block runs, each bfloat16 `nn.Linear` on a CPU multiplies by a packed copy; yields how many do.

    Weights must not change inside the block. The copies take 2 bytes per weight, and packing 135 million of them 0.1 s.
    Elsewhere than on a CPU, and where `packing_supported()` is False, nothing happens.
    """
    packed = [m for m in network.modules() if type(m) is nn.Linear and _packable(m.weight)]
    try:
        for module in packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(module.weight.detach(), ROWS)
            module.__dict__["forward"] = partial(_product, weight, module.bias)
        yield len(packed)
    finally:
        for module in packed:
            module.__dict__.pop("forward", None)


def packing_supported() -> bool:
    """Whether oneDNN multiplies bfloat16 on this processor: AVX-512 or AMX on x86. With AVX2 alone it does not."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _packable(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and packing_supported()


def _product(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
