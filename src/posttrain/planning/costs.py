"""Cost model of a run: batches, updates, memory by phase, time, disk.

Functions of plain numbers; nothing is loaded and nothing measured here. Bytes and seconds throughout.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from posttrain.algorithms.load import Load
from posttrain.models import footprint
from posttrain.models.footprint import AdapterSize, Shape, cache_bytes_per_token

DECODED_TOGETHER = 128  # sequences that the embedded engine decodes at the same time, at most
GB = 1e9
LIBRARIES = "Python, libraries and data"
REWARD_MODELS, CHAT_MODELS = "reward models", "weights of judges and players"  # what they are called in plans


@dataclass(frozen=True, slots=True)
class Phase:
    """Peak memory of a phase of a step: bytes by purpose."""

    name: str
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """The sum."""
        return sum(self.parts.values())


@dataclass(frozen=True, kw_only=True)
class Networks:
    """What a command computes with beside the model that it trains."""

    references: int = 0  # frozen networks that compute logprobs
    head: bool = True  # whether words are predicted; a reward model's head is one row
    reads: int = 0  # passes over the batch that only read it: the reference's, a critic's before the update
    trained: int = 0  # trained networks beside the policy, of its size, such as a separate critic
    reward_models: int = 0  # parameters of all reward models
    chat_models: int = 0  # parameters of local judges, players of seats and a prover
    teachers: tuple[Shape, ...] = ()  # models that are distilled; one of `reads` is theirs, which share the rows


@dataclass(frozen=True)
class Training(Networks):
    """Training setup of a model: bytes per number, full or adapter, and further networks held."""

    shape: Shape
    itemsize: int
    lora_rank: int = 0
    on_gpu: bool = False
    moment_bits: int = 32  # of each of Adam's moments
    checkpointing: bool = False  # whether layers keep their inputs alone, and are computed again
    adapter: AdapterSize | None = None  # with which layers have it; None: a plain one on all
    offload: bool = False  # whether the optimiser's state is in the host's memory, and the model on a GPU

    @property
    def trainable(self) -> int:
        """Parameters that the optimiser holds."""
        if self.adapter:
            return self.adapter.low_rank + self.adapter.whole
        return self.lora_rank * self.shape.linear_widths if self.lora_rank else self.shape.parameters

    @property
    def networks(self) -> int:
        """Number of trained networks: the policy, and those beside it."""
        return 1 + self.trained

    @property
    def copies_masters(self) -> bool:
        """Whether there are float32 masters of all trained weights: of a narrower format, or offloaded."""
        return self.offload or (not self.lora_rank and self.itemsize < 4)

    @property
    def passes(self) -> float:
        """`reads` in passes of the policy: the teachers' one takes as many times longer as they have more weights."""
        weights = [_multiplied(each) for each in self.teachers]
        return self.reads + (sum(weights) / len(weights) / _multiplied(self.shape) - 1 if weights else 0.0)

    def held(self) -> dict[str, int]:
        """Memory of the device held from the first update to the last."""
        weights = self.shape.parameters * self.itemsize
        whole = self.networks * self.adapter.whole if self.adapter else 0
        parts = {
            "weights": self.networks * weights,
            "adapter": 4 * (self.networks * self.trainable - whole) if self.lora_rank else 0,
            "modules trained whole": self.itemsize * whole,
            "reference": 0 if self.lora_rank else self.references * weights,  # an adapter's reference is its base
            "teacher": sum(each.parameters for each in self.teachers) * self.itemsize,
            REWARD_MODELS: self.reward_models * self.itemsize,
            CHAT_MODELS: self.chat_models * self.itemsize,
        }
        kept = {name: size for name, size in parts.items() if size}
        return kept if self.offload else kept | self.optimizer()

    def optimizer(self) -> dict[str, int]:
        """Memory of the optimiser, all the time: the device's, or with `offload` the host's."""
        trained = self.networks * self.trainable
        whole = self.networks * self.adapter.whole if self.adapter else 0
        found: dict[str, int] = {}
        if self.copies_masters:
            found = {"float32 masters": 4 * trained, "float32 gradients": 4 * trained}
        elif whole and self.itemsize < 4:
            found = {"their float32 masters": 4 * whole}
        name = "Adam state" if self.moment_bits == 32 else f"Adam state in {self.moment_bits} bits"
        return found | {name: self.networks * self.moments}

    @property
    def moments(self) -> int:
        """Bytes of Adam's two moments of one network."""
        quantized = min(self.trainable, self.shape.quantized(self.lora_rank)) if self.moment_bits == 8 else 0
        return footprint.moment_bytes(self.trainable, quantized)


