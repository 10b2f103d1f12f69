"""Before a run: what it will compute, how much memory, time and disk it takes, and what will not fit.

    posttrain plan rl --dataset gym:chain_sum --completions-per-prompt 16
    posttrain plan sft --dataset train.jsonl --model OWNER/NAME --lora-rank 16

Nothing is trained and no weights are read: memory is arithmetic over the model's configuration (models/footprint.py
says which), time is measured on two cut-down copies of the model, with one and with two layers of random weights.
Left out: evaluations during the run, and what other programs will take meanwhile.
"""

import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from posttrain.algorithms import online
from posttrain.data import ChatFormat, Example, load_demonstrations, load_tasks, load_tokenizer, pack, parse_columns
from posttrain.errors import UserError
from posttrain.models.footprint import Shape, read_shape
from posttrain.models.load import locate
from posttrain.models.lora import add_lora
from posttrain.models.precision import default_device, dtype_of
from posttrain.models.probe import probe, products_per_second, seconds_of
from posttrain.monitoring.memory import available_bytes, peak_gb
from posttrain.rollouts.transformers import TransformersEngine
from posttrain.training import plan
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.plan import GB, Load, Phase, Speed, Training
from posttrain.training.plan_result import PlanResult
from posttrain.types import Request, Sampling

MOST_READ = 500  # rows of the data whose lengths are measured
MOST_PROBED = 500e6  # parameters of a cut-down copy; larger models are estimated from the rate of products
PROBE_TOKENS, PROBE_STEPS = 1024, 8


@dataclass(frozen=True)
class PlanRL:
    """What a run of `rl` will take. The options are those of `rl`."""

    dataset: str = ""
    """What to train on; its prompts are measured. Without it they are taken to have --prompt-tokens."""
    model: str = "smollm2-135m-instruct"
    """The policy: a hub id, a folder, an adapter's folder, or a packaged model."""
    algorithm: str = "grpo"
    """Which algorithm, with its default knobs: they decide whether a reference is kept."""
    steps: int = 100
    """How many batches to sample and learn from."""
    prompts_per_step: int = 16
    """Different prompts in a batch."""
    completions_per_prompt: int = 8
    """Completions of each prompt: the group. The rollout batch is prompts x completions."""
    updates_per_step: int = 1
    """Updates on each batch."""
    max_new_tokens: int = 256
    """The longest completion."""
    max_prompt_tokens: int = 1024
    """Longer prompts are left out."""
    lora_rank: int = 0
    """Train an adapter of this rank instead of all weights; 0: all weights."""
    precision: str = "auto"
    """float32, bfloat16, or auto: what this machine computes faster."""
    microbatch_tokens: int = 4096
    """Tokens of one forward and backward pass."""
    cache_gb: float = 1.5
    """Memory for keys and values while sampling."""
    columns: str = ""
    """Which columns to read, such as "prompt=question answer=final"."""
    limit: int | None = None
    """Use only so many tasks; of a gym: source, make so many."""
    system: str | None = None
    """A system message, in place of the data's own."""
    prompt_template: str = "{prompt}"
    """Text around each question."""
    keep_last: int = 2
    """Checkpoints to keep, besides the best."""
    seed: int = 0
    """Decides which tasks a gym: source makes."""
    prompt_tokens: int = 128
    """Tokens of a prompt where there is no --dataset to measure."""
    measure: bool = True
    """Measure the speed of this machine, which takes some seconds; without it no time is said."""


