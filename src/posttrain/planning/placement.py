"""`--dry-run` of a run on a cluster: what each process holds, and what is sent."""

import os
from dataclasses import replace

from posttrain.planning.costs import GB, Phase, Training
from posttrain.planning.result import Plan
from posttrain.planning.step_time import weights_bytes
from posttrain.setup.cluster_options import (
    LOCAL,
    ClusterOptions,
    ScorerOptions,
    TrainerOptions,
    refuse_idle_scorers,
    reserved,
    reserved_by_all,
    shards_of,
    staleness_of,
)

MODELS = "reward models"
ELSEWHERE = (MODELS,)  # these are in the process of the command, or in those of scorers
LATER = ("float32 masters", "float32 gradients", "Adam state")  # what a trainer has once it has its shard
ALONE = "memory above is that of one process that does everything"
AS_FAST = "time is of processes that each compute as this one does with as many threads, without scoring and waiting"


def placed(plan: Plan, cluster: TrainerOptions, *, functions: bool = False) -> Plan:
    """The plan with what a trainer and a sampler hold; unchanged for a run in one process.

    Each trainer computes its rows one after another, so that it takes as much memory as the one process. With shards it
    takes its part of what is held, and the embedding, which is gathered for each row; or, if that is more, the weights
    that it has in full while it makes their shards.

    Args:
        plan: of one process.
        cluster: the processes.
        functions: whether there are reward functions that scorers run; what these hold is not known.
    """
    if not cluster.trainers:
        return plan
    phases = {phase.name: phase for phase in plan.phases}
    trainer = sum(size for name, size in phases["update"].parts.items() if name not in ELSEWHERE)
    if (shards := shards_of(cluster)) > 1:
        held = {name: size for name, size in plan.training.held().items() if name not in ELSEWHERE}
        computing = trainer - sum(held.values())
        embedding = plan.training.itemsize * plan.training.shape.vocabulary * plan.training.shape.hidden
        loaded = sum(size for name, size in held.items() if name not in LATER)
        trainer = max(loaded + loaded // shards, sum(held.values()) // shards + embedding + computing)
    lines = [_line(cluster, "trainer", cluster.trainers, trainer)]
    together = cluster.trainers * trainer
    if "sampling" in phases and isinstance(cluster, ClusterOptions):
        sampler = _sampler(plan.training, phases["sampling"])
        together += cluster.samplers * sampler
        lines.append(_line(cluster, "sampler", cluster.samplers, sampler))
        sent = weights_bytes(plan.training)
        lines.append(f"{sent / GB:.2f} GB of weights are sent to each sampler in every step")
        if staleness_of(cluster):
            together += sent
            lines.append(f"the first trainer holds a copy of them, {sent / GB:.2f} GB more, while it trains on")
    if isinstance(cluster, ScorerOptions) and cluster.scorers:
        models = plan.training.held().get(MODELS, 0)
        refuse_idle_scorers(models > 0 or functions)
        together += cluster.scorers * models
        lines.append(_line(cluster, "scorer", cluster.scorers, models, functions=functions))
    notes = [*plan.notes]
    if cluster.address == LOCAL and (cpus := reserved_by_all(cluster, "cpus")) > (here := os.cpu_count() or 1):
        notes.append(f"the processes reserve {cpus:g} CPUs, and this machine has {here}, so that each is slower")
    notes += [ALONE if plan.time is None else f"{ALONE}; {AS_FAST}", "; ".join(lines)]
    found = replace(plan, notes=tuple(notes))
    if cluster.address != LOCAL or together <= plan.available:
        return found
    warning = (
        f"the processes need {together / GB:.1f} GB, and {plan.available / GB:.1f} GB are available here; use fewer "
        "trainers or samplers"
    )
    return replace(found, warnings=(*plan.warnings, warning))


def _line(cluster: TrainerOptions, kind: str, count: int, size: int, *, functions: bool = False) -> str:
    share = reserved(cluster, kind)
    amounts = [f"{share['cpus']:g} CPU{'s' * (share['cpus'] != 1)}"]
    amounts += [f"{share['gpus']:g} GPU"] if share["gpus"] else []
    memory = f" ({share['memory_gb']:g} GB reserved)" if share["memory_gb"] else ""
    held = [f"{size / GB:.1f} GB"] if size or not functions else []
    held += ["what reward functions hold"] if functions else []
    return f"{count} {kind}{'s' * (count > 1)} of {' plus '.join(held)}{memory} and {' and '.join(amounts)} each"


def _sampler(training: Training, sampling: Phase) -> int:
    """Bytes of a process that only samples."""
    held = training.held()
    decoding = sum(size for name, size in sampling.parts.items() if name not in held)
    return decoding + training.shape.parameters * training.itemsize + held.get("adapter", 0)
