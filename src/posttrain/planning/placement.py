"""`--dry-run` of a run on a cluster: what each process holds, and what is sent."""

from dataclasses import replace

from posttrain.planning.costs import GB, Phase, Training
from posttrain.planning.result import Plan
from posttrain.setup.cluster_options import (
    ClusterOptions,
    ScorerOptions,
    TrainerOptions,
    check_cluster,
    refuse_idle_scorers,
    staleness_of,
)

MODELS = "reward models"
ELSEWHERE = (MODELS,)  # these are in the process of the command, or in those of scorers


def placed(plan: Plan, cluster: TrainerOptions) -> Plan:
    """The plan with what a trainer and a sampler hold; unchanged for a run in one process.

    Each trainer computes its rows one after another, so that it takes as much memory as the one process; of shards its
    part of what is held, and the embedding, which is gathered for each row. Its time is not estimated.
    """
    check_cluster(cluster)
    if not cluster.trainers:
        return plan
    phases = {phase.name: phase for phase in plan.phases}
    trainer = sum(size for name, size in phases["update"].parts.items() if name not in ELSEWHERE)
    if cluster.fsdp:
        held = sum(size for name, size in plan.training.held().items() if name not in ELSEWHERE)
        embedding = plan.training.itemsize * plan.training.shape.vocabulary * plan.training.shape.hidden
        trainer += held // cluster.trainers + embedding - held
    lines = [_line("trainer", cluster.trainers, trainer, cluster.trainer_cpus, cluster.trainer_gpus)]
    together = cluster.trainers * trainer
    if "sampling" in phases and isinstance(cluster, ClusterOptions):
        sampler = _sampler(plan.training, phases["sampling"])
        together += cluster.samplers * sampler
        lines.append(_line("sampler", cluster.samplers, sampler, cluster.sampler_cpus, cluster.sampler_gpus))
        sent = weights_bytes(plan.training)
        lines.append(f"{sent / GB:.2f} GB of weights are sent to each sampler in every step")
        if staleness_of(cluster):
            together += sent
            lines.append(f"the first trainer holds a copy of them, {sent / GB:.2f} GB more, while it trains on")
    if isinstance(cluster, ScorerOptions) and cluster.scorers:
        models = plan.training.held().get(MODELS, 0)
        refuse_idle_scorers(models > 0)
        together += cluster.scorers * models
        lines.append(_line("scorer", cluster.scorers, models, cluster.scorer_cpus, cluster.scorer_gpus))
    found = replace(plan, notes=(*plan.notes, "; ".join(lines)))
    if cluster.address != "local" or together <= plan.available:
        return found
    warning = (
        f"the processes need {together / GB:.1f} GB, and {plan.available / GB:.1f} GB are available here; use fewer "
        "trainers or samplers"
    )
    return replace(found, warnings=(*plan.warnings, warning))


def _line(kind: str, count: int, size: int, cpus: float, gpus: float | None) -> str:
    reserved = f"{cpus:g} CPU{'s' * (cpus != 1)}" + (f" and {gpus:g} GPU" if gpus else "")
    return f"{count} {kind}{'s' * (count > 1)} of {size / GB:.1f} GB and {reserved} each"


def _sampler(training: Training, sampling: Phase) -> int:
    """Bytes of a process that only samples."""
    held = training.held()
    decoding = sum(size for name, size in sampling.parts.items() if name not in held)
    return decoding + training.shape.parameters * training.itemsize + held.get("adapter", 0)


def weights_bytes(training: Training) -> int:
    """Bytes of the trained weights as a sampler gets them: of an adapter, in float32, the adapter alone."""
    return training.trainable * (4 if training.lora_rank else training.itemsize)