def update_phase(training: Training, load: Load) -> Phase:
    """Forward and backward of a full micro-batch, at the moment when its activations are all there.

    With master weights, gradient buffers are held all the time; else only in an update.
    """
    parts, adapter = activations(training, load), training.adapter
    if training.head:
        full = adapter.ends if adapter else not training.lora_rank  # whether it gets a gradient
        parts["logits of a chunk"] = footprint.head_bytes(training.shape, training.itemsize, full=full)
    if adapter:
        tokens = min(load.microbatch_tokens, load.tokens)
        kept = footprint.adapter_bytes(adapter, training.shape, training.itemsize, tokens=tokens)
        layers = training.shape.layers if training.checkpointing else 1  # one of them at a time
        parts["adapter's activations"] = training.networks * kept // layers
        if products := footprint.dora_bytes(adapter):
            parts["DoRA's products"] = products
    if not training.copies_masters:
        parts["gradients"] = 4 * training.networks * training.trainable
    return Phase("update", training.held() | parts)


def activations(training: Training, load: Load) -> dict[str, int]:
    """Activations of a full micro-batch; with gradient checkpointing the layers' inputs, and one layer at a time."""
    shape, itemsize, tokens = training.shape, training.itemsize, min(load.microbatch_tokens, load.tokens)
    learned = math.ceil(tokens * load.sequences * load.completion_tokens / load.tokens)
    if not training.checkpointing:
        saved = footprint.saved_bytes(shape, itemsize, tokens=tokens, learned=learned)
        return {"activations": training.networks * saved}
    inputs = footprint.input_bytes(shape, itemsize, tokens=tokens)
    inputs += footprint.end_bytes(shape, itemsize, tokens, learned)
    one = footprint.layer_bytes(shape, itemsize, tokens=tokens)
    return {"layer inputs": training.networks * inputs, "activations of one layer": one}


def sampling_phase(training: Training, load: Load, *, cache_bytes: int) -> Phase:
    """Decoding: keys and values of all sequences under way, their logits (three times, in float32), packed weights."""
    slots = decoded_together(training, load, cache_bytes=cache_bytes)
    cache = slots * _longest(training, load) * cache_bytes_per_token(training.shape, training.itemsize)
    parts = {"keys and values": cache, "logits": 12 * slots * training.shape.vocabulary}
    if training.itemsize == 2 and not training.on_gpu:
        head = training.shape.vocabulary * training.shape.hidden
        parts["packed weights"] = training.itemsize * (training.shape.active + head)
    return Phase("sampling", training.held() | parts)


def saving_phase(training: Training) -> Phase:
    """A checkpoint of a reward model under an adapter: all weights once more, merged with it."""
    return Phase("saving", training.held() | {"merged weights": training.shape.parameters * training.itemsize})


