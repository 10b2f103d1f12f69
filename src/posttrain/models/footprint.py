"""Memory estimate of a model and an adapter before they are loaded: parameters, training state, KV cache.

Widths come from the configuration alone, so a plan for a model of 70 billion parameters costs nothing.

The count of activations is that of autograd's saved tensors for one decoder layer of the Llama family (Llama, SmolLM2,
Mistral, Qwen2) as `models/attention.py` and `models/fused.py` run it, which a test compares with autograd's own, byte
for byte. Per token,
with b bytes per number, D hidden units, A = query heads x width, K = key heads x width, I units of the MLP:

    two RMS norms    2 (b D + 4)          their input, and one number of float32
    inputs of qkv and gate/up   2 b D
    attention        b A + 2 b K + b A    queries, keys and values, the output that goes into the last projection
    MLP              2 b I                gate and up

With gradient checkpointing a layer keeps its input, b D, and one layer's activations exist in the backward pass.

Layers with more norms (Gemma, Qwen3) or with experts keep somewhat more; treat their numbers as within a quarter.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from posttrain.models.blockwise import LEAST, blocks_of, worth_quantizing
from posttrain.models.load import base_of, locate, read_config
from posttrain.models.logprobs import CHUNK_BYTES
from posttrain.models.lora import Lora, inside, is_adapter, resolve
from posttrain.models.mixed_adapters import is_linear
from posttrain.models.rounding import BLOCK
from posttrain.models.support import context_of, refuse_no_classifier


@dataclass(frozen=True, slots=True)
class Shape:
    """The widths of a decoder and what follows from them alone."""

    name: str
    context: int  # the most tokens a sequence may have
    layers: int
    hidden: int
    heads: int
    query_width: int  # query heads x head width
    key_width: int  # key heads x head width
    intermediate: int  # units of the MLP that one token uses
    vocabulary: int
    parameters: int  # all, a tied embedding once
    active: int  # numbers that one token is multiplied with in the layers, so without embedding and head
    linear_widths: int  # inputs + outputs of all linear layers but the head: an adapter has rank x this many
    quantizable: int = 0  # parameters whose Adam moments 8 bits may hold
    sides: tuple[tuple[int, int], ...] = ()  # widths of inputs and outputs of those linear layers, and how many have it

    def quantized(self, rank: int) -> int:
        """Trained parameters whose Adam moments 8 bits hold: of all weights, or with a `rank` of an adapter."""
        if not rank:
            return self.quantizable
        return sum(rank * width * count for width, count in self.sides if rank * width >= LEAST)


def read_shape(name: str, *, scored: bool = False) -> Shape:
    """The shape of a model by name, folder or hub id, from its configuration; of an adapter, that of its base.

    Raises `ModelError` where the model cannot be trained or, with `scored`, become a reward model.
    """
    where = locate(name)
    if is_adapter(where):
        return read_shape(base_of(where), scored=scored)
    network = empty_network(name)
    if scored:
        refuse_no_classifier(network.config, name)
    return shape_of(network, name)


def empty_network(name: str) -> Any:
    """The network of a model by name, folder or hub id, whose tensors have no memory; errors as `read_shape`."""
    config = read_config(name, locate(name))
    with torch.device("meta"):  # tensors without memory
        return AutoModelForCausalLM.from_config(config)


def shape_of(network: Any, name: str) -> Shape:
    """The shape of a network, on whatever device it is."""
    config = network.config.get_text_config()
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    head = network.get_output_embeddings().weight
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None) or 1
    used = min(experts, getattr(config, "num_experts_per_tok", None) or 1)
    embedding = network.get_input_embeddings().weight
    body = [(n, p) for n, p in network.named_parameters() if p.dim() >= 2 and p is not head and p is not embedding]
    linear = [m for m in network.modules() if is_linear(m) and m.weight is not head]
    units = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * config.hidden_size
    return Shape(
        name=name,
        context=context_of(config),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=heads,
        query_width=heads * width,
        key_width=(getattr(config, "num_key_value_heads", None) or heads) * width,
        intermediate=used * getattr(config, "moe_intermediate_size", units) if experts > 1 else units,
        vocabulary=head.shape[0],
        parameters=sum(p.numel() for p in network.parameters()),
        active=sum(p.numel() * used // experts if ".experts." in n else p.numel() for n, p in body),
        linear_widths=sum(sum(m.weight.shape) for m in linear),
        quantizable=sum(p.numel() for p in network.parameters() if p is not embedding and worth_quantizing(p)),
        sides=tuple(sorted(Counter(width for m in linear for width in m.weight.shape).items())),
    )


def cache_bytes_per_token(shape: Shape, itemsize: int) -> int:
    """Keys and values of one token of one sequence over all layers: 2 L K b."""
    return 2 * shape.layers * shape.key_width * itemsize


def saved_bytes(shape: Shape, itemsize: int, *, tokens: int, learned: int) -> int:
    """What autograd keeps of a row for its backward pass, over all layers; `learned` of its tokens go into the head."""
    return shape.layers * layer_bytes(shape, itemsize, tokens=tokens) + end_bytes(shape, itemsize, tokens, learned)


def layer_bytes(shape: Shape, itemsize: int, *, tokens: int) -> int:
    """The part of one decoder layer."""
    widths = 4 * shape.hidden + 2 * shape.query_width + 2 * shape.key_width + 2 * shape.intermediate
    return tokens * (itemsize * widths + 8)


def end_bytes(shape: Shape, itemsize: int, tokens: int, learned: int) -> int:
    """The part of what comes after the layers: the last norm, and the states that go into the head."""
    return tokens * (2 * itemsize * shape.hidden + 4) + learned * itemsize * shape.hidden


def input_bytes(shape: Shape, itemsize: int, *, tokens: int) -> int:
    """With gradient checkpointing: the saved inputs of all layers for a row."""
    return shape.layers * tokens * itemsize * shape.hidden


def moment_bytes(parameters: int, quantized: int) -> int:
    """Both of Adam's moments: 8 bytes a parameter, or 2 and a share of two float32 scales for those in 8 bits."""
    return 8 * (parameters - quantized) + 2 * (quantized + 4 * blocks_of(quantized))


