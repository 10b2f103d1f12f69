"""The processes of a run on a Ray cluster."""

import math
import re
from dataclasses import asdict, fields
from typing import Any

from posttrain.errors import UserError
from posttrain.models.precision import gpus_here
from posttrain.options.cluster import AsyncOptions, ClusterOptions, ScorerOptions, TrainerOptions
from posttrain.runs.memory import total_bytes
from posttrain.setup.training_options import at_least

ONE_PROCESS = AsyncOptions()
CLUSTER, LOCAL = "cluster", "local"
MAY_DIFFER = tuple(f"{CLUSTER}.{field.name}" for field in fields(AsyncOptions) if field.name != "evict_stale")
"""Options that may change when a run is resumed, as they are in its configuration. With eviction the numbers of draws
in its checkpoints are of prompts, otherwise of batches."""


def shards_of(options: TrainerOptions) -> int:
    """Over how many trainers a replica of the model is sharded; 1: each trainer holds all."""
    return options.trainers // options.fsdp_replicas if options.fsdp else 1


def staleness_of(options: TrainerOptions) -> int:
    """How many steps old the weights may be that sample; 0 where sampling and training take turns."""
    return options.max_staleness if isinstance(options, AsyncOptions) else 0


def evicts(options: TrainerOptions) -> bool:
    """Whether steps train on the groups that finish first."""
    return isinstance(options, AsyncOptions) and options.evict_stale


def scorers_of(options: TrainerOptions) -> int:
    """How many processes have the reward models, local chat models and functions; 0: this one has them."""
    return options.scorers if isinstance(options, ScorerOptions) else 0


def processes(options: TrainerOptions) -> dict[str, int]:
    """How many there are of each kind."""
    found = {"trainer": options.trainers}
    if isinstance(options, ClusterOptions):
        found["sampler"] = options.samplers
    if isinstance(options, ScorerOptions):
        found["scorer"] = options.scorers
    return {kind: count for kind, count in found.items() if count}


def starting(options: TrainerOptions) -> str:
    """What is said before the processes start, which may take a minute; "" for none."""
    if not options.trainers:
        return ""
    counts = [f"{count} {kind}{'s' * (count > 1)}" for kind, count in processes(options).items()]
    where = "in a Ray cluster on this machine" if options.address == LOCAL else f"on the Ray cluster {options.address}"
    return f"starting {', '.join(counts)} {where}"


def reserved(options: TrainerOptions, kind: str) -> dict[str, Any]:
    """What each `trainer`, `sampler` or `scorer` gets of a machine: the arguments of `distributed.cluster.Share`."""
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


def servers_in(engine: str) -> list[str]:
    """The addresses of servers that `engine` names; none for an engine of posttrain's own processes.

    Example:
        >>> servers_in("http://a:8000 http://b:8000"), servers_in("vllm")
        (['http://a:8000', 'http://b:8000'], [])
    """
    return engine.split() if "://" in engine else []


def engine_may_differ(engine: str) -> tuple[str, ...]:
    """`engine` where it is servers, which may be others when a run is resumed."""
    return ("engine",) if servers_in(engine) else ()


def refuse_idle_scorers(used: bool) -> None:
    """Raise `UserError` where there are scorers, and nothing for them to load."""
    if not used:
        raise UserError(
            "--scorers has nothing to do: pass --reward-model, --gold-model, --judge NAME=MODEL, --seats NAME=MODEL or "
            "--reward FILE.py:FUNCTION (without reward_context), or leave out --scorers"
        )


