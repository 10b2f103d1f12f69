"""`--dry-run`: the cost of a run, and what does not fit.

Nothing is trained and no weights are read: memory is computed from the model's configuration (models/footprint.py),
time is measured on two cut-down copies of the model, with few and with more layers of random weights.
Not included: evaluations during the run, and the load of other programs.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import torch

from posttrain.algorithms.algorithm import OnlineAlgorithm, PreferenceAlgorithm, UnpairedAlgorithm
from posttrain.algorithms.inputs import ReferenceLogprobs, declared, trained
from posttrain.algorithms.load import Load
from posttrain.bindings import cluster_options
from posttrain.bindings.algorithm import check_algorithm, check_pairing, leaves_start
from posttrain.bindings.backend import lora_of
from posttrain.bindings.cluster_options import ONE_PROCESS, ClusterOptions, TrainerOptions, shards_of
from posttrain.bindings.prover import find_prover
from posttrain.bindings.sampling import read_prompts
from posttrain.errors import UserError, words_of
from posttrain.models.footprint import adapter_size, empty_network, read_shape
from posttrain.models.load import locate
from posttrain.models.lora import is_adapter
from posttrain.models.precision import default_device, dtype_of
from posttrain.options.groups import TrainingOptions
from posttrain.options.online import RL, OnlineOptions, OnlinePreference
from posttrain.planning import costs
from posttrain.planning.costs import GB, Networks, Phase, Speed, Training
from posttrain.planning.result import Plan, placed
from posttrain.planning.step_time import computing_with, measured_speed, step_time
from posttrain.planning.work import Unloaded, Work, sampled_work, unloaded, with_algorithm
from posttrain.runs.environment import available_bytes, peak_gb
from posttrain.training.optimizer import OPTIMIZERS, nothing_to_quantize
from posttrain.training.resolve_model import began_from, saved_model
from posttrain.training.schedule import unreached
from posttrain.training.supervised import longest_text, pretraining_texts
from posttrain.training.teacher import NO_TEACHERS, Teachers, find_teachers

EMBEDDED = "embedded"
MOST_TEXTS = 500  # pretraining texts whose lengths a plan measures


def plan_of(
    config: TrainingOptions, work: Work, cluster: TrainerOptions = ONE_PROCESS, *, measure: bool = True
) -> Plan:
    """Estimate a run with these options; raises `UserError` for what the run would refuse.

    Without `measure` there is no time estimate, which takes some seconds.
    """
    cluster_options.check_cluster(cluster, engine := getattr(config, "engine", EMBEDDED))
    elsewhere = () if engine == EMBEDDED else (f"sampling is that of the embedded engine here, and not of {engine}",)
    libraries = int(peak_gb() * GB)  # what Python, torch and the rest take before any model
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    device = default_device()
    dtype = dtype_of(config.precision, device)
    training = _training(config, work, dtype, device)
    worst = _worst(training, work, libraries if device == "cpu" else 0)
    host = available_bytes()
    available = torch.cuda.mem_get_info()[0] if device == "cuda" else host + libraries
    disk = (config.keep_last + 2) * costs.checkpoint_bytes(training)  # the best, and the one that is being written
    free = shutil.disk_usage(Path.cwd()).free

    @cache
    def speed(together: int, threads: int) -> Speed:
        with computing_with(threads):
            return measured_speed(training, work.expected, dtype, device, together)

    # `placed` says it of trainers, and of their shards
    sharded = shards_of(cluster) > 1 or cluster.fsdp_offload
    alone = [one for one in worst if not (sharded and one[0].name == "update")]
    offloaded, too_much = _offloaded(training, host) if training.offload and not cluster.trainers else ([], [])
    time = step_time(training, work, cluster, speed) if measure else None
    plan = Plan(
        work=work,
        training=training,
        precision=str(dtype).removeprefix("torch."),
        phases=tuple(phase for phase, _ in worst),
        available=available,
        time=time,
        disk=disk,
        free=free,
        busy=busy,
        warnings=(*_warnings(training, work, alone, available, disk, free), *too_much),
        notes=(*work.notes, *elsewhere, *offloaded),
    )
    return placed(plan, cluster, functions=work.functions, served=bool(cluster_options.servers_in(engine)))


def _training(config: TrainingOptions, work: Work, dtype: torch.dtype, device: str) -> Training:
    shape, lora = work.shape, lora_of(config)
    if lora and is_adapter(locate(shape.name)):
        raise UserError(f"'{shape.name}' is an adapter already; leave out `lora_rank` to train that one further")
    training = Training(
        shape,
        dtype.itemsize,
        lora.rank if lora else 0,
        device == "cuda",
        OPTIMIZERS[config.optim],
        config.gradient_checkpointing,
        adapter_size(empty_network(shape.name), lora, shape.name) if lora else None,
        config.offload_optimizer and device == "cuda",
        **{each.name: getattr(work, each.name) for each in fields(Networks)},
    )
    if training.moment_bits == 8 and not shape.quantized(training.lora_rank):
        raise UserError(nothing_to_quantize(config.optim))
    return training


def _worst(training: Training, work: Work, libraries: int) -> list[tuple[Phase, Load]]:
    sampled = (work.longest, *work.longest_beside) if work.cache else ()
    learned = (work.updated[0] if work.updated else work.longest, *((work.text,) if work.text else ()))
    sampling = [(costs.sampling_phase(training, load, cache_bytes=work.cache), load) for load in sampled]
    updates = [(costs.update_phase(training, load), load) for load in learned]
    worst = [max(same, key=lambda one: one[0].total) for same in (sampling, updates) if same]
    if training.lora_rank and not training.head and not training.on_gpu:  # from a GPU they go to the host
        worst.append((costs.saving_phase(training), work.longest))
    beside = {costs.LIBRARIES: libraries} if libraries else {}
    return [(Phase(phase.name, beside | dict(phase.parts)), load) for phase, load in worst]


def _offloaded(training: Training, available: int) -> tuple[list[str], list[str]]:
    """What an offloaded optimiser takes of host memory: a note, and a warning if that is too much."""
    parts = training.optimizer()
    needed = sum(parts.values())
    shown = ", ".join(f"{name} {size / GB:.2f} GB" for name, size in parts.items())
    less = replace(training, moment_bits=8) if training.shape.quantized(training.lora_rank) else training
    remedy = '`optim="adamw-8bit"`' if sum(less.optimizer().values()) <= available else "`lora_rank=16`"
    too_much = (
        f"the optimizer needs {needed / GB:.1f} GB of host memory, and {available / GB:.1f} GB are available; type "
        f"{remedy}"
    )
    return [f"the optimizer is in host memory: {shown}"], [too_much] if needed > available else []


def _warnings(
    training: Training, work: Work, worst: Sequence[tuple[Phase, Load]], available: int, disk: int, free: int
) -> list[str]:
    """Messages about what does not fit, and which options to change."""
    advice = (costs.what_to_change(training, part, phase, available, cache_bytes=work.cache) for phase, part in worst)
    found = list(filter(None, advice))
    load = work.longest
    longest, context = load.prompt_tokens + load.completion_tokens, training.shape.context
    if longest > context:
        found.append(
            f"prompt and completion may have {longest} tokens, but the model holds {context}; it cuts them there"
        )
    if disk > free:
        adapter = "" if training.lora_rank else ", or train an adapter (`lora_rank=16`)"
        found.append(
            f"checkpoints take up to {disk / GB:.1f} GB and {free / GB:.1f} GB are free here; make room, keep fewer "
            f"(`keep_last=1`){adapter}"
        )
    return found


def plan_rl(
    config: RL,
    algorithm: OnlineAlgorithm,
    cluster: ClusterOptions = ONE_PROCESS,
    resume: Path | None = None,
    *,
    measure: bool = True,
) -> Plan:
    """Plan a run of rl; raises `UserError` as that would before weights are read."""
    check_algorithm(config, algorithm, cluster)
    model = unloaded(config, resume)
    began = began_from(config.model, resume).where
    tokens = config.microbatch_tokens
    teachers = find_teachers(config.teacher, config.teacher_prompt, began, microbatch_tokens=tokens)
    compared = declared(algorithm, ReferenceLogprobs) is not None
    apart = leaves_start(config) and (not compared or config.ref_sync_every > 0)
    work, prover = _sampled("rl", config, model, config.steps, teachers=teachers), find_prover(config, began)
    work = replace(
        with_algorithm(work, algorithm, text=_text(config, model) if algorithm.extra_losses else None),
        updates=config.updates_per_step,
        trained=sum(config.critic == "own" if need.head else 1 for need in trained(algorithm).values()),
        references=compared + apart,
        chat_models=work.chat_models + (prover.shape.parameters if prover else 0),
        teachers=tuple(each.shape for each in teachers.models.values()),
    )
    return plan_of(config, work, cluster, measure=measure)


def plan_online_preference(
    config: OnlinePreference,
    algorithm: PreferenceAlgorithm | UnpairedAlgorithm,
    cluster: ClusterOptions = ONE_PROCESS,
    resume: Path | None = None,
    *,
    measure: bool = True,
) -> Plan:
    """Plan a run of online-preference; raises `UserError` as that would before weights are read."""
    check_pairing(config, algorithm)
    work = _sampled("online-preference", config, unloaded(config, resume), config.rounds, together=2)
    compared = declared(algorithm, ReferenceLogprobs) is not None
    pairs = min(config.pairs_per_step, work.longest.prompts * (work.longest.group // 2))  # if there are as many
    work = replace(
        work,
        batch=f"{work.batch}, {pairs} pairs of them an update",
        updates=config.updates_per_round,
        updated=(replace(work.longest, prompts=pairs, group=2), replace(work.expected, prompts=pairs, group=2)),
        references=int(compared),
        reads=config.updates_per_round if compared else 0,
    )
    return plan_of(config, work, cluster, measure=measure)


def _sampled(
    command: str,
    config: OnlineOptions,
    model: Unloaded,
    steps: int,
    *,
    together: int = 1,
    teachers: Teachers = NO_TEACHERS,
) -> Work:
    prompts = read_prompts(config, model.chat, model.shape.context, together=together, teachers=teachers)
    work = sampled_work(command, model.shape, config, prompts.lengths, steps=steps, episode=prompts.episode)
    scorers = [name for name in (*words_of("reward_model", config.reward_model), config.gold_model) if name]
    return replace(
        work,
        reward_models=sum(read_shape(saved_model(name).where).parameters for name in scorers),
        functions=prompts.functions,
        chat_models=prompts.chat_models,
        notes=(*model.notes, *prompts.notes, *unreached(config.warmup_steps, steps)),
    )


def _text(config: RL, model: Unloaded) -> Load:
    most, texts = longest_text(config, model.shape.context), pretraining_texts(config)[:MOST_TEXTS]
    lengths = [min(len(model.chat.text_ids(text)), most) for text in texts]
    return Load(config.pretraining_per_step, 1, 0, round(sum(lengths) / len(lengths)), config.microbatch_tokens)
