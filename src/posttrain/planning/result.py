"""The result of `--dry-run`, as data and as text, and what it says of the processes of a cluster."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from posttrain.bindings.cluster_options import (
    LOCAL,
    ClusterOptions,
    ScorerOptions,
    TrainerOptions,
    refuse_idle_scorers,
    reserved,
    reserved_by_all,
    shards_of,
)
from posttrain.planning.costs import CHAT_MODELS, GB, LIBRARIES, REWARD_MODELS, Phase, Training
from posttrain.planning.step_time import StepTime, weights_bytes
from posttrain.planning.work import Work
from posttrain.runs.environment import available_bytes

ELSEWHERE = (REWARD_MODELS, CHAT_MODELS)  # these are in the process of the command, or in those of scorers
FROZEN = ("weights", "reference", "teacher")  # sharded also with an adapter; the rest of full weights comes later
CHAT_CACHE = int(1.5 * 2**30)  # bytes, of `load_policy` for a judge or player
ALONE = "memory above is that of one process that does everything"
AS_FAST = "time is of processes that each compute as this one does with as many threads, without scoring and waiting"


@dataclass(frozen=True)
class Plan:
    """Cost estimate of a run. Bytes, seconds and tokens; memory for the longest sequences, time for expected ones."""

    work: Work
    training: Training
    precision: str
    phases: tuple[Phase, ...]
    available: int  # bytes of memory
    time: StepTime | None  # None where nothing was measured
    disk: int  # bytes of all checkpoints at the worst moment
    free: int  # bytes of disk
    busy: float  # programs that wanted a core of this machine meanwhile, over its cores
    warnings: tuple[str, ...]
    notes: tuple[str, ...] = ()  # what the run would tell its user

    @property
    def epochs(self) -> float:
        """Epochs."""
        return self.work.steps * self.work.longest.prompts / self.work.rows

    def summary(self) -> dict[str, Any]:
        """The estimate as JSON values."""
        step = None if self.time is None else self.time.step
        return {
            "command": self.work.command,
            "model": self.training.shape.name,
            "parameters": self.training.shape.parameters,
            "trainable": self.training.trainable,
            "precision": self.precision,
            "batch": self.work.longest.sequences,
            "steps": self.work.steps,
            "updates": self.work.steps * self.work.updates,
            "epochs": self.epochs,
            "tokens_per_step": self.work.expected.tokens,
            "microbatches": self.work.expected.microbatches,
            "memory": {phase.name: dict(phase.parts) for phase in self.phases},
            "peak_bytes": max(phase.total for phase in self.phases),
            "available_bytes": self.available,
            "disk_bytes": self.disk,
            "free_disk_bytes": self.free,
            "busy": self.busy,
            "seconds_per_step": step,
            "seconds": None if step is None else step * self.work.steps,
            "fits": not self.warnings,
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """The estimate as text."""
        work, shape, held, expected = self.work, self.training.shape, self.training.held(), self.work.expected
        steps, updates = _count(work.steps, "step"), _count(work.steps * work.updates, "update")
        passes = f"{self.epochs:.2g}" if self.epochs < 10 else f"{self.epochs:,.0f}"
        adapter = f", of which an adapter trains {self.training.trainable:,}" if self.training.lora_rank else ""
        return [
            f"{work.command}: {shape.name}, {shape.parameters:,} parameters{adapter}, computed in {self.precision}",
            f"batch    {work.batch}; {steps}, {updates}, {passes} passes over {_count(work.rows, 'row')}",
            f"tokens   {expected.tokens:,} a step, in {_count(expected.microbatches, 'micro-batch')} of up to "
            f"{expected.microbatch_tokens:,}; {work.lengths}",
            f"memory   {', '.join(f'{p.name} {p.total / GB:.1f} GB' for p in self.phases)}; "
            f"{self.available / GB:.1f} GB are available",
            f"         held all the time: {_shown(held)}",
            *(f"         {p.name}: {_shown({k: v for k, v in p.parts.items() if k not in held})}" for p in self.phases),
            "time     " + self._time(),
            f"disk     {self.disk / GB:.1f} GB for checkpoints at most; {self.free / GB:.1f} GB are free",
            *(f"note     {note}" for note in self.notes),
            *(f"WARNING  {warning}" for warning in self.warnings),
            *([] if self.warnings else ["It fits."]),
        ]

    def _time(self) -> str:
        if self.time is None:
            return "not measured"
        update, sampling, sync, overlapped = self.time
        most, parts = "about ", ""
        if sampling is not None:
            between, after = (" and ", " at the same time") if overlapped else (", ", "")
            sent = "" if sync is None else f", weights {_clock(sync)}"
            most, parts = "at most ", f" (sampling {_clock(sampling)}{between}update {_clock(update)}{after}{sent})"
        step, busy = self.time.step, ""
        if self.busy > 0.6:
            busy = f"; other programs kept this machine busy ({self.busy:.1f} a core), so expect less"
        unscored = ", without scoring" * bool(self.training.reward_models or self.training.chat_models)
        return f"{most}{_clock(step)} a step{parts}, {_clock(step * self.work.steps)} in all{unscored}{busy}"


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 'es' if name.endswith('ch') else 's'}"


def _shown(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size / GB:.2f} GB" for name, size in parts.items())


def _clock(seconds: float) -> str:
    """Seconds as people say them.

    >>> _clock(0.42), _clock(75.0), _clock(9000.0)
    ('0.4 s', '75 s', '2 h 30 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def placed(plan: Plan, cluster: TrainerOptions, *, functions: bool = False, served: bool = False) -> Plan:
    """The plan with what a trainer and a sampler hold; unchanged for a run in one process.

    Each trainer computes its rows one after another, so that it takes as much memory as the one process, or with shards
    what `_sharded` says. What reward `functions` hold, which scorers run, is not known. Where servers sample
    (`served`), a sampler only has the weights, in host memory.
    """
    if not cluster.trainers:
        return plan
    phases = {phase.name: phase for phase in plan.phases}
    update = {name: size for name, size in phases["update"].parts.items() if name not in ELSEWHERE}
    training, held = plan.training, plan.training.held()
    device, host, starting = sum(update.values()), sum(training.optimizer().values()) if training.offload else 0, 0
    if shards_of(cluster) > 1 or cluster.fsdp_offload:
        device, host, starting = _sharded(training, cluster, update, host)
    lines = [_line(cluster, "trainer", cluster.trainers, device)]
    if host:
        lines.append(f"each trainer keeps {host / GB:.1f} GB in host memory")
    if starting > host:
        lines.append(f"each trainer takes {starting / GB:.1f} GB of host memory while it starts")
    each, together = device, cluster.trainers * device
    if "sampling" in phases and isinstance(cluster, ClusterOptions):
        sampler = training.shape.parameters * training.itemsize + held.get("adapter", 0)
        if not served:
            sampler += sum(size for name, size in phases["sampling"].parts.items() if name not in held)
        each, together = each if served else max(each, sampler), together + cluster.samplers * sampler
        lines.append(_line(cluster, "sampler", cluster.samplers, sampler))
        sent = weights_bytes(training)
        lines.append(f"{sent / GB:.2f} GB of weights are sent to each sampler in every step")
        if getattr(cluster, "max_staleness", 0):
            together += sent
            lines.append(f"the first trainer holds a copy of them, {sent / GB:.2f} GB more, while it trains on")
    models = sum(held.get(name, 0) for name in ELSEWHERE)
    if isinstance(cluster, ScorerOptions) and cluster.scorers:
        refuse_idle_scorers(models > 0 or functions)
        packed = 0 if training.on_gpu or training.itemsize != 2 else held.get(CHAT_MODELS, 0)
        scorer = update.get(LIBRARIES, 0) + models + packed  # the weights of chat models, while they sample
        together += cluster.scorers * scorer
        unknown = ["what reward functions hold"] if functions else []
        unknown += [f"at most {CHAT_CACHE / GB:.1f} GB of KV cache"] if training.chat_models else []
        lines.append(_line(cluster, "scorer", cluster.scorers, scorer, unknown))
    elif models:
        together += models
        lines.append(f"the process of the command holds {models / GB:.1f} GB of models that score, judge or play")
    notes = [*plan.notes]
    if cluster.address == LOCAL and (cpus := reserved_by_all(cluster, "cpus")) > (here := os.cpu_count() or 1):
        notes.append(f"the processes reserve {cpus:g} CPUs, and this machine has {here}, so that each is slower")
    notes += [ALONE if plan.time is None else f"{ALONE}; {AS_FAST}", "; ".join(lines)]
    trainers = cluster.trainers * max(host, starting)
    lacks = _too_much(plan, each, together, trainers) if cluster.address == LOCAL else []
    return replace(plan, notes=tuple(notes), warnings=(*plan.warnings, *lacks))


def _too_much(plan: Plan, each: int, together: int, trainers: int) -> list[str]:
    """What this machine lacks: each process on a GPU has one of its own, those on CPUs share the memory.

    Trainers may need host memory besides.
    """
    found: list[str] = []
    have, here = plan.available, available_bytes()
    if plan.training.on_gpu and each > have:
        found.append(
            f"a process needs {each / GB:.1f} GB, and {have / GB:.1f} GB of a GPU are available here; pass `fsdp=True` "
            "with more trainers, `offload_optimizer=True` or `fsdp_offload=True`"
        )
    if not plan.training.on_gpu and together > have:
        found.append(
            f"the processes need {together / GB:.1f} GB, and {have / GB:.1f} GB are available here; use fewer trainers "
            "or samplers"
        )
    if trainers > here:
        found.append(
            f"the trainers need {trainers / GB:.1f} GB of host memory, and {here / GB:.1f} GB are available here"
        )
    return found


def _sharded(training: Training, cluster: TrainerOptions, update: Mapping[str, int], host: int) -> tuple[int, int, int]:
    """Bytes of a trainer with a shard: where it computes, in host memory if that is elsewhere, there while it starts.

    It has its part of what is sharded, and for each row embedding and head and two layers' weights, one of which is
    fetched meanwhile. What is trained has a gradient, in its format and twice in float32: that of a layer, or of
    embedding and head. While it starts it has the weights in full as well as their shards, in host memory. `update` and
    `host` are what it needs without shards, there and in host memory.
    """
    shards, shape, narrow = shards_of(cluster), training.shape, training.itemsize
    held = {name: size for name, size in training.held().items() if name not in ELSEWHERE}
    held |= {name: size for name, size in update.items() if name == "gradients"}
    sharded = sum(size for name, size in held.items() if name in FROZEN or not training.lora_rank)
    layer, table = shape.parameters // shape.layers, shape.vocabulary * shape.hidden
    ends = max(table, min(2 * table, shape.parameters - shape.active))  # a head of its own, unless it is tied
    gradient = 0 if training.lora_rank else (narrow + 8) * max(layer, ends)
    working = sum(update.values()) - sharded + narrow * (ends + 2 * layer) + gradient
    host = host if training.lora_rank else host // shards  # an adapter is replicated
    loaded = sum(size for name, size in held.items() if name in FROZEN)
    loaded += loaded // shards
    if not training.on_gpu:
        return max(loaded, sharded // shards + working), 0, 0
    if cluster.fsdp_offload:
        return working, host + sharded // shards, loaded
    return sharded // shards + working, host, loaded


def _line(cluster: TrainerOptions, kind: str, count: int, size: int, unknown: Sequence[str] = ()) -> str:
    share = reserved(cluster, kind)
    amounts = [f"{share['cpus']:g} CPU{'s' * (share['cpus'] != 1)}"]
    amounts += [f"{share['gpus']:g} GPU"] if share["gpus"] else []
    memory = f" ({share['memory_gb']:g} GB reserved)" if share["memory_gb"] else ""
    held = " plus ".join([f"{size / GB:.1f} GB", *unknown])
    return f"{count} {kind}{'s' * (count > 1)} of {held}{memory} and {' and '.join(amounts)} each"
