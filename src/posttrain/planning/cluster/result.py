"""The result of `posttrain plan-cluster`, as data and as text. Options are named as parameters in backticks."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from posttrain.errors import as_typed
from posttrain.options.tools import PlanCluster
from posttrain.planning.cluster.gpus import WEIGHT, GPUCluster
from posttrain.planning.cluster.published import CHANNEL
from posttrain.planning.cluster.splits import ASYNCHRONOUS, COLOCATED, SYNCHRONOUS, Split
from posttrain.planning.costs import GB

HEAD = ("mode", "trainers", "samplers", "sampling", "update", "sync", "scoring", "wait", "step", "busy", "age")


@dataclass(frozen=True)
class ClusterPlan:
    """Splits of a cluster, and which to take.

    Attributes:
        config: what was asked.
        cluster: the GPUs, the model and a step.
        fewest_trainers: GPUs on which trainers fit.
        of_sampler: the fewest GPUs of a sampler.
        splits: the fastest first.
        now: the fastest that posttrain runs as it is: each sampler on one GPU, with weights that the first trainer
            sends to two of them, and these to others; None where a model does not fit so.
    """

    config: PlanCluster
    cluster: GPUCluster
    fewest_trainers: int
    of_sampler: int
    splits: Sequence[Split]
    now: Split | None

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
        found = [
            f"{shape.parameters / 1e9:.3g}B parameters ({shape.layers} layers, widths of {shape.name}) on "
            f"{self.config.gpus} {self.config.gpu}; a step has {work.prompts} prompts x {work.completions} completions "
            f"of {best.trained / work.sequences:,.0f} tokens on average",
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
            *self._compared(),
            *(f"WARNING: {warning}" for warning in self.warnings()),
        ]
        drawn = [f"plot  {self.config.plot}"] if self.config.plot else []
        return [as_typed(line) for line in [*found, *drawn]]

    def _table(self) -> list[str]:
        """The splits, the head first."""
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

    def _compared(self) -> list[str]:
        """How much slower the fastest split of each other mode is."""
        found: list[str] = []
        for mode in (COLOCATED, SYNCHRONOUS, ASYNCHRONOUS):
            fastest = min((s for s in self.splits if s.mode == mode), key=lambda s: s.step, default=None)
            if fastest and mode != self.best.mode:
                ratio = fastest.step / self.best.step
                found.append(f"{_described(fastest)}: {ratio:.2f} times as long a step")
        return found

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


def _described(split: Split) -> str:
    """A split in words."""
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
