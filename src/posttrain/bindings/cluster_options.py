"""The processes of a run on a Ray cluster."""

import re
from dataclasses import asdict, fields
from typing import Any

from posttrain.errors import UserError
from posttrain.models.precision import gpus_here
from posttrain.options.cluster import AsyncOptions, TrainerOptions
from posttrain.options.cluster import ClusterOptions as ClusterOptions
from posttrain.options.cluster import ScorerOptions as ScorerOptions
from posttrain.runs.environment import total_bytes

ONE_PROCESS = AsyncOptions()
CLUSTER, LOCAL = "cluster", "local"
MAY_DIFFER = tuple(f"{CLUSTER}.{field.name}" for field in fields(AsyncOptions) if field.name != "evict_stale")
"""Options that may change when a run is resumed, as they are in its configuration. With eviction the numbers of draws
in its checkpoints are of prompts, otherwise of batches."""


def shards_of(options: TrainerOptions) -> int:
    """Over how many trainers a replica of the model is sharded; 1: each trainer holds all."""
    return options.trainers // options.fsdp_replicas if options.fsdp else 1


def processes(options: TrainerOptions) -> dict[str, int]:
    """How many there are of each kind."""
    counts = {kind: getattr(options, f"{kind}s", 0) for kind in ("trainer", "sampler", "scorer")}
    return {kind: count for kind, count in counts.items() if count}


def starting(options: TrainerOptions) -> str:
    """What is said before the processes start, which may take a minute; "" for none."""
    if not options.trainers:
        return ""
    counts = [f"{count} {kind}{'s' * (count > 1)}" for kind, count in processes(options).items()]
    where = "in a Ray cluster on this machine" if options.address == LOCAL else f"on the Ray cluster {options.address}"
    return f"starting {', '.join(counts)} {where}"


def reserved(options: TrainerOptions, kind: str) -> dict[str, Any]:
    """What each `trainer`, `sampler` or `scorer` gets of a machine: the arguments of `distributed.pool.Share`."""
    return {name: getattr(options, f"{kind}_{name}") for name in ("cpus", "gpus", "memory_gb", "threads")}


def reserved_by_all(options: TrainerOptions, name: str) -> float:
    """What all processes have together: `cpus`, `gpus` where they are given, or `memory_gb`."""
    return sum(count * (reserved(options, kind)[name] or 0.0) for kind, count in processes(options).items())


def settings_of(options: TrainerOptions) -> dict[str, Any]:
    """What a run's configuration says of them: nothing for one process."""
    if not options.trainers:
        return {}
    # what is off is left out: a run that began in one process says nothing of it, and may go on here
    return {CLUSTER: {name: value for name, value in asdict(options).items() if name != "evict_stale" or value}}


def servers_in(engine: object) -> list[str]:
    """The addresses of servers that `engine` names; none for an engine of posttrain's own processes."""
    return engine.split() if isinstance(engine, str) and "://" in engine else []


def engine_may_differ(engine: object) -> tuple[str, ...]:
    """`engine` where it is servers or an object, which may be others when a run is resumed."""
    return ("engine",) if servers_in(engine) or not isinstance(engine, str) else ()


def refuse_idle_scorers(used: bool) -> None:
    """Raise `UserError` where there are scorers, and nothing for them to load."""
    if not used:
        raise UserError(
            "`scorers` has nothing to do: pass `reward_model`, `gold_model`, `judge`, `seats` or "
            '`reward="FILE.py:FUNCTION"` (without reward_context), or leave out `scorers`'
        )


def check_cluster(options: TrainerOptions, engine: object = "embedded") -> None:
    """Check that the engine fits the processes, and these the machine; raises `UserError`."""
    if options.trainers and not isinstance(engine, str):
        raise UserError("`engine` is an object, which samples in this process; give a name, or leave out `trainers`")
    servers = servers_in(engine)
    wrong = next((server for server in servers if not re.fullmatch(r"https?://[^\s,;]+", server)), "")
    if wrong or len({server.rstrip("/") for server in servers}) < len(servers):
        raise UserError(
            f"`engine` is a name, or addresses such as http://HOST:PORT, all different and separated by spaces; got "
            f"'{wrong or engine}'"
        )
    if servers and len(servers) != getattr(options, "samplers", 1):
        count = f"{len(servers)} server{'s' * (len(servers) > 1)}"
        raise UserError(f"`engine` names {count}; pass as many `samplers`, with `trainers=1` or more")
    if getattr(options, "in_flight_updates", False) and engine != "embedded":
        raise UserError(f"`in_flight_updates` needs the embedded engine; got `engine` {engine}")
    if options.address != LOCAL:
        return
    here = {"gpus": gpus_here(), "memory_gb": total_bytes() / 1e9}
    for name, what in (("gpus", "GPUs"), ("memory_gb", "GB of memory")):
        if (asked := reserved_by_all(options, name)) > here[name]:
            given = next(kind for kind in processes(options) if reserved(options, kind)[name])
            raise UserError(
                f"the processes reserve {asked:g} {what}, and this machine has {here[name]:.3g}; pass a smaller "
                f"`{given}_{name}`, or 0"
            )
