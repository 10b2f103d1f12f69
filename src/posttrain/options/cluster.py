"""The processes of a run on a Ray cluster."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from posttrain.errors import UserError
from posttrain.options.option import Form, Range, options_of

_ADDRESS = re.compile(r"(ray://)?(\[[0-9a-fA-F:.]+\]|[\w.-]+):\d{1,5}")


@dataclass(frozen=True)
class TrainerOptions(Form):
    """Trainers on a Ray cluster."""

    HELP: ClassVar[Mapping[str, str]] = {"run": ""}
    trainers: Annotated[int, Range(0)] = 0
    """Trainer processes on a Ray cluster, 0: none; all is done in this process. Each computes its share of every batch;
    the number changes rounding alone."""
    fsdp: bool = False
    """Shard weights, gradients and optimizer states over the trainers (FSDP2). Otherwise each trainer holds all."""
    fsdp_replicas: Annotated[int, Range(1)] = 1
    """With `fsdp`: replicas of the sharded model (HSDP), which must divide `trainers`. Each is sharded over
    trainers / replicas neighbouring trainers: of one node, if each node has a multiple of that many."""
    fsdp_offload: bool = False
    """With `fsdp`, also for `trainers=1`: keep the shards in host memory, and compute AdamW there. A GPU holds the
    layers that compute. Slower than `offload_optimizer`. Without a GPU it changes no result."""
    address: str = "local"
    """Ray cluster: local, auto, HOST:PORT or ray://HOST:PORT. local starts one on this machine that ends with the run;
    auto finds the one that runs on this machine."""
    trainer_cpus: Annotated[float, Range(0, out="low")] = 1.0
    """Logical CPUs that Ray reserves for each trainer."""
    trainer_gpus: Annotated[float | None, Range(0, 1)] = None
    """GPUs reserved for each trainer, 0 to 1; with 0 it computes on the CPU. Default: 1 if the cluster has GPUs."""
    trainer_memory_gb: Annotated[float, Range(0)] = 0.0
    """Memory in GB that Ray reserves for each trainer, 0: none; a dry run prints what one needs."""
    trainer_threads: Annotated[int, Range(0)] = 0
    """Threads of each trainer, 0: those of this machine divided by the number of trainers."""
    cluster_timeout: Annotated[float, Range(0, out="low")] = 600.0
    """Seconds that a call to a process may take. After that the process counts as lost, and is replaced: a sampler or a
    scorer alone, trainers all together from the last checkpoint. A scorer's call is its share of a batch, or
    a part of the tokens where a judge or player samples."""

    def together(self) -> None:
        """Processes beside trainers need those, replicas divide them, and the address is one."""
        other = next(filter(self.says, options_of(type(self))), "")
        if other and not self.trainers:
            raise UserError(f"`{other}` needs trainer processes: pass `trainers=1` or more")
        if self.trainers > 1 and (self.trainer_gpus or 0.0) % 1:
            raise UserError(
                f"`trainer_gpus={self.trainer_gpus:g}` needs `trainers=1`: several trainers cannot share a GPU (NCCL)"
            )
        if self.fsdp_offload and not self.fsdp:
            raise UserError("`fsdp_offload` needs `fsdp`: without shards, pass `offload_optimizer`")
        replicas, trainers = self.fsdp_replicas, self.trainers
        if replicas > 1 and not self.fsdp:
            raise UserError("`fsdp_replicas` needs `fsdp`: without shards each trainer is a replica")
        if replicas > 1 and (trainers % replicas or trainers < 2 * replicas):
            raise UserError(
                f"`fsdp_replicas={replicas}` must divide `trainers` and leave at least two of them for each replica; "
                f"got `trainers={trainers}`"
            )
        if self.address not in ("local", "auto") and not _ADDRESS.fullmatch(self.address):
            raise UserError(
                f"`address` is local, auto, HOST:PORT or ray://HOST:PORT; got '{self.address}'. The port of ray start "
                "is 6379, that of ray:// 10001"
            )


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(TrainerOptions):
    """Trainers and samplers on a Ray cluster."""

    samplers: Annotated[int, Range(1)] = 1
    """Sampler processes, with `trainers`. Each has an engine and a copy of the policy, renewed before every batch."""
    sampler_cpus: Annotated[float, Range(0, out="low")] = 1.0
    """Logical CPUs that Ray reserves for each sampler."""
    sampler_gpus: Annotated[float | None, Range(0, 1)] = None
    """GPUs reserved for each sampler, 0 to 1; with 0 it computes on the CPU. Default: 1 if the cluster has GPUs."""
    sampler_memory_gb: Annotated[float, Range(0)] = 0.0
    """Memory in GB that Ray reserves for each sampler, 0: none; a dry run prints what one needs."""
    sampler_threads: Annotated[int, Range(0)] = 0
    """Threads of each sampler, 0: those of this machine divided by the number of samplers."""


@dataclass(frozen=True, kw_only=True)
class ScorerOptions(ClusterOptions):
    """Trainers, samplers and scorers on a Ray cluster."""

    scorers: Annotated[int, Range(0)] = 0
    """Scorer processes, with `trainers`, 0: none; this process does their work. Each loads the reward models
    (`reward_model`, `gold_model`), the reward functions of files (`reward="FILE.py:FUNCTION"`) and the local models of
    judges and seats (`judge`, `seats`), and works on its share of every batch."""
    scorer_cpus: Annotated[float, Range(0, out="low")] = 1.0
    """Logical CPUs that Ray reserves for each scorer."""
    scorer_gpus: Annotated[float | None, Range(0, 1)] = None
    """GPUs reserved for each scorer, 0 to 1; with 0 it computes on the CPU. Default: 1 if the cluster has GPUs and the
    scorers have models."""
    scorer_memory_gb: Annotated[float, Range(0)] = 0.0
    """Memory in GB that Ray reserves for each scorer, 0: none; a dry run prints what one needs."""
    scorer_threads: Annotated[int, Range(0)] = 0
    """Threads of each scorer, 0: those of this machine divided by the number of scorers."""


@dataclass(frozen=True, kw_only=True)
class AsyncOptions(ScorerOptions):
    """Processes on a Ray cluster that may work at the same time."""

    NEEDS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "in_flight_updates": ("max_staleness", "`max_staleness` above 0: otherwise no weights change meanwhile"),
        "evict_stale": (
            "in_flight_updates",
            "`in_flight_updates` (with `max_staleness` above 0): otherwise new weights wait for all groups",
        ),
    }

    max_staleness: Annotated[int, Range(0)] = 0
    """Maximum age of the weights that a step was sampled from, in steps, 0: sampling and training take turns. Above 0
    samplers go on while trainers train, and importance weights correct for the age (`tis_cap`)."""
    in_flight_updates: bool = False
    """With `max_staleness`: samplers take new weights in the middle of completions, which go on with the keys and
    values of the old ones. Otherwise they finish what they have first."""
    evict_stale: bool = False
    """With `in_flight_updates`: steps train on the groups that finish first, and a group that would be older than
    `max_staleness` is dropped (groups/evicted). Faster where few completions are long; those are the ones dropped.
    Otherwise steps train in the order in which they began, and nothing is dropped."""
