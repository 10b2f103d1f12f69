"""The processes of a run on a Ray cluster."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar


@dataclass(frozen=True)
class TrainerOptions:
    """Trainers on a Ray cluster."""

    HELP: ClassVar[Mapping[str, str]] = {"run": ""}
    trainers: int = 0
    """Trainer processes on a Ray cluster, 0: none; all is done in this process. Each computes its share of every batch;
    the number changes rounding alone."""
    fsdp: bool = False
    """Shard weights, gradients and optimizer states over the trainers (FSDP2). Otherwise each trainer holds all."""
    fsdp_replicas: int = 1
    """With --fsdp: replicas of the sharded model (HSDP), which must divide --trainers. Each is sharded over
    trainers / replicas neighbouring trainers: of one node, if each node has a multiple of that many."""
    fsdp_offload: bool = False
    """With --fsdp, also for --trainers 1: keep the shards in host memory, and compute AdamW there. A GPU holds the
    layers that compute. Slower than --offload-optimizer. Without a GPU it changes no result."""
    address: str = "local"
    """Ray cluster: local, auto, HOST:PORT or ray://HOST:PORT. local starts one on this machine that ends with the run;
    auto finds the one that runs on this machine."""
    trainer_cpus: float = 1.0
    """Logical CPUs that Ray reserves for each trainer."""
    trainer_gpus: float | None = None
    """GPUs reserved for each trainer, 0 to 1; with 0 it computes on the CPU. Default: 1 if the cluster has GPUs."""
    trainer_memory_gb: float = 0.0
    """Memory in GB that Ray reserves for each trainer, 0: none; --dry-run prints what one needs."""
    trainer_threads: int = 0
    """Threads of each trainer, 0: those of this machine divided by the number of trainers."""
    cluster_timeout: float = 600.0
    """Seconds that a call to a process may take. After that the process counts as lost, and is replaced: a sampler or a
    scorer alone, trainers all together from the last checkpoint. A scorer's call is its share of a batch, or
    a part of the tokens where a judge or player samples."""


@dataclass(frozen=True)
class ClusterOptions(TrainerOptions):
    """Trainers and samplers on a Ray cluster."""

    HELP: ClassVar[Mapping[str, str]] = {"run": ""}

    _: KW_ONLY
    samplers: int = 1
    """Sampler processes, with --trainers. Each has an engine and a copy of the policy, renewed before every batch."""
    sampler_cpus: float = 1.0
    """Logical CPUs that Ray reserves for each sampler."""
    sampler_gpus: float | None = None
    """GPUs reserved for each sampler, 0 to 1; with 0 it computes on the CPU. Default: 1 if the cluster has GPUs."""
    sampler_memory_gb: float = 0.0
    """Memory in GB that Ray reserves for each sampler, 0: none; --dry-run prints what one needs."""
    sampler_threads: int = 0
    """Threads of each sampler, 0: those of this machine divided by the number of samplers."""


@dataclass(frozen=True)
class ScorerOptions(ClusterOptions):
    """Trainers, samplers and scorers on a Ray cluster."""

    HELP: ClassVar[Mapping[str, str]] = {"run": ""}

    _: KW_ONLY
    scorers: int = 0
    """Scorer processes, with --trainers, 0: none; this process does their work. Each loads the reward models
    (--reward-model, --gold-model), the reward functions of files (--reward FILE.py:FUNCTION) and the local models of
    judges and seats (--judge, --seats), and works on its share of every batch."""
    scorer_cpus: float = 1.0
    """Logical CPUs that Ray reserves for each scorer."""
    scorer_gpus: float | None = None
    """GPUs reserved for each scorer, 0 to 1; with 0 it computes on the CPU. Default: 1 if the cluster has GPUs and the
    scorers have models."""
    scorer_memory_gb: float = 0.0
    """Memory in GB that Ray reserves for each scorer, 0: none; --dry-run prints what one needs."""
    scorer_threads: int = 0
    """Threads of each scorer, 0: those of this machine divided by the number of scorers."""


@dataclass(frozen=True)
class AsyncOptions(ScorerOptions):
    """Processes on a Ray cluster that may work at the same time."""

    HELP: ClassVar[Mapping[str, str]] = {"run": ""}

    _: KW_ONLY
    max_staleness: int = 0
    """Maximum age of the weights that a step was sampled from, in steps, 0: sampling and training take turns. Above 0
    samplers go on while trainers train, and importance weights correct for the age (--tis-cap)."""
    in_flight_updates: bool = False
    """With --max-staleness: samplers take new weights in the middle of completions, which go on with the keys and
    values of the old ones. Otherwise they finish what they have first."""
    evict_stale: bool = False
    """With --in-flight-updates: steps train on the groups that finish first, and a group that would be older than
    --max-staleness is dropped (groups/evicted). Faster where few completions are long; those are the ones dropped.
    Otherwise steps train in the order in which they began, and nothing is dropped."""