def head_bytes(shape: Shape, itemsize: int, *, full: bool) -> int:
    """The most that `token_logprobs` holds at once.

    A chunk of logits in the format of the products, three blocks of it in float32, and with `full` the head's own
    gradient: its sum in float32, and what is added to it.
    """
    chunk, block = max(CHUNK_BYTES, itemsize * shape.vocabulary), 4 * max(BLOCK, shape.vocabulary)
    gradient = shape.vocabulary * shape.hidden * (4 + itemsize) if full else 0
    return chunk + 3 * block + gradient


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


def adapter_size(network: Any, lora: Lora, name: str = "") -> AdapterSize:
    """The adapter's size on a network, on whatever device it is; raises `UserError` if that has no such modules."""
    targets, trained = resolve(network, lora, name)
    head, left = network.get_output_embeddings(), set(inside(network, trained))
    adapted: list[Any] = [
        module
        for path, module in network.named_modules()
        if is_linear(module) and module is not head and path not in left
        if not targets or any(path == target or path.endswith(f".{target}") for target in targets)
    ]
    # outputs and inputs; GPT-2 has linear layers of its own, whose weights are transposed
    sides = [m.weight.shape if isinstance(m, nn.Linear) else m.weight.shape[::-1] for m in adapted]
    products = [outputs * inputs for outputs, inputs in sides]
    ends = [network.get_input_embeddings().weight, *([] if head is None else [head.weight])]
    kept = {id(p): p for path in trained for p in network.get_submodule(path).parameters()}
    return AdapterSize(
        lora,
        layers=len(sides),
        inputs=sum(inputs for _, inputs in sides),
        outputs=sum(outputs for outputs, _ in sides),
        products=sum(products),
        largest=max(products, default=0),
        whole=sum(p.numel() for p in kept.values()),
        ends=any(id(end) in kept for end in ends),
    )


def adapter_bytes(size: AdapterSize, shape: Shape, itemsize: int, *, tokens: int) -> int:
    """What autograd keeps of a row with an adapter beyond `saved_bytes`, at least 0.

    Per token, with b bytes per number of the base, and over all layers that have the adapter, of I inputs and O outputs
    in sum, n of them, rank r:

        inputs of A       4 I      float32 copies of a bfloat16 base's; of a float32 base what layers share, once
        with dropout      8 I      masks, and what is left
        inputs of B       4 r n
        with DoRA         (b + 4) O    what W and B give, float32 both where inputs were dropped

    A frozen base keeps none of the inputs of its own layers, b (2 D + A) in each decoder layer, which are taken off. A
    test compares the sum with autograd's own, byte for byte, where every linear layer has an adapter.
    """
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
