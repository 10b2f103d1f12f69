"""Before a run: what it will compute, how much memory, time and disk it takes, and what will not fit.

    posttrain plan rl --dataset gym:chain_sum --completions-per-prompt 16
    posttrain plan sft --dataset train.jsonl --model OWNER/NAME --lora-rank 16
    posttrain plan preference --dataset pairs.jsonl

Nothing is trained and no weights are read: memory is arithmetic over the model's configuration (models/footprint.py
says which), time is measured on two cut-down copies of the model, with one and with two layers of random weights.
Left out: evaluations during the run, and what other programs will take meanwhile.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from posttrain.errors import UserError, unknown
from posttrain.models.adapter_footprint import AdapterSize, adapter_size
from posttrain.models.footprint import read_shape
from posttrain.models.load import locate
from posttrain.models.lora import is_adapter
from posttrain.models.lora_options import Lora
from posttrain.models.precision import default_device, dtype_of
from posttrain.monitoring.memory import available_bytes, peak_gb
from posttrain.recipes.plan.forms import Config, PlanPreference, PlanRewardModel, PlanRL, PlanSFT
from posttrain.recipes.plan.speed import measured_speed
from posttrain.recipes.plan.work import Work, work_of
from posttrain.training import plan
from posttrain.training.plan import GB, Load, Phase, Speed, Training
from posttrain.training.plan_result import PlanResult
from posttrain.training.settings import OPTIMIZERS, nothing_to_quantize

__all__ = ["PlanPreference", "PlanRL", "PlanRewardModel", "PlanSFT", "run"]


def run(config: Config) -> PlanResult:
    """Work out what a run with these options will take."""
    if config.optim not in OPTIMIZERS:
        raise unknown("optimiser", config.optim, OPTIMIZERS)
    libraries = int(peak_gb() * GB)  # what Python, torch and the rest take before any model
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    device = default_device()
    dtype = dtype_of(config.precision, device)
    shape = read_shape(config.model, scored=isinstance(config, PlanRewardModel))
    work = work_of(config, shape)
    training = Training(
        shape,
        dtype.itemsize,
        work.lora.rank if work.lora else 0,
        work.reference,
        device == "cuda",
        work.head,
        work.reads,
        work.critic,
        OPTIMIZERS[config.optim],
        config.gradient_checkpointing,
        adapter=_adapter(config.model, work.lora),
    )
    if training.moment_bits == 8 and not shape.quantized(training.lora_rank):
        raise UserError(nothing_to_quantize(config.optim))
    worst = _worst(training, work, libraries if device == "cpu" else 0)
    available = torch.cuda.mem_get_info()[0] if device == "cuda" else available_bytes() + libraries
    disk = (config.keep_last + 2) * plan.checkpoint_bytes(training)  # the best, and the one that is being written
    free = shutil.disk_usage(Path.cwd()).free
    speeds: dict[int, Speed] = {}

    def speed(together: int) -> Speed:
        if together not in speeds:
            speeds[together] = measured_speed(training, work.expected, dtype, device, together)
        return speeds[together]

    together = plan.decoded_together(training, work.longest, cache_bytes=work.cache) if work.cache else 0
    return PlanResult(
        command=work.command,
        training=training,
        precision=str(dtype).removeprefix("torch."),
        longest=work.longest,
        expected=work.expected,
        batch=work.batch,
        lengths=work.lengths,
        rows=work.rows,
        steps=work.steps,
        updates_per_step=work.updates,
        phases=tuple(phase for phase, _ in worst),
        available=available,
        together=together,
        sampling_seconds=_sampling_seconds(training, work, speed) if config.measure and work.cache else None,
        update_seconds=_update_seconds(training, work, speed(together)) if config.measure else None,
        disk=disk,
        free=free,
        busy=busy,
        warnings=tuple(_warnings(training, work, worst, available, disk, free)),
    )


def _adapter(model: str, lora: Lora | None) -> AdapterSize | None:
    """The size of a fresh adapter; a model that is an adapter gets none, as a run would refuse."""
    where = locate(model)
    if lora and is_adapter(where):
        raise UserError(f"'{model}' is an adapter already; leave out --lora-rank to train that one further")
    return adapter_size(model, lora) if lora else None


def _worst(training: Training, work: Work, libraries: int) -> list[tuple[Phase, Load]]:
    """The phases of a step, each with what it computes when it takes the most memory."""
    sampled = (work.longest, *work.longest_beside) if work.cache else ()
    learned = (work.longest, *((work.text,) if work.text else ()))
    found = (
        [(plan.sampling_phase(training, load, cache_bytes=work.cache), load) for load in sampled],
        [(plan.update_phase(training, load), load) for load in learned],
    )
    worst = [max(same, key=lambda one: one[0].total) for same in found if same]
    if training.lora_rank and not training.head and not training.on_gpu:  # from a GPU they go to the host
        worst.append((plan.saving_phase(training), work.longest))
    beside = {"Python and libraries": libraries} if libraries else {}
    return [(Phase(phase.name, beside | dict(phase.parts)), load) for phase, load in worst]


def _sampling_seconds(training: Training, work: Work, speed: Callable[[int], Speed]) -> float:
    """Of a step: what is learned from, and what is sampled beside, each at the speed of so many sequences together."""
    seconds = 0.0
    for load, longest in zip((work.expected, *work.beside), (work.longest, *work.longest_beside), strict=True):
        together = plan.decoded_together(training, longest, cache_bytes=work.cache)
        seconds += plan.sampling_seconds(training, load, speed(together), cache_bytes=work.cache)
    return seconds


def _update_seconds(training: Training, work: Work, speed: Speed) -> float:
    """Of a step: what was sampled, and the text that is learned with it."""
    text = work.updates * work.text.tokens * speed.trained_token if work.text else 0.0
    return plan.update_seconds(training, work.expected, speed, updates=work.updates) + text


def _warnings(
    training: Training, work: Work, worst: Sequence[tuple[Phase, Load]], available: int, disk: int, free: int
) -> list[str]:
    """What will not fit, and what to change."""
    found: list[str] = []
    for phase, computed in worst:
        found += plan.what_to_change(training, computed, [phase], available, cache_bytes=work.cache)
    load = work.longest
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
        remedies = "keep fewer (--keep-last 1)"
        remedies += "" if training.lora_rank else ", or train an adapter (--lora-rank 16)"
        found.append(
            f"checkpoints take up to {disk / GB:.1f} GB and {free / GB:.1f} GB are free here; make room, {remedies}"
        )
    return found
