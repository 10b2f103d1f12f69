"""Seconds of a step, in one process or in those of a cluster, from the speed of cut-down copies of the model here.

Each process is taken to be as fast as this one is with as many threads. Not counted: scoring, that processes of one
machine share its memory, and that samplers wait for the longest completion.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from posttrain.algorithms.load import Load
from posttrain.bindings.cluster_options import LOCAL, ClusterOptions, TrainerOptions, reserved, shards_of
from posttrain.data import Example, pack
from posttrain.engine.transformers import PACK_FROM, TransformersEngine
from posttrain.errors import UserError
from posttrain.models.fused import checkpoint_layers
from posttrain.models.load import probe
from posttrain.models.lora import Lora, add_adapter
from posttrain.models.precision import products_per_second, seconds_of
from posttrain.planning import costs
from posttrain.planning.costs import Speed, Training
from posttrain.planning.work import Work
from posttrain.training.optimizer import MasterAdamW
from posttrain.types import Request, Sampling

SpeedOf = Callable[[int, int], Speed]
"""From the number of sequences that are decoded together, 0 for none, and that of threads to what was measured."""
MOST_PROBED = 500e6  # parameters of a cut-down copy; larger models are estimated from the rate of products
PROBE_TOKENS, PROBE_STEPS = 1024, 32  # as many steps as it takes the cache of keys and values to grow once
FEW, MANY = 2, 8  # layers of the copies; one layer's work would stay in the processor's cache, as a model's does not
SENT = 1e9  # bytes a second, of weights and gradients: measured between processes of one machine; 10 Gbit/s


class StepTime(NamedTuple):
    """Seconds of a step; None where it has no such part."""

    update: float
    sampling: float | None = None
    sync: float | None = None  # sending weights to samplers
    overlapped: bool = False  # whether steps are sampled while others are trained

    @property
    def step(self) -> float:
        """All of it, or of two parts that work at the same time the slower one."""
        parts = self.sampling or 0.0, self.update
        return (max(parts) if self.overlapped else sum(parts)) + (self.sync or 0.0)


def step_time(training: Training, work: Work, cluster: TrainerOptions, speed: SpeedOf) -> StepTime:
    """Estimate a step."""
    if not cluster.trainers:
        threads = torch.get_num_threads()
        slots = costs.decoded_together(training, work.longest, cache_bytes=work.cache) if work.cache else 0
        update = _update(training, work, cluster, speed(slots, threads))
        return StepTime(update, _sampling(training, work, 1, threads, speed) if work.cache else None)
    update = _update(training, work, cluster, speed(0, _threads(cluster, "trainer", cluster.trainers)))
    if not (work.cache and isinstance(cluster, ClusterOptions)):
        return StepTime(update)
    samplers = cluster.samplers
    sampling = _sampling(training, work, samplers, _threads(cluster, "sampler", samplers), speed)
    copies = samplers if cluster.address == LOCAL else min(samplers, 2)  # those of other machines pass them on
    sync = copies * weights_bytes(training) / SENT
    return StepTime(update, sampling, sync, overlapped=getattr(cluster, "max_staleness", 0) > 0)


def weights_bytes(training: Training) -> int:
    """Bytes of the trained weights as a sampler gets them: of an adapter, in float32, the adapter alone."""
    return training.trainable * (4 if training.lora_rank else training.itemsize)


def _threads(cluster: TrainerOptions, kind: str, processes: int) -> int:
    return reserved(cluster, kind)["threads"] or max(1, torch.get_num_threads() // processes)


def _sampling(training: Training, work: Work, samplers: int, threads: int, speed: SpeedOf) -> float:
    """Training samples and auxiliary ones, each at its number of concurrent sequences: of the busiest sampler."""

    def part(load: Load) -> Load:
        prompts = math.ceil(load.prompts / samplers)
        return replace(load, prompts=prompts, group=math.ceil(math.ceil(load.sequences / samplers) / prompts))

    seconds = 0.0
    for expected, longest in zip((work.expected, *work.beside), (work.longest, *work.longest_beside), strict=True):
        slots = costs.decoded_together(training, part(longest), cache_bytes=work.cache)
        seconds += costs.sampling_seconds(training, part(expected), speed(slots, threads), cache_bytes=work.cache)
    return seconds


def _update(training: Training, work: Work, cluster: TrainerOptions, speed: Speed) -> float:
    learned = work.updated[1] if work.updated else work.expected
    trainers, shards = max(1, cluster.trainers), shards_of(cluster)
    seconds = costs.update_seconds(training, learned, speed, updates=work.updates, trainers=trainers, shards=shards)
    rows = math.ceil(learned.microbatches / trainers)
    texts = 0
    if work.text:
        seconds += work.updates * work.text.tokens * work.text.share(trainers) * speed.trained_token
        texts = math.ceil(work.text.microbatches / trainers)
    return seconds + _told(training, work.updates, rows, texts, trainers, shards) / SENT


def _told(training: Training, updates: int, rows: int, texts: int, trainers: int, shards: int) -> float:
    """Bytes that a trainer sends and gets in a step: gradients once in an update, or for each row its shards."""
    summed = 8 * training.trainable * training.networks
    if shards == 1:
        return updates * summed * (trainers - 1) / trainers
    others, replicas = (shards - 1) / shards, trainers // shards
    gathered = training.itemsize * training.shape.parameters * others
    # gathered for the forward and for the backward pass; gradients are scattered, and summed over replicas
    row = 2 * gathered + 4 * training.trainable * others + 8 * training.trainable / shards * (replicas - 1) / replicas
    return rows * training.passes * gathered + updates * training.networks * (rows + texts) * row


@contextlib.contextmanager
def computing_with(threads: int) -> Iterator[None]:
    """Set the number of torch's threads while the block runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measured_speed(training: Training, load: Load, dtype: torch.dtype, device: str, together: int) -> Speed:
    """Seconds on this machine: from two cut-down copies, or for large models from the rate of products."""
    shape = training.shape
    ends = 2 * shape.vocabulary * shape.hidden
    many = min(MANY, shape.layers)
    if ends + many * shape.active / shape.layers > MOST_PROBED:
        return costs.speed_from_products(training, together, products_per_second(dtype, device))
    found = _probed(training, load, dtype, device, many, together)
    if many == shape.layers:
        return found
    return costs.extend(_probed(training, load, dtype, device, FEW, together), found, (FEW, many), shape.layers)


