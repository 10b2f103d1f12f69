"""Throughput of this machine, measured on cut-down copies of the model."""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from posttrain.data import Example, pack
from posttrain.engine.transformers import PACK_FROM, TransformersEngine
from posttrain.errors import UserError
from posttrain.models.gradient_checkpointing import checkpoint_layers
from posttrain.models.lora import Lora, add_adapter
from posttrain.models.throughput_probe import probe, products_per_second, seconds_of
from posttrain.planning import costs
from posttrain.planning.costs import Speed, Training
from posttrain.training.load import Load
from posttrain.training.optimizer import MasterAdamW
from posttrain.types import Request, Sampling

MOST_PROBED = 500e6  # parameters of a cut-down copy; larger models are estimated from the rate of products
PROBE_TOKENS, PROBE_STEPS = 1024, 32  # as many steps as it takes the cache of keys and values to grow once
FEW, MANY = 2, 8  # layers of the copies; one layer's work would stay in the processor's cache, as a model's does not


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
