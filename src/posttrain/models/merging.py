"""Model weights with the adapter merged in."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.models.rounding import narrow_, wide_dtype


def merged_weights(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All weights by their names in a Hugging Face folder of the whole model.

    A layer under a low-rank adapter has W + s B A, with DoRA (Liu et al. 2024, arXiv 2402.09353, eq. 5) its rows scaled
    to the lengths that were learned, m (W + s B A) / ||W + s B A||; of a module that was trained whole it is what was
    trained. The sum is taken in float32 and rounded once, to the format of W.
    """
    for name, weight in network.named_parameters():
        if "lora_" in name or ".original_module." in name:
            continue
        plain = name.replace(".base_layer.", ".").replace(".modules_to_save.default.", ".")
        if name.endswith(".base_layer.weight"):
            rounded = torch.empty_like(weight)
            narrow_(rounded, _merged(network.get_submodule(name.removesuffix(".base_layer.weight")), weight))
            yield plain, rounded
        else:
            yield plain, weight


@torch.no_grad()
def _merged(layer: Any, weight: Tensor) -> Tensor:
    """The layer's weight under its one adapter, wide."""
    (adapter,) = layer.active_adapters
    found = weight.to(wide_dtype(weight.dtype)) + layer.get_delta_weight(adapter).to(wide_dtype(weight.dtype))
    if adapter not in layer.lora_magnitude_vector:
        return found
    outputs = found.T if layer.fan_in_fan_out else found  # a view with a row per output
    outputs.mul_((layer.lora_magnitude_vector[adapter].weight / torch.linalg.norm(outputs, dim=1))[:, None])
    return found