@dataclass(frozen=True)
class PlanSFT:
    """What a run of `sft` will take. The options are those of `sft`."""

    dataset: str = ""
    """Demonstrations; their lengths are measured. Without it every example is taken to have --max-tokens."""
    model: str = "smollm2-135m-instruct"
    """What to train: a hub id, a folder, an adapter's folder, or a packaged model."""
    epochs: float = 1.0
    """Passes over the demonstrations; less than one for a part of them."""
    steps: int = 0
    """Updates; 0: as many as --epochs takes."""
    examples_per_step: int = 16
    """Demonstrations in a batch."""
    max_tokens: int = 1024
    """The longest example; longer ones are left out."""
    lora_rank: int = 0
    """Train an adapter of this rank instead of all weights; 0: all weights."""
    precision: str = "auto"
    """float32, bfloat16, or auto: what this machine computes faster."""
    microbatch_tokens: int = 4096
    """Tokens of one forward and backward pass."""
    columns: str = ""
    """Which columns to read, such as "prompt=question completion=response"."""
    limit: int | None = None
    """Use only so many demonstrations, from the first."""
    system: str | None = None
    """A system message, in place of the data's own."""
    prompt_template: str = "{prompt}"
    """Text around each of the user's messages."""
    keep_last: int = 2
    """Checkpoints to keep, besides the best."""
    measure: bool = True
    """Measure the speed of this machine, which takes some seconds; without it no time is said."""


def run(config: PlanRL | PlanSFT) -> PlanResult:
    """Work out what a run with these options will take."""
    libraries = int(peak_gb() * GB)  # what Python, torch and the rest take before any model
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    device = default_device()
    dtype = dtype_of(config.precision, device)
    shape = read_shape(config.model)
    training = Training(shape, dtype.itemsize, config.lora_rank, _needs_reference(config), device == "cuda")
    longest, expected, rows, steps = _rl_load(config) if isinstance(config, PlanRL) else _sft_load(config, shape)
    cache = int(config.cache_gb * 2**30) if isinstance(config, PlanRL) else 0
    phases = [plan.sampling_phase(training, longest, cache_bytes=cache)] if cache else []
    phases.append(plan.update_phase(training, longest))
    if device == "cpu":
        phases = [Phase(p.name, {"Python and libraries": libraries} | dict(p.parts)) for p in phases]
    available = torch.cuda.mem_get_info()[0] if device == "cuda" else available_bytes() + libraries
    disk = (config.keep_last + 2) * plan.checkpoint_bytes(training)  # the best, and the one that is being written
    free = shutil.disk_usage(Path.cwd()).free
    together = plan.decoded_together(training, longest, cache_bytes=cache) if cache else 0
    updates = config.updates_per_step if isinstance(config, PlanRL) else 1
    speed = _speed(training, expected, dtype, device, together) if config.measure else None
    return PlanResult(
        command="rl" if isinstance(config, PlanRL) else "sft",
        training=training,
        precision=str(dtype).removeprefix("torch."),
        longest=longest,
        expected=expected,
        rows=rows,
        steps=steps,
        updates_per_step=updates,
        phases=tuple(phases),
        available=available,
        together=together,
        sampling_seconds=plan.sampling_seconds(training, expected, speed, cache_bytes=cache)
        if speed and cache
        else None,
        update_seconds=plan.update_seconds(training, expected, speed, updates=updates) if speed else None,
        disk=disk,
        free=free,
        busy=busy,
        warnings=tuple(_warnings(training, longest, phases, available, cache, disk, free)),
    )


def _needs_reference(config: PlanRL | PlanSFT) -> bool:
    return isinstance(config, PlanRL) and online(config.algorithm)().needs_reference


