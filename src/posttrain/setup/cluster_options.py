"""The processes of a run on a Ray cluster."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from posttrain.errors import UserError
from posttrain.setup.training_options import at_least


@dataclass(frozen=True)
class ClusterOptions:
    """Processes on a Ray cluster."""

    HELP: ClassVar[Mapping[str, str]] = {"cluster": "trainers samplers"}
    trainers: int = 0
    """Trainer processes on a Ray cluster, 0: none; all is done in this process. Each holds all weights and computes its
    share of every batch; the number changes rounding alone."""
    samplers: int = 1
    """Sampler processes of rl and online-preference, with --trainers. Each has an engine and a copy of the policy,
    renewed before every batch."""
    address: str = "local"
    """Ray cluster: local, auto or ray://HOST:PORT. local starts one on this machine that ends with the run; auto finds
    the one that runs on this machine."""
    trainer_cpus: float = 1.0
    """Logical CPUs that Ray reserves for each trainer."""
    sampler_cpus: float = 1.0
    """Logical CPUs that Ray reserves for each sampler."""
    trainer_threads: int = 0
    """Threads of each trainer, 0: those of this machine divided by the number of trainers."""
    sampler_threads: int = 0
    """Threads of each sampler, 0: those of this machine divided by the number of samplers."""
    cluster_timeout: float = 600.0
    """Seconds that a call to a process may take. After that the process counts as lost: a sampler is replaced, and
    without a trainer the run stops."""


ONE_PROCESS = ClusterOptions()
CLUSTER = "cluster"
MAY_DIFFER = tuple(f"{CLUSTER}.{field.name}" for field in fields(ClusterOptions))
"""Options that may change when a run is resumed, as they are in its configuration."""


def settings_of(options: ClusterOptions) -> dict[str, Any]:
    """What a run's configuration says of them: nothing for one process."""
    return {CLUSTER: asdict(options)} if options.trainers else {}


def check_cluster(options: ClusterOptions, engine: str = "embedded") -> None:
    """Validate them.

    Raises:
        UserError: names the option and its valid range.
    """
    for name, least in (("trainers", 0), ("samplers", 1), ("trainer_threads", 0), ("sampler_threads", 0)):
        at_least(name, getattr(options, name), least)
    for name in ("trainer_cpus", "sampler_cpus", "cluster_timeout"):
        if not 0 < getattr(options, name) < math.inf:
            raise UserError(f"--{name.replace('_', '-')} must be above 0; got {getattr(options, name)}")
    if not options.trainers:
        if others := [f.name for f in fields(options) if getattr(options, f.name) != f.default]:
            raise UserError(f"--{others[0].replace('_', '-')} needs trainer processes: pass --trainers 1 or more")
    elif "://" in engine:
        raise UserError(
            f"--engine {engine} is a server, and samplers are processes of the cluster; leave out --engine, or "
            "--trainers"
        )
