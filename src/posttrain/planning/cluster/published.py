"""GPUs, what of their figures is reached, and dense decoders. The numbers and their sources are in published.toml."""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from posttrain.models.footprint import Shape

NODE = 8  # GPUs of a node
CONTEXT = 131072  # tokens, of every published model
CHANNEL = 1.8e9
"""Bytes per second that a process sends over gloo, as `distributed/broadcast.py` does: to one other process on two CPU
cores (docs/LOG.md), and not measured on GPUs or between machines."""

_TABLES: Mapping[str, Any] = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class GPU:
    """A GPU: FLOP/s, bytes, bytes per second."""

    flops: float
    memory: float
    bandwidth: float  # of its memory
    nvlink: float  # one direction
    network: float  # share of a GPU of its node's links to other nodes, one direction


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The share of a published figure that programs reach."""

    mfu: float  # model FLOP utilisation of training and prefill
    bandwidth: float  # of the memory, in decoding
    links: float  # of a link's bandwidth
    latency: float  # seconds of a collective call among GPUs, for each doubling of their number
    memory: float  # that may be planned; the rest is fragments, libraries and buffers


GPUS: Mapping[str, GPU] = {name: GPU(**figures) for name, figures in _TABLES["gpus"].items()}
REACHED = Efficiency(**_TABLES["reached"])


def _dense(
    name: str, layers: int, hidden: int, heads: int, keys: int, units: int, vocabulary: int, tied: bool
) -> Shape:
    body = layers * hidden * (2 * hidden + 2 * keys + 3 * units)  # q and o, k and v, gate and up and down
    total = body + vocabulary * hidden * (1 if tied else 2)
    widths = layers * (2 * (hidden + hidden) + 2 * (hidden + keys) + 3 * (hidden + units))
    return Shape(name, CONTEXT, layers, hidden, heads, hidden, keys, units, vocabulary, total, body, widths)


PUBLISHED = tuple(_dense(**model) for model in _TABLES["models"])


def dense_shape(parameters: float) -> Shape:
    """A dense decoder with this many parameters: the widths of the nearest published one, by ratio.

    Only the parameters are changed; layers and widths decide the cache of keys and values, activations, and attention.

    Example:
        >>> dense_shape(7e9).layers, dense_shape(400e9).name
        (28, 'Llama-3.1-405B')
    """
    nearest = min(PUBLISHED, key=lambda shape: abs(math.log(shape.parameters / parameters)))
    ends = nearest.parameters - nearest.active
    return replace(nearest, parameters=round(parameters), active=max(1, round(parameters) - ends))
