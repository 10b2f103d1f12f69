"""`--dry-run` of a run on a cluster: what each process holds, and what is sent."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

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
from posttrain.planning.costs import CHAT_MODELS, GB, LIBRARIES, REWARD_MODELS, Training
from posttrain.planning.result import Plan
from posttrain.planning.step_time import weights_bytes
from posttrain.runs.environment import available_bytes

ELSEWHERE = (REWARD_MODELS, CHAT_MODELS)  # these are in the process of the command, or in those of scorers
FROZEN = ("weights", "reference", "teacher")  # sharded also with an adapter; the rest of full weights comes later
CHAT_CACHE = int(1.5 * 2**30)  # bytes, of `load_policy` for a judge or player
ALONE = "memory above is that of one process that does everything"
AS_FAST = "time is of processes that each compute as this one does with as many threads, without scoring and waiting"


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
    need = _Need(sum(update.values()), sum(plan.training.optimizer().values()) if plan.training.offload else 0)
    if shards_of(cluster) > 1 or cluster.fsdp_offload:
        need = _sharded(plan.training, cluster, update, need.host)
    lines = [_line(cluster, "trainer", cluster.trainers, need.device), *need.on_host()]
    each, together = need.device, cluster.trainers * need.device
    if "sampling" in phases and isinstance(cluster, ClusterOptions):
        held = plan.training.held()
        sampler = plan.training.shape.parameters * plan.training.itemsize + held.get("adapter", 0)
        if not served:
            sampler += sum(size for name, size in phases["sampling"].parts.items() if name not in held)
        each, together = each if served else max(each, sampler), together + cluster.samplers * sampler
        lines.append(_line(cluster, "sampler", cluster.samplers, sampler))
        sent = weights_bytes(plan.training)
        lines.append(f"{sent / GB:.2f} GB of weights are sent to each sampler in every step")
        if getattr(cluster, "max_staleness", 0):
            together += sent
            lines.append(f"the first trainer holds a copy of them, {sent / GB:.2f} GB more, while it trains on")
    models = sum(plan.training.held().get(name, 0) for name in ELSEWHERE)
    if isinstance(cluster, ScorerOptions) and cluster.scorers:
        refuse_idle_scorers(models > 0 or functions)
        packed = 0 if plan.training.on_gpu or plan.training.itemsize != 2 else plan.training.held().get(CHAT_MODELS, 0)
        scorer = update.get(LIBRARIES, 0) + models + packed  # the weights of chat models, while they sample
        together += cluster.scorers * scorer
        unknown = ["what reward functions hold"] if functions else []
        unknown += [f"at most {CHAT_CACHE / GB:.1f} GB of KV cache"] if plan.training.chat_models else []
        lines.append(_line(cluster, "scorer", cluster.scorers, scorer, unknown))
    elif models:
        together += models
        lines.append(f"the process of the command holds {models / GB:.1f} GB of models that score, judge or play")
    notes = [*plan.notes]
    if cluster.address == LOCAL and (cpus := reserved_by_all(cluster, "cpus")) > (here := os.cpu_count() or 1):
        notes.append(f"the processes reserve {cpus:g} CPUs, and this machine has {here}, so that each is slower")
    notes += [ALONE if plan.time is None else f"{ALONE}; {AS_FAST}", "; ".join(lines)]
    warnings = (*plan.warnings, *(_too_much(plan, cluster, need, each, together) if cluster.address == LOCAL else []))
    return replace(plan, notes=tuple(notes), warnings=warnings)


class _Need(NamedTuple):
    """Bytes of a trainer: where it computes, in host memory if that is elsewhere, and there while it starts."""

    device: int
    host: int
    starting: int = 0

    def on_host(self) -> list[str]:
        """What is said of host memory."""
        found = [f"each trainer keeps {self.host / GB:.1f} GB in host memory"] if self.host else []
        more = [f"each trainer takes {self.starting / GB:.1f} GB of host memory while it starts"]
        return found + (more if self.starting > self.host else [])


def _too_much(plan: Plan, cluster: TrainerOptions, need: _Need, each: int, together: int) -> list[str]:
    """What this machine lacks: each process on a GPU has one of its own, those on CPUs share the memory."""
    found: list[str] = []
    have = plan.available
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
    host, here = cluster.trainers * max(need.host, need.starting) / GB, available_bytes() / GB
    if host > here:
        found.append(f"the trainers need {host:.1f} GB of host memory, and {here:.1f} GB are available here")
    return found


def _sharded(training: Training, cluster: TrainerOptions, update: Mapping[str, int], host: int) -> _Need:
    """What a trainer with a shard needs.

    Its part of what is sharded, and for each row embedding and head and two layers' weights, one of which is fetched
    meanwhile. What is trained has a gradient, in its format and twice in float32: that of a layer, or of embedding and
    head. While it starts it has the weights in full as well as their shards, in host memory. `update` and `host` are
    what it needs without shards, there and in host memory.
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
        return _Need(max(loaded, sharded // shards + working), 0)
    if cluster.fsdp_offload:
        return _Need(working, host + sharded // shards, loaded)
    return _Need(sharded // shards + working, host, loaded)


def _line(cluster: TrainerOptions, kind: str, count: int, size: int, unknown: Sequence[str] = ()) -> str:
    share = reserved(cluster, kind)
    amounts = [f"{share['cpus']:g} CPU{'s' * (share['cpus'] != 1)}"]
    amounts += [f"{share['gpus']:g} GPU"] if share["gpus"] else []
    memory = f" ({share['memory_gb']:g} GB reserved)" if share["memory_gb"] else ""
    held = " plus ".join([f"{size / GB:.1f} GB", *unknown])
    return f"{count} {kind}{'s' * (count > 1)} of {held}{memory} and {' and '.join(amounts)} each"