def _probed(training: Training, load: Load, dtype: torch.dtype, device: str, layers: int, together: int) -> Speed:
    """The speed of a copy with `layers` layers, on a row and at a length like those of the run."""
    model = probe(training.shape.name, layers, dtype=dtype, device=device)
    if training.adapter:
        try:
            model = add_adapter(model, training.adapter.lora)
        except UserError:  # it names layers that the copy does not have
            model = add_adapter(model, Lora(training.adapter.lora.rank))
    if training.checkpointing:
        checkpoint_layers(model.network)
    bits, offload = training.moment_bits, training.offload
    optimizer = MasterAdamW(model.trainable(), moment_bits=bits, embedding=model.embedding, offload=offload)
    prompt, completion = min(load.prompt_tokens, PROBE_TOKENS // 2), min(load.completion_tokens, PROBE_TOKENS // 2)
    branches = max(1, min((PROBE_TOKENS - prompt) // completion, load.group if prompt else load.sequences))
    families = max(1, min(PROBE_TOKENS // (prompt + branches * completion), load.prompts if prompt else 1))
    learned = (prompt > 0,) + (True,) * (completion - 1)
    prefixes = [tuple((i + family) % training.shape.vocabulary for i in range(prompt)) for family in range(families)]
    examples = [Example(prefix, (1,) * completion, learned) for prefix in prefixes for _ in range(branches)]
    (row,) = pack(examples, 2 * PROBE_TOKENS)
    tokens = len(row.token_ids)

    def value() -> Tensor:
        return model.logprobs(row).logprobs if training.head else model.states(row)[row.ends, 0].float()

    def train() -> None:
        with optimizer.collecting():
            value().mean().backward()

    trained = seconds_of(train, device)
    gradients = [master.grad for master in optimizer.masters]

    def update() -> None:
        for master, gradient in zip(optimizer.masters, gradients, strict=True):
            master.grad = gradient
        optimizer.step(0.0)

    updated = seconds_of(update, device)
    with torch.no_grad():
        read = seconds_of(value, device)
    step = 0.0
    if together:
        middle = (1,) * max(1, min(prompt + completion // 2, model.context - PACK_FROM - PROBE_STEPS - 1))
        engine = TransformersEngine(model, frozenset(), max_sequences=together)

        def decode(tokens: int) -> Callable[[], object]:
            requests = [Request(middle, Sampling(tokens), seed) for seed in range(together)]
            return lambda: engine.generate(requests)

        longer, shorter = (seconds_of(decode(PACK_FROM + 1 + n), device) for n in (PROBE_STEPS, 0))
        step = max(0.0, longer - shorter) / PROBE_STEPS
    trainable = sum(p.numel() for _, p in model.trainable())
    return Speed(trained / tokens, read / tokens, step, updated / trainable)
