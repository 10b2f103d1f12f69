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
from collections.abc import Sequence
from pathlib import Path

import torch

from posttrain.models.footprint import read_shape
from posttrain.models.precision import default_device, dtype_of
from posttrain.monitoring.memory import available_bytes, peak_gb
from posttrain.recipes.plan.forms import Config, PlanPreference, PlanRewardModel, PlanRL, PlanSFT
from posttrain.recipes.plan.speed import measured_speed
from posttrain.recipes.plan.work import Work, work_of
from posttrain.training import plan
from posttrain.training.plan import GB, Load, Phase, Speed, Training
from posttrain.training.plan_result import PlanResult

__all__ = ["PlanPreference", "PlanRL", "PlanRewardModel", "PlanSFT", "run"]


def run(config: Config) -> PlanResult:
    """Work out what a run with these options will take."""
    libraries = int(peak_gb() * GB)  # what Python, torch and the rest take before any model
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    device = default_device()
    dtype = dtype_of(config.precision, device)
    shape = read_shape(config.model)
    work = work_of(config, shape)
    training = Training(
        shape, dtype.itemsize, work.lora_rank, work.reference, device == "cuda", work.head, work.reads, work.critic
    )
    sampled = [work.longest, *work.beside] if work.cache else []
    learned = [work.longest, *([work.text] if work.text else [])]
    by_load = (
        [plan.sampling_phase(training, load, cache_bytes=work.cache) for load in sampled],
        [plan.update_phase(training, load) for load in learned],
    )
    phases = [max(same, key=lambda phase: phase.total) for same in by_load if same]
    if device == "cpu":
        phases = [Phase(p.name, {"Python and libraries": libraries} | dict(p.parts)) for p in phases]
    available = torch.cuda.mem_get_info()[0] if device == "cuda" else available_bytes() + libraries
    disk = (config.keep_last + 2) * plan.checkpoint_bytes(training)  # the best, and the one that is being written
    free = shutil.disk_usage(Path.cwd()).free
    together = plan.decoded_together(training, work.longest, cache_bytes=work.cache) if work.cache else 0
    speed = measured_speed(training, work.expected, dtype, device, together) if config.measure else None
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
        phases=tuple(phases),
        available=available,
        together=together,
        sampling_seconds=_sampling_seconds(training, work, speed) if speed and work.cache else None,
        update_seconds=_update_seconds(training, work, speed) if speed else None,
        disk=disk,
        free=free,
        busy=busy,
        warnings=tuple(_warnings(training, work.longest, phases, available, work.cache, disk, free)),
    )


def _sampling_seconds(training: Training, work: Work, speed: Speed) -> float:
    """Of a step: what is learned from, and what is sampled beside."""
    loads = (work.expected, *work.beside)
    return sum(plan.sampling_seconds(training, load, speed, cache_bytes=work.cache) for load in loads)


def _update_seconds(training: Training, work: Work, speed: Speed) -> float:
    """Of a step: what was sampled, and the text that is learned with it."""
    text = work.updates * work.text.tokens * speed.trained_token if work.text else 0.0
    return plan.update_seconds(training, work.expected, speed, updates=work.updates) + text


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