def decoded_together(training: Training, load: Load, *, cache_bytes: int) -> int:
    """Number of sequences decoded together: as many as the KV cache holds, at least one."""
    per_sequence = _longest(training, load) * cache_bytes_per_token(training.shape, training.itemsize)
    return max(1, min(DECODED_TOGETHER, load.sequences, cache_bytes // per_sequence))


def _longest(training: Training, load: Load) -> int:
    return min(load.prompt_tokens + load.completion_tokens, training.shape.context)


def checkpoint_bytes(training: Training) -> int:
    """One checkpoint: the model as it computes, float32 masters and Adam's state of all trained.

    Of a policy under an adapter the adapter alone; into a reward model it is merged.
    """
    alone = training.lora_rank and training.head
    model = 4 * training.trainable if alone else training.shape.parameters * training.itemsize
    return model + training.networks * (4 * training.trainable + training.moments)


class Speed(NamedTuple):
    """Throughput of this machine, in seconds."""

    trained_token: float  # forward and backward of one token
    read_token: float  # forward of one token of a prompt
    decode_step: float  # one token of every sequence that is decoded together
    parameter: float  # the optimiser's work on one trainable parameter


def update_seconds(
    training: Training, load: Load, speed: Speed, *, updates: int = 1, trainers: int = 1, shards: int = 1
) -> float:
    """Seconds of all updates of a step and of the forward passes before them, without what trainers tell each other."""
    tokens = load.tokens * load.share(trainers)
    read = training.passes * tokens * speed.read_token
    each = tokens * speed.trained_token + training.trainable * speed.parameter / shards
    return read + updates * training.networks * each


def sampling_seconds(training: Training, load: Load, speed: Speed, *, cache_bytes: int) -> float:
    """Seconds of prefill, and of decoding in as many rounds as the KV cache requires."""
    rounds = math.ceil(load.sequences / decoded_together(training, load, cache_bytes=cache_bytes))
    return load.prompts * load.prompt_tokens * speed.read_token + rounds * load.completion_tokens * speed.decode_step


def extend(few: Speed, many: Speed, cut: tuple[int, int], layers: int) -> Speed:
    """The speed of a model of `layers` layers from those of copies cut to fewer and more: a straight line through both.

    A layer costs no more than its share of the smaller copy, which keeps a disturbed measurement from being multiplied.

    Example:
        >>> extend(Speed(3.0, 1.0, 5.0, 0.1), Speed(5.0, 2.0, 6.0, 0.1), (1, 2), layers=10)
        Speed(trained_token=21.0, read_token=10.0, decode_step=14.0, parameter=0.1)
    """

    def line(first: float, second: float) -> float:
        layer = (second - first) / (cut[1] - cut[0])
        return first + min(max(0.0, layer), first / cut[0]) * (layers - cut[0])

    trained, read, step = map(line, few[:3], many[:3])
    return Speed(trained, read, step, many.parameter)


def speed_from_products(training: Training, slots: int, flops_per_second: float) -> Speed:
    """A rough speed from the rate of matrix products alone, for models too large to be tried.

    A token costs 2 operations per number of the weights forward and twice that backward (Kaplan et al. 2020, arXiv
    2001.08361, section 2.1), the gradient of frozen weights left out with an adapter, and forward once more with
    gradient checkpointing. Half the rate is reached in training; a decoding step costs at least one pass over the
    weights, as if 16 tokens were computed. The optimiser moves about 30 bytes per parameter, at 10 GB/s in memory and
    1 TB/s on a GPU; quantising 8-bit moments takes a CPU five times as long.
    """
    numbers = _multiplied(training.shape)
    forward = 2 * numbers / (0.5 * flops_per_second)
    backward = forward if training.lora_rank else 2 * forward
    again = forward if training.checkpointing else 0.0
    on_host = training.offload or not training.on_gpu
    quantising = 5 if training.moment_bits == 8 and on_host else 1
    parameter = quantising * 30 / (1e10 if on_host else 1e12)
    return Speed(forward + again + backward, forward, max(slots, 16) * forward, parameter)


def _multiplied(shape: Shape) -> int:
    """Weights that one token is multiplied with, head included."""
    return shape.active + shape.vocabulary * shape.hidden


REMEDIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("`gradient_checkpointing=True`", {"checkpointing": True}),
    ('`optim="adamw-8bit"`', {"moment_bits": 8}),
    ('`gradient_checkpointing=True` `optim="adamw-8bit"`', {"checkpointing": True, "moment_bits": 8}),
    ("`offload_optimizer=True`", {"offload": True}),
    ("`gradient_checkpointing=True` `offload_optimizer=True`", {"checkpointing": True, "offload": True}),
)
"""Options that trade time for memory, alone and together; an optimiser is offloaded from a GPU alone."""


def what_to_change(training: Training, load: Load, phase: Phase, available: int, *, cache_bytes: int) -> str:
    """By how much a phase exceeds `available` bytes, and options that reduce it; "" if it fits."""
    if (missing := phase.total - available) <= 0:
        return ""
    large = max(phase.parts, key=lambda name: phase.parts[name])
    return (
        f"{phase.name} needs {phase.total / GB:.1f} GB and {available / GB:.1f} GB are available; most of it is "
        f"for {large} ({phase.parts[large] / GB:.1f} GB); {_remedy(training, load, phase, missing, cache_bytes)}"
    )


def _remedy(training: Training, load: Load, phase: Phase, missing: int, cache_bytes: int) -> str:
    if phase.name == "sampling" and (cache := phase.parts["keys and values"] - missing) > cache_bytes // 10:
        return f"type `cache_gb={math.floor(10 * cache / 2**30) / 10:.1f}`"
    longest = load.prompt_tokens + load.completion_tokens
    now = update_phase(training, load).total
    for tokens in (load.microbatch_tokens // 2**halvings for halvings in range(1, 8)):
        if phase.name != "update" or tokens < longest:
            break
        smaller = replace(load, microbatch_tokens=tokens)
        if now - update_phase(training, smaller).total >= missing:
            return f"type `microbatch_tokens={tokens}`"
    for words, changes in REMEDIES:
        if "offload" in changes and not training.on_gpu:
            continue
        other = replace(training, **changes)
        spared = now - update_phase(other, load).total
        if phase.name != "update":
            spared = sum(training.held().values()) - sum(other.held().values())
        if spared >= missing:
            return f"type {words}"
    if not training.lora_rank:
        return "train an adapter: type `lora_rank=16` (and `microbatch_tokens` lower, if it still does not fit)"
    return "use a smaller model, shorter sequences, or a machine with more memory"
