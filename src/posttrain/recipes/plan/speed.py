"""How fast this machine is, on cut-down copies of the model."""

from collections.abc import Callable

import torch
from torch import Tensor

from posttrain.data import Example, pack
from posttrain.models.lora import add_lora
from posttrain.models.probe import probe, products_per_second, seconds_of
from posttrain.rollouts.transformers import TransformersEngine
from posttrain.training import plan
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.plan import Load, Speed, Training
from posttrain.types import Request, Sampling

MOST_PROBED = 500e6  # parameters of a cut-down copy; larger models are estimated from the rate of products
PROBE_TOKENS, PROBE_STEPS = 1024, 8


def measured_speed(training: Training, load: Load, dtype: torch.dtype, device: str, together: int) -> Speed:
    """Seconds on this machine: from two cut-down copies, or for large models from the rate of products."""
    shape = training.shape
    ends = 2 * shape.vocabulary * shape.hidden
    if ends + 2 * shape.active / shape.layers > MOST_PROBED:
        return plan.speed_from_products(training, together, products_per_second(dtype, device))
    one, two = (_probed(training, load, dtype, device, layers, together) for layers in (1, 2))
    return plan.extend(one, two, shape.layers)


def _probed(training: Training, load: Load, dtype: torch.dtype, device: str, layers: int, together: int) -> Speed:
    """The speed of a copy with `layers` layers, on a row and at a length like those of the run."""
    model = probe(training.shape.name, layers, dtype=dtype, device=device)
    if training.lora_rank:
        model = add_lora(model, training.lora_rank)
    optimizer = MasterAdamW(model.trainable())
    prompt, completion = min(load.prompt_tokens, PROBE_TOKENS // 2), min(load.completion_tokens, PROBE_TOKENS // 2)
    prefix = tuple(i % training.shape.vocabulary for i in range(prompt))
    learned = (bool(prefix),) + (True,) * (completion - 1)
    branches = max(1, min((PROBE_TOKENS - prompt) // completion, load.sequences))
    (row,) = pack([Example(prefix, (1,) * completion, learned)] * branches, 2 * PROBE_TOKENS)
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
        middle = (1,) * max(1, min(prompt + completion // 2, model.context - PROBE_STEPS - 1))
        engine = TransformersEngine(model, frozenset(), max_sequences=together)

        def decode(tokens: int) -> Callable[[], object]:
            requests = [Request(middle, Sampling(tokens), seed) for seed in range(together)]
            return lambda: engine.generate(requests)

        longer, shorter = (seconds_of(decode(n), device) for n in (PROBE_STEPS + 1, 1))
        step = max(0.0, longer - shorter) / PROBE_STEPS
    trainable = sum(p.numel() for _, p in model.trainable())
    return Speed(trained / tokens, read / tokens, step, updated / trainable)
