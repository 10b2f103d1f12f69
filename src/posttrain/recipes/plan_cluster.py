"""Plan a run on a cluster of GPUs: how many train, how many sample, seconds and cost of a step.

    posttrain plan-cluster --model-parameters 7e9 --gpus 64 --gpu h100
    posttrain plan-cluster --model-parameters 70e9 --gpus 256 --mean-tokens 8000 --max-new-tokens 32000

A cost model of sampling, weight sync, scoring, update and wait, from published figures of the GPUs, and a
discrete-event simulation on it (docs/scaling.md). Nothing is loaded or run. Left out: mixtures of experts, adapters,
environments of several turns, evaluations, failures.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from posttrain.errors import UserError, as_typed, unknown
from posttrain.models.footprint import Shape, read_shape
from posttrain.options.tools import PlanCluster
from posttrain.planning.cluster import (
    CHANNEL,
    COLOCATED,
    GPUS,
    ClusterPlan,
    Efficiency,
    GPUCluster,
    Room,
    Search,
    Workload,
    dense_shape,
)
from posttrain.report.chart import Chart, Series, picture

SYNCS = ("broadcast", "channel")
MOST_GPUS = 1 << 16  # that are looked at to say how many would do


@dataclass(frozen=True)
class PlanResult:
    """A plan, and where it is drawn."""

    plan: ClusterPlan
    plot: Path | None

    def summary(self) -> dict[str, Any]:
        """Everything for a machine to read."""
        found = self.plan.summary()
        return {**found, "warnings": [as_typed(line) for line in found["warnings"]], "plot": self.plot}

    def lines(self) -> list[str]:
        """The same for people."""
        drawn = [f"plot  {self.plot}"] if self.plot else []
        return [as_typed(line) for line in [*self.plan.lines(), *drawn]]


def run(config: PlanCluster) -> PlanResult:
    """Plan; the plot is written last.

    Raises:
        UserError: an option is wrong, or the model does not fit on the GPUs.
    """
    _check(config)
    shape = read_shape(config.model) if config.model else dense_shape(config.model_parameters)
    reached = replace(Efficiency(), mfu=config.mfu, bandwidth=config.bandwidth_share)
    gpu, work = GPUS[config.gpu], _work(config)
    room = Room(shape, work, reached.memory * gpu.memory)
    trainers, sizes = _fewest(config, room)
    channel = CHANNEL if config.weight_sync == "channel" else 0.0
    cluster = GPUCluster(gpu, reached, room, config.max_sequences, channel)
    splits = Search(cluster, work, config.gpus, trainers, sizes, config.max_staleness).splits()
    if not splits:
        raise UserError(_needs(config, shape, trainers, sizes[0]))
    slots = room.slots(sizes[0], config.max_sequences)
    about = (config.max_staleness, config.price_per_gpu_hour)
    now = replace(cluster, channel=CHANNEL) if room.cache_tokens(1) >= work.longest else None
    found = Search(now, work, config.gpus, trainers, [1], config.max_staleness).splits() if now else []
    runs = next((split for split in found if split.mode != COLOCATED or config.gpus == 1), None)
    plan = ClusterPlan(config.gpu, config.gpus, room, trainers, sizes[0], slots, *about, splits, runs)
    if config.plot:
        Path(config.plot).write_text(_drawn(plan), encoding="utf-8")
    return PlanResult(plan, Path(config.plot) if config.plot else None)


def _work(config: PlanCluster) -> Workload:
    return Workload(
        prompts=config.prompts_per_step,
        completions=config.completions_per_prompt,
        prompt_tokens=config.prompt_tokens,
        mean_tokens=config.mean_tokens,
        spread=config.length_spread,
        max_tokens=config.max_new_tokens,
        microbatch_tokens=config.microbatch_tokens,
        passes=config.logprob_passes,
        scoring_seconds=config.scoring_seconds,
    )


def _fewest(config: PlanCluster, room: Room) -> tuple[int, list[int]]:
    """The fewest GPUs of all trainers, and those of a sampler that are compared: up to a node, or what it needs."""
    trainers = room.fewest_trainers(MOST_GPUS)
    if not trainers:
        raise UserError(
            f"a row of {config.microbatch_tokens} tokens needs {(room.row() + room.gathered()) / 1e9:.0f} GB in a "
            f"trainer besides its shard, and {room.usable / 1e9:.0f} GB of a {config.gpu} may be planned; pass a "
            "smaller --microbatch-tokens"
        )
    if config.tensor_parallel and room.cache_tokens(config.tensor_parallel) < room.work.longest:
        raise UserError(
            f"a sampler of {config.tensor_parallel} GPUs has no room for a sequence of {room.work.longest} tokens; "
            f"pass --tensor-parallel {room.fewest_of_sampler(MOST_GPUS)}"
        )
    if config.tensor_parallel:
        return trainers, [config.tensor_parallel]
    fewest = room.fewest_of_sampler(MOST_GPUS)
    return trainers, [fewest] + [size for size in (2, 4, 8) if fewest < size]


def _needs(config: PlanCluster, shape: Shape, trainers: int, of_sampler: int) -> str:
    """What does not fit."""
    return (
        f"{shape.parameters / 1e9:.3g}B parameters do not fit on {config.gpus} {config.gpu}: the trainers need "
        f"{trainers} of them and a sampler {of_sampler}; pass --gpus {trainers + of_sampler} or more"
    )


def _drawn(plan: ClusterPlan) -> str:
    """Tokens per second by the number of trainers, of each mode."""
    series: list[Series] = []
    for mode in dict.fromkeys(split.mode for split in plan.splits):
        points = sorted((s.trainers, s.tokens_per_second) for s in plan.splits if s.mode == mode)
        series.append(Series(mode, points))
    title = f"Trained tokens/s of {plan.room.shape.parameters / 1e9:.3g}B parameters on {plan.gpus} {plan.gpu}"
    return picture(Chart(title, series, unit="GPUs that train"))


def _check(config: PlanCluster) -> None:
    """Validate the options."""
    if config.gpu not in GPUS:
        raise unknown("gpu", config.gpu, GPUS)
    if config.plot and (not config.plot.endswith(".svg") or not Path(config.plot).parent.is_dir()):
        raise UserError(f"--plot must name a .svg file in a folder that exists; got '{config.plot}'")
