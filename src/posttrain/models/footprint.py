"""Memory estimate of a model before it is loaded: parameters, training state, KV cache.

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
from transformers.pytorch_utils import Conv1D

from posttrain.models import lora
from posttrain.models.blockwise import LEAST, blocks_of, worth_quantizing
from posttrain.models.load import base_of, locate, read_config
from posttrain.models.logprobs import CHUNK_BYTES
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

    def adapter_parameters(self, rank: int) -> int:
        """Parameters of a low-rank adapter on every linear layer but the head."""
        return rank * self.linear_widths


def read_shape(name: str, *, scored: bool = False) -> Shape:
    """The shape of a model by name, folder or hub id, from its configuration; of an adapter, that of its base.

    Raises:
        ModelError: there is no such model, no causal language model is made from its configuration, or posttrain
            cannot train its type; with `scored`, it cannot become a reward model.
    """
    where = locate(name)
    if lora.is_adapter(where):
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
    experts, used = _experts(config)
    ends = {id(head), id(network.get_input_embeddings().weight)}
    body = [(n, p) for n, p in network.named_parameters() if p.dim() >= 2 and id(p) not in ends]
    # GPT-2 has linear layers of its own, whose weights are transposed
    linear = [m for m in network.modules() if isinstance(m, nn.Linear | Conv1D) and m.weight is not head]
    units = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * config.hidden_size
    embedding = network.get_input_embeddings().weight
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


def _experts(config: Any) -> tuple[int, int]:
    """How many experts a layer has, and how many of them a token uses; 1 and 1 where there are none."""
    total = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None) or 1
    return total, min(total, getattr(config, "num_experts_per_tok", None) or 1)
