"""Memory and seconds of trainers and samplers on GPUs, from published figures. Bytes and seconds throughout.

P parameters, b = 2 bytes, L layers, D hidden units, A query widths, K key widths; t GPUs of a sampler, d trainers;
F FLOP/s times the MFU, M bytes/s of memory and N of the link, times the shares that are reached (`Efficiency`).

    trainer     held      (2 + 4 + 4 + 8) P / d                    weights, float32 masters and gradients, moments
    decoding    step      b P / (t M) + 2 L latency log2 t         all weights once, two all-reduces a layer
                sequence  2 P / (t F) + 4 L b D (t - 1) / (t N)    2 FLOP per weight; a ring moves 2 (t - 1) / t of D
                cached    2 L K b / (t M)
    update      token     (8 + 2 passes) P / F                     forward 2, backward 4, forward again 2
                square    (8 + 2 passes) L A / F                   causal attention: scores A T, values A T
                row       (2 b + 4) P (d - 1) / (d N) + 3 L latency log2 d
                begin     30 P / (d M)                             the optimiser

A trainer, by FSDP over all of them, also has, while it computes a row, embedding and head, two gathered layers, and the
activations of a row with gradient checkpointing (models/footprint.py). A sampler, by tensor parallelism, holds b P, and
in the rest its cache of keys and values.

2 FLOP per weight and token forward and twice that backward: Kaplan et al. 2020, arXiv 2001.08361, section 2.1.
Attention: Chowdhery et al. 2022 (PaLM), arXiv 2204.02311, appendix B, halved for the causal mask. Gradient
checkpointing computes the forward pass twice (Chen et al. 2016, arXiv 1604.06174). A row of FSDP gathers the weights
for its forward and its backward pass, and scatters gradients in float32; its computation hides that, since FSDP2
gathers a layer ahead.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from posttrain.algorithms.load import Load
from posttrain.models.footprint import Shape, cache_bytes_per_token
from posttrain.planning.cluster.coefficients import Costs, Decoding, Updating, Workload
from posttrain.planning.costs import Training, update_phase

NODE = 8  # GPUs of a node
CONTEXT = 131072  # tokens, of every published model
CHANNEL = 1.8e9
"""Bytes per second that a process sends over gloo, as `distributed/broadcast.py` does: to one other process on two CPU
cores (docs/LOG.md), and not measured on GPUs or between machines."""
WEIGHT = 2  # bytes of a number in bfloat16
GRADIENT = 4  # bytes of a number of a gradient
OPTIMIZER = 30  # bytes that the optimiser moves for a parameter

_TABLES = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))


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


@dataclass(frozen=True, slots=True)
class GPUCluster:
    """GPUs of one kind, and what they train."""

    gpu: GPU
    reached: Efficiency  # what of its figures is reached
    shape: Shape
    work: Workload  # of a step
    max_sequences: int = 256  # that a sampler decodes together
    channel: float = 0.0  # bytes per second that a process sends over gloo; 0: weights go from GPU to GPU

    @property
    def usable(self) -> float:
        """Bytes of a GPU that may be planned."""
        return self.reached.memory * self.gpu.memory

    def trainer(self, trainers: int) -> float:
        """Bytes of one trainer of this many."""
        return self.held() / trainers + self.row() + (self.gathered() if trainers > 1 else 0.0)

    @property
    def _training(self) -> Training:
        return Training(self.shape, WEIGHT, on_gpu=True, checkpointing=True)

    def held(self) -> float:
        """Bytes of all trainers together, from the first update to the last: 18 P."""
        return float(sum(self._training.held().values()))

    def gathered(self) -> float:
        """Bytes of a trainer with shards: embedding and head, and two layers, the one that computes and the next."""
        ends = 2 * self.shape.vocabulary * self.shape.hidden
        return WEIGHT * (ends + 2 * self.shape.active / self.shape.layers)

    def row(self) -> float:
        """Bytes of a row: the inputs of all layers, the activations of one, logits and the head's gradient."""
        tokens = self.work.microbatch_tokens
        return update_phase(self._training, Load(1, 1, 0, tokens, tokens)).total - self.held()

    def fewest_trainers(self, most: int) -> int:
        """The fewest GPUs that hold trainers, in whole nodes above one node; 0 if `most` do not."""
        counts = [*range(1, min(most, NODE) + 1), *range(2 * NODE, most + 1, NODE)]
        return next((count for count in counts if self.trainer(count) <= self.usable), 0)

    def cache_tokens(self, gpus: int, beside: float = 0.0) -> float:
        """Tokens whose keys and values a sampler of this many GPUs holds; `beside` bytes of each hold other things."""
        left = gpus * (self.usable - beside) - WEIGHT * self.shape.parameters
        return left / cache_bytes_per_token(self.shape, WEIGHT)

    def fewest_of_sampler(self, most: int) -> int:
        """The fewest GPUs of a sampler, a power of two, that leave room for a longest sequence; 0 if `most` do not."""
        counts = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
        return next((count for count in counts if self.cache_tokens(count) >= self.work.longest), 0)

    def slots(self, gpus: int, beside: float = 0.0) -> int:
        """Sequences that a sampler decodes together: as many as its cache holds at their mean size.

        Engines take sequences in before they know their length, and stop some where the cache is full; the mean is what
        remains of that in the long run.
        """
        return min(self.max_sequences, int(self.cache_tokens(gpus, beside) / self.work.resident()))

    def link(self, gpus: int) -> float:
        """Bytes per second of a GPU in a collective call among `gpus`: NVLink, or its node's links beyond a node.

        Rings through all GPUs of a node use all its links, so that what a node sends does not grow with its GPUs.
        """
        between = min(self.gpu.nvlink, NODE * self.gpu.network)
        return self.reached.links * (self.gpu.nvlink if gpus <= NODE else between)

    def decoding(self, gpus: int, beside: float = 0.0) -> Decoding:
        """A sampler of this many GPUs."""
        shape, moved = self.shape, self.reached.bandwidth * self.gpu.bandwidth * gpus
        flops = self.reached.mfu * self.gpu.flops * gpus
        # tensor parallelism beyond a node: each GPU has its own share of the links, and no ring helps it
        link = self.link(gpus) if gpus <= NODE else self.reached.links * self.gpu.network
        reduced = 4 * shape.layers * WEIGHT * shape.hidden * (gpus - 1) / gpus / link
        token = 2 * shape.parameters / flops + reduced
        return Decoding(
            step=WEIGHT * shape.parameters / moved + 2 * shape.layers * self.reached.latency * math.log2(gpus),
            sequence=token,
            cached=cache_bytes_per_token(shape, WEIGHT) / moved,
            prompt=token,
            slots=self.slots(gpus, beside),
        )

    def updating(self, trainers: int) -> Updating:
        """This many trainers."""
        shape, flops = self.shape, self.reached.mfu * self.gpu.flops
        factor = 8 + 2 * self.work.passes
        sent = (2 * WEIGHT + GRADIENT) * shape.parameters * (trainers - 1) / trainers / self.link(trainers)
        calls = 3 * shape.layers * self.reached.latency * math.log2(trainers)
        moved = self.reached.bandwidth * self.gpu.bandwidth
        return Updating(
            trainers=trainers,
            token=factor * shape.parameters / flops,
            square=factor * shape.layers * shape.query_width / flops,
            row=sent + calls,
            begin=OPTIMIZER * shape.parameters / trainers / moved,
        )

    def gather(self, trainers: int) -> float:
        """Seconds in which the weights of all shards are gathered."""
        return WEIGHT * self.shape.parameters * (trainers - 1) / trainers / self.link(trainers)

    def apart(self, trainers: int, samplers: int, of_sampler: int) -> Costs:
        """Trainers and samplers on GPUs of their own; the weights are gathered and broadcast.

        Over GPUs each link has them once; gloo's tree is binomial, and its root sends them once for each level.
        """
        links, levels = self.reached.links * self.gpu.network, math.ceil(math.log2(1 + samplers))
        bytes_per_s = self.channel / levels if self.channel else links
        sync = self.gather(trainers) + WEIGHT * self.shape.parameters / bytes_per_s
        return Costs(samplers, self.decoding(of_sampler), self.updating(trainers), sync)

    def colocated(self, gpus: int, of_sampler: int) -> Costs:
        """All GPUs sample, and then all train; trainers keep their shards. The weights are gathered within the GPUs."""
        beside = self.held() / gpus
        return Costs(gpus // of_sampler, self.decoding(of_sampler, beside), self.updating(gpus), self.gather(gpus))