def check_cluster(options: TrainerOptions, engine: str = "embedded") -> None:
    """Validate them.

    Raises:
        UserError: names the option and its valid range.
    """
    given = asdict(options)
    counts = ("trainers", "scorers", "trainer_threads", "sampler_threads", "scorer_threads", "max_staleness")
    for name, least in (("samplers", 1), *((name, 0) for name in counts)):
        at_least(name, given.get(name, least), least)
    for name in ("trainer_cpus", "sampler_cpus", "scorer_cpus", "cluster_timeout"):
        if not 0 < given.get(name, 1.0) < math.inf:
            raise UserError(f"--{name.replace('_', '-')} must be above 0; got {given[name]}")
    for name in ("trainer_memory_gb", "sampler_memory_gb", "scorer_memory_gb"):
        if not 0 <= given.get(name, 0.0) < math.inf:
            raise UserError(f"--{name.replace('_', '-')} must be at least 0; got {given[name]}")
    for name in ("trainer_gpus", "sampler_gpus", "scorer_gpus"):
        if not 0 <= (given.get(name) or 0.0) <= 1:
            raise UserError(
                f"--{name.replace('_', '-')} must be from 0 to 1: a process uses one GPU; got {given[name]}"
            )
    if options.trainers > 1 and (options.trainer_gpus or 0.0) % 1:
        raise UserError(
            f"--trainer-gpus {options.trainer_gpus:g} needs --trainers 1: several trainers cannot share a GPU (NCCL)"
        )
    others = [field.name for field in fields(options) if given[field.name] != field.default]
    if others and not options.trainers:
        raise UserError(f"--{others[0].replace('_', '-')} needs trainer processes: pass --trainers 1 or more")
    servers = servers_in(engine)
    wrong = next((server for server in servers if not re.fullmatch(r"https?://[^\s,;]+", server)), "")
    if wrong or len({server.rstrip("/") for server in servers}) < len(servers):
        raise UserError(
            f"--engine is a name, or addresses such as http://HOST:PORT, all different and separated by spaces; got "
            f"'{wrong or engine}'"
        )
    if servers and len(servers) != given.get("samplers", 1):
        count = f"{len(servers)} server{'s' * (len(servers) > 1)}"
        raise UserError(f"--engine names {count}; pass as many --samplers, with --trainers 1 or more")
    if given.get("in_flight_updates"):
        if not given["max_staleness"]:
            raise UserError("--in-flight-updates needs --max-staleness above 0: otherwise no weights change meanwhile")
        if engine != "embedded":
            raise UserError(f"--in-flight-updates needs the embedded engine; got --engine {engine}")
    if given.get("evict_stale") and not given["in_flight_updates"]:
        ahead = "" if given["max_staleness"] else " and --max-staleness above 0"
        raise UserError(f"--evict-stale needs --in-flight-updates{ahead}: otherwise new weights wait for all groups")
    _check_replicas(options)
    _check_address(options.address)
    if options.address == LOCAL:
        _check_machine(options)


def _check_address(address: str) -> None:
    if address not in (LOCAL, "auto") and not re.fullmatch(r"(ray://)?(\[[0-9a-fA-F:.]+\]|[\w.-]+):\d{1,5}", address):
        raise UserError(
            f"--address is local, auto, HOST:PORT or ray://HOST:PORT; got '{address}'. The port of ray start is 6379, "
            "that of ray:// 10001"
        )


def _check_machine(options: TrainerOptions) -> None:
    here = {"gpus": gpus_here(), "memory_gb": total_bytes() / 1e9}
    for name, what in (("gpus", "GPUs"), ("memory_gb", "GB of memory")):
        if (asked := reserved_by_all(options, name)) > here[name]:
            given = next(kind for kind in processes(options) if reserved(options, kind)[name])
            raise UserError(
                f"the processes reserve {asked:g} {what}, and this machine has {here[name]:.3g}; pass a smaller "
                f"--{given}-{name.replace('_', '-')}, or 0"
            )


def _check_replicas(options: TrainerOptions) -> None:
    replicas, trainers = options.fsdp_replicas, options.trainers
    at_least("fsdp_replicas", replicas, 1)
    if options.fsdp_offload and not options.fsdp:
        raise UserError("--fsdp-offload needs --fsdp: without shards, pass --offload-optimizer")
    if replicas > 1 and not options.fsdp:
        raise UserError("--fsdp-replicas needs --fsdp: without shards each trainer is a replica")
    if replicas > 1 and (trainers % replicas or trainers < 2 * replicas):
        raise UserError(
            f"--fsdp-replicas {replicas} must divide --trainers and leave at least two of them for each replica; got "
            f"--trainers {trainers}"
        )
