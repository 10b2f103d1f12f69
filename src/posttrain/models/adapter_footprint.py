"""Memory of an adapter: parameters and activations.

Per token, with b bytes per number of the base, and over all layers that have the adapter, of I inputs and O outputs
in sum, n of them, rank r:

    inputs of A       4 I      float32 copies of a bfloat16 base's; of a float32 base what layers share, once
    with dropout      8 I      masks, and what is left
    inputs of B       4 r n
    with DoRA         (b + 4) O    what W and B give, float32 both where inputs were dropped

A frozen base keeps none of the inputs of its own layers, b (2 D + A) in each decoder layer, which are taken off. A test
compares the sum with autograd's own, byte for byte, where every linear layer has an adapter.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

from posttrain.models.footprint import Shape, empty_network
from posttrain.models.lora_config import Lora, inside, is_linear, resolve


@dataclass(frozen=True, slots=True)
class AdapterSize:
    """An adapter on a model, in numbers."""

    lora: Lora
    layers: int  # linear layers that have it: n
    inputs: int  # the sum of their inputs: I
    outputs: int  # and of their outputs: O
    products: int  # numbers in their weights
    largest: int  # and in the largest of these
    whole: int  # numbers of modules that are trained whole
    ends: bool  # whether embedding or head is among those

    @property
    def low_rank(self) -> int:
        """Parameters of A and B, and with DoRA of the rows' lengths; float32."""
        return self.lora.rank * (self.inputs + self.outputs) + (self.outputs if self.lora.dora else 0)


def adapter_size(name: str, lora: Lora) -> AdapterSize:
    """The adapter's size on a model by name, folder or hub id, from its configuration alone.

    Raises:
        ModelError: as `read_shape`.
        UserError: the model has no such modules.
    """
    return size_of(empty_network(name), lora, name)


def size_of(network: Any, lora: Lora, name: str = "") -> AdapterSize:
    """The same on a network, on whatever device it is."""
    targets, trained = resolve(network, lora, name)
    head, left = network.get_output_embeddings(), set(inside(network, trained))
    adapted: list[nn.Module] = [
        module
        for path, module in network.named_modules()
        if is_linear(module) and module is not head and path not in left
        if not targets or any(path == target or path.endswith(f".{target}") for target in targets)
    ]
    sides = [_sides(module) for module in adapted]
    ends = [network.get_input_embeddings().weight, *([] if head is None else [head.weight])]
    kept = {id(p): p for path in trained for p in network.get_submodule(path).parameters()}
    return AdapterSize(
        lora,
        len(sides),
        sum(inputs for inputs, _ in sides),
        sum(outputs for _, outputs in sides),
        sum(inputs * outputs for inputs, outputs in sides),
        max((inputs * outputs for inputs, outputs in sides), default=0),
        sum(p.numel() for p in kept.values()),
        any(id(end) in kept for end in ends),
    )


def _sides(module: Any) -> tuple[int, int]:
    """Inputs and outputs of a linear layer, or of GPT-2's, whose weight is transposed."""
    first, second = module.weight.shape
    return (second, first) if isinstance(module, nn.Linear) else (first, second)


def adapter_bytes(size: AdapterSize, shape: Shape, itemsize: int, *, tokens: int) -> int:
    """What autograd keeps of a row beyond `saved_bytes`, at least 0."""
    lora = size.lora
    shared = shape.layers * (2 * shape.hidden + shape.query_width + shape.intermediate)
    read = 8 * size.inputs if lora.dropout else 4 * (size.inputs if itemsize < 4 else min(size.inputs, shared))
    given = (8 if lora.dropout else itemsize + 4) * size.outputs if lora.dora else 0
    frozen = shape.layers * itemsize * (2 * shape.hidden + shape.query_width)
    copies = 4 * size.products if lora.dora and lora.dropout and itemsize < 4 else 0
    return max(0, tokens * (read + 4 * lora.rank * size.layers + given - frozen)) + copies


def dora_bytes(size: AdapterSize) -> int:
    """What DoRA holds at once to compute one layer: W, B A and their sum in float32, and the identity for B A."""
    return 16 * size.largest if size.lora.dora else 0