def _rl_load(config: PlanRL) -> tuple[Load, Load, int | None, int]:
    """The load with the longest prompts, that with average ones, the number of tasks, and the steps."""
    if min(config.steps, config.prompts_per_step, config.completions_per_prompt, config.updates_per_step) < 1:
        raise UserError("--steps, --prompts-per-step, --completions-per-prompt, --updates-per-step must be 1 or more")
    online(config.algorithm)().advantages(torch.zeros(1, config.completions_per_prompt))  # refuses too small a group
    lengths, rows = [config.prompt_tokens], None
    if config.dataset:
        tasks = load_tasks(
            config.dataset, columns=_columns(config), limit=config.limit, seed=config.seed, **_words(config)
        )
        chat, rows = ChatFormat(load_tokenizer(locate(config.model))), len(tasks)
        found = [len(chat.prompt_ids(task.prompt)) for task in tasks[:MOST_READ]]
        lengths = [length for length in found if length <= config.max_prompt_tokens]
        if not lengths:
            raise UserError(
                f"all prompts are longer than --max-prompt-tokens {config.max_prompt_tokens}, the shortest has "
                f"{min(found)}; give a larger one"
            )

    def load(prompt_tokens: int) -> Load:
        return Load(
            config.prompts_per_step,
            config.completions_per_prompt,
            prompt_tokens,
            config.max_new_tokens,
            config.microbatch_tokens,
        )

    return load(max(lengths)), load(round(sum(lengths) / len(lengths))), rows, config.steps


def _sft_load(config: PlanSFT, shape: Shape) -> tuple[Load, Load, int | None, int]:
    """The load with the longest examples, that with average ones, the number of examples, and the steps."""
    most = min(config.max_tokens, shape.context)
    lengths, rows, steps = [most], None, config.steps or 1
    if config.dataset:
        data = load_demonstrations(config.dataset, columns=_columns(config), limit=config.limit, **_words(config))
        chat, rows = ChatFormat(load_tokenizer(locate(config.model))), len(data)
        found = [
            len(example.token_ids) for messages in data[:MOST_READ] for example in chat.training_examples(messages)
        ]
        lengths = [length for length in found if length <= most]
        if not lengths:
            raise UserError(
                f"all examples are longer than {most} tokens, the shortest has {min(found)}; raise --max-tokens"
            )
        steps = config.steps or math.ceil(config.epochs * rows / config.examples_per_step)

    def load(tokens: int) -> Load:
        return Load(config.examples_per_step, 1, 0, tokens, config.microbatch_tokens)

    return load(max(lengths)), load(round(sum(lengths) / len(lengths))), rows, steps


def _columns(config: PlanRL | PlanSFT) -> dict[str, str] | None:
    return parse_columns(config.columns) if config.columns else None


def _words(config: PlanRL | PlanSFT) -> dict[str, Any]:
    return {"system": config.system, "prompt_template": config.prompt_template}


def _warnings(
    training: Training,
    load: Load,
    phases: Sequence[Phase],
    available: int,
    cache_bytes: int,
    disk: int,
    free: int,
) -> list[str]:
    """What will not fit, and what to change."""
    found = plan.what_to_change(training, load, phases, available, cache_bytes=cache_bytes)
    longest, context = load.prompt_tokens + load.completion_tokens, training.shape.context
    if longest > load.microbatch_tokens:
        found.append(
            f"a sequence may have {longest} tokens, more than --microbatch-tokens {load.microbatch_tokens}, and would "
            f"stop the run; type --microbatch-tokens {longest} or make sequences shorter"
        )
    if longest > context:
        found.append(
            f"prompt and completion may have {longest} tokens, but the model holds {context}; it cuts them there"
        )
    if disk > free:
        found.append(
            f"checkpoints take up to {disk / GB:.1f} GB and {free / GB:.1f} GB are free here; make room, keep fewer "
            "(--keep-last 1), or train an adapter (--lora-rank 16)"
        )
    return found


def _speed(training: Training, load: Load, dtype: torch.dtype, device: str, together: int) -> Speed:
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

    def train() -> None:
        with optimizer.collecting():
            (-model.logprobs(row).logprobs.mean()).backward()

    trained = seconds_of(train, device)
    gradients = [master.grad for master in optimizer.masters]

    def update() -> None:
        for master, gradient in zip(optimizer.masters, gradients, strict=True):
            master.grad = gradient
        optimizer.step(0.0)

    updated = seconds_of(update, device)
    with torch.no_grad():
        read = seconds_of(lambda: model.logprobs(row), device)
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
