"""Plan a run on a cluster of GPUs: how many train, how many sample, seconds and cost of a step.

    posttrain plan-cluster --model-parameters 7e9 --gpus 64 --gpu h100
    posttrain plan-cluster --model-parameters 70e9 --gpus 256 --max-new-tokens 32000 --microbatch-tokens 32768

A cost model of sampling, weight sync, scoring, update and wait, from published figures of the GPUs, and a
discrete-event simulation on it (docs/scaling.md). Nothing is loaded or run. Left out: mixtures of experts, adapters,
environments of several turns, evaluations, failures.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from posttrain.errors import UserError, as_typed, unknown
from posttrain.models.footprint import read_shape
from posttrain.options.tools import PlanCluster
from posttrain.planning.cluster.coefficients import Workload
from posttrain.planning.cluster.gpus import CHANNEL, GPUS, REACHED, WEIGHT, GPUCluster, dense_shape
from posttrain.planning.cluster.splits import ASYNCHRONOUS, COLOCATED, SYNCHRONOUS, Search, Split
from posttrain.planning.costs import GB
from posttrain.report.chart import Chart, Series, picture

MOST_GPUS = 1 << 16  # that are looked at to say how many would do
HEAD = ("mode", "trainers", "samplers", "sampling", "update", "sync", "scoring", "wait", "step", "busy", "age")


@dataclass(frozen=True)
class ClusterPlan:
    """Splits of a cluster, and which to take. Its texts name options as parameters in backticks."""

    config: PlanCluster  # what was asked
    cluster: GPUCluster  # the GPUs, the model and a step
    fewest_trainers: int  # GPUs on which trainers fit
    of_sampler: int  # the fewest GPUs of a sampler
    splits: Sequence[Split]  # the fastest first
    now: Split | None
    """The fastest that posttrain runs as it is: each sampler on one GPU, with weights that the first trainer sends to
    two of them, and these to others; None where a model does not fit so."""

    @property
    def best(self) -> Split:
        """The fastest split on GPUs of their own, or all on one."""
        apart = [split for split in self.splits if split.mode != COLOCATED]
        return (apart or list(self.splits))[0]

    def cost(self, split: Split) -> float:
        """Of a million trained tokens; in GPU-hours where these have no price."""
        return split.gpu_hours() * (self.config.price_per_gpu_hour or 1.0)

    def summary(self) -> dict[str, Any]:
        """Everything for a machine to read."""
        return {
            "parameters": self.cluster.shape.parameters,
            "shape": self.cluster.shape.name,
            "gpu": self.config.gpu,
            "gpus": self.config.gpus,
            "fewest_trainers": self.fewest_trainers,
            "trainer_bytes": self.cluster.trainer(self.fewest_trainers),
            "fewest_gpus_of_sampler": self.of_sampler,
            "sequences_of_sampler": self.cluster.slots(self.of_sampler),
            "splits": [self._row(split) for split in self.splits],
            "best": self._row(self.best),
            "now": None if self.now is None else self._row(self.now),
            "warnings": [as_typed(warning) for warning in self.warnings()],
            "plot": self.config.plot or None,
        }

    def _row(self, split: Split) -> dict[str, Any]:
        unit = "cost_per_million_tokens" if self.config.price_per_gpu_hour else "gpu_hours_per_million_tokens"
        return {**asdict(split), "tokens_per_second": split.tokens_per_second, unit: self.cost(split)}

    def lines(self) -> list[str]:
        """The same for people."""
        work, shape, best = self.cluster.work, self.cluster.shape, self.best
        held = self.cluster.trainer(self.fewest_trainers) / GB
        needed = f", a sampler needs {_gpus(self.of_sampler)}" if self.of_sampler > 1 else ""
        compared: list[str] = []  # how much slower the fastest split of each other mode is
        for mode in (COLOCATED, SYNCHRONOUS, ASYNCHRONOUS):
            fastest = min((s for s in self.splits if s.mode == mode), key=lambda s: s.step, default=None)
            if fastest and mode != best.mode:
                compared.append(f"{_described(fastest)}: {fastest.step / best.step:.2f} times as long a step")
        found = [
            f"{shape.parameters / 1e9:.3g}B parameters ({shape.layers} layers, widths of {shape.name}) on "
            f"{self.config.gpus} {self.config.gpu}; a step has {work.prompts} prompts x {work.completions} completions "
            f"of {best.trained / (work.prompts * work.completions):,.0f} tokens on average",
            f"trainers  at least {_gpus(self.fewest_trainers)}, which hold {held:.0f} GB each",
            f"samplers  at least {_gpus(self.of_sampler)} each, which decode {self.cluster.slots(self.of_sampler)} "
            "sequences together",
            "",
            *self._table(),
            "",
            "seconds of a step; busy: share of all GPUs' time; age: of trained groups, in updates",
            f"posttrain as it is now (samplers of one GPU, weights broadcast over gloo at {CHANNEL / GB:.2f} GB/s): "
            + (self._told(self.now) if self.now else f"does not fit{needed}"),
            f"fastest of the table{' on GPUs of their own' * (best is not self.splits[0])}: {self._told(best)}",
            *compared,
            *(f"WARNING: {warning}" for warning in self.warnings()),
        ]
        drawn = [f"plot  {self.config.plot}"] if self.config.plot else []
        return [as_typed(line) for line in [*found, *drawn]]

    def _table(self) -> list[str]:
        unit = "cost/Mtoken" if self.config.price_per_gpu_hour else "GPU-h/Mtoken"
        rows: list[tuple[str, ...]] = [(*HEAD, "tokens/s", unit)]
        for split in self.splits:
            seconds = (split.sampling, split.update, split.sync, split.scoring, split.wait, split.step)
            gpus = f"{split.samplers} x {split.of_sampler}"
            busy, age = f"{split.busy:.0%}", f"{split.age:.1f}"
            tail = (f"{split.tokens_per_second:,.0f}", f"{self.cost(split):.3g}")
            rows.append((split.mode, str(split.trainers), gpus, *map(_seconds, seconds), busy, age, *tail))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return ["  ".join(f"{cell:>{w}}" for cell, w in zip(row, widths, strict=True)) for row in rows]

    def _told(self, split: Split) -> str:
        unit = "per million" if self.config.price_per_gpu_hour else "GPU-hours per million"
        speed = f"{_seconds(split.step)} s a step, {split.tokens_per_second:,.0f} trained tokens/s"
        return f"{_described(split)}, {speed}, {self.cost(split):.3g} {unit}"

    def warnings(self) -> list[str]:
        """What does not fit, or is not built."""
        found: list[str] = []
        work, weights = self.cluster.work, WEIGHT * self.cluster.shape.parameters
        if work.mean_tokens > work.max_tokens:
            found.append(
                f"completions have {work.mean_tokens:g} tokens on average (`mean_tokens`) before most are cut at "
                f"{work.max_tokens} (`max_new_tokens`)"
            )
        if weights > self.cluster.usable:
            found.append(
                "each trainer loads the whole model into host memory before its GPU gets its shard: "
                f"{weights / GB:.0f} GB times the trainers of a machine"
            )
        if len(self.splits) > 1 and any(split.mode == COLOCATED for split in self.splits):
            found.append(
                "colocated splits are for comparison: posttrain trains and samples on the same GPU on one alone"
            )
        return found


def run(config: PlanCluster) -> ClusterPlan:
    """Plan; the plot is written last."""
    if config.gpu not in GPUS:
        raise unknown("gpu", config.gpu, GPUS)
    if config.plot and (not config.plot.endswith(".svg") or not Path(config.plot).parent.is_dir()):
        raise UserError(f"--plot must name a .svg file in a folder that exists; got '{config.plot}'")
    shape = read_shape(config.model) if config.model else dense_shape(config.model_parameters)
    work = Workload(
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
    reached = replace(REACHED, mfu=config.mfu, bandwidth=config.bandwidth_share)
    channel = CHANNEL if config.weight_sync == "channel" else 0.0
    cluster = GPUCluster(GPUS[config.gpu], reached, shape, work, config.max_sequences, channel)
    trainers, sizes = _fewest(config, cluster)
    splits = Search(cluster, config.gpus, trainers, sizes, config.max_staleness).splits()
    if not splits:
        raise UserError(
            f"{shape.parameters / 1e9:.3g}B parameters do not fit on {config.gpus} {config.gpu}: the trainers need "
            f"{trainers} of them and a sampler {sizes[0]}; pass --gpus {trainers + sizes[0]} or more"
        )
    now = None
    if cluster.cache_tokens(1) >= work.longest:
        built = Search(replace(cluster, channel=CHANNEL), config.gpus, trainers, [1], config.max_staleness).splits()
        now = next((split for split in built if split.mode != COLOCATED or config.gpus == 1), None)
    if config.plot:
        series: list[Series] = []
        for mode in dict.fromkeys(split.mode for split in splits):
            series.append(Series(mode, sorted((s.trainers, s.tokens_per_second) for s in splits if s.mode == mode)))
        title = f"Trained tokens/s of {shape.parameters / 1e9:.3g}B parameters on {config.gpus} {config.gpu}"
        drawn = picture(Chart(title, series, unit="GPUs that train"))
        Path(config.plot).write_text(drawn, encoding="utf-8")
    return ClusterPlan(config, cluster, trainers, sizes[0], splits, now)


def _fewest(config: PlanCluster, cluster: GPUCluster) -> tuple[int, list[int]]:
    """The fewest GPUs of all trainers, and those of a sampler that are compared: up to a node, or what it needs."""
    trainers = cluster.fewest_trainers(MOST_GPUS)
    if not trainers:
        needed = cluster.row() + cluster.gathered()
        raise UserError(
            f"a row of {config.microbatch_tokens} tokens needs {needed / 1e9:.0f} GB in a trainer besides its shard, "
            f"and {cluster.usable / 1e9:.0f} GB of a {config.gpu} may be planned; pass a smaller --microbatch-tokens"
        )
    if config.tensor_parallel and cluster.cache_tokens(config.tensor_parallel) < cluster.work.longest:
        raise UserError(
            f"a sampler of {config.tensor_parallel} GPUs has no room for a sequence of {cluster.work.longest} tokens; "
            f"pass --tensor-parallel {cluster.fewest_of_sampler(MOST_GPUS)}"
        )
    if config.tensor_parallel:
        return trainers, [config.tensor_parallel]
    fewest = cluster.fewest_of_sampler(MOST_GPUS)
    return trainers, [fewest] + [size for size in (2, 4, 8) if fewest < size]


def _described(split: Split) -> str:
    if split.mode == COLOCATED:
        return f"colocated on {_gpus(split.gpus)}"
    samplers = f"{split.samplers} sampler{'s' * (split.samplers != 1)} of {_gpus(split.of_sampler)}"
    return f"{split.mode} with {split.trainers} trainer{'s' * (split.trainers != 1)} and {samplers}"


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"


def _seconds(value: float) -> str:
    """Seconds of which three digits matter.

    Example:
        >>> _seconds(0.0), _seconds(0.123), _seconds(12.34), _seconds(1234.5)
        ('0', '0.12', '12.3', '1234')
    """
    return "0" if not value else f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
