"""Splits of GPUs into trainers and samplers, each simulated."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from posttrain.planning.cluster.coefficients import Costs
from posttrain.planning.cluster.gpu_costs import GPUCluster
from posttrain.planning.cluster.hardware import NODE
from posttrain.planning.cluster.simulation import Simulated, simulate
from posttrain.planning.cluster.workload import Lengths, Workload

SHARES = 16  # of the GPUs, that splits give to trainers
SIMULATED = 4  # splits of a mode, those whose bound is the least
MEASURED = 8  # updates, at least
COLOCATED, SYNCHRONOUS, ASYNCHRONOUS = "colocated", "synchronous", "asynchronous"


@dataclass(frozen=True, slots=True)
class Split:
    """A mode, and what it takes.

    Attributes:
        mode: `colocated` (all GPUs sample, then train), `synchronous` or `asynchronous` on GPUs of their own.
        trainers: GPUs that train.
        samplers: number of samplers.
        of_sampler: GPUs of each.
        gpus: all GPUs, those without work included.
        step: seconds of a step, the mean.
        sampling: of them, in which a sampler computes, the mean of all.
        update: forward, backward and optimiser.
        sync: weights to all samplers.
        scoring: of the last group of a batch.
        wait: the rest: synchronous, for the longest completion; asynchronous, the trainers' wait for samples.
        busy: share of the GPUs' time in which they compute.
        trained: tokens of completions that are trained, of a step.
        age: mean age of a trained group, in updates.
    """

    mode: str
    trainers: int
    samplers: int
    of_sampler: int
    gpus: int
    step: float
    sampling: float
    update: float
    sync: float
    scoring: float
    wait: float
    busy: float
    trained: float
    age: float

    @property
    def tokens_per_second(self) -> float:
        """Trained tokens of completions per second."""
        return self.trained / self.step

    def gpu_hours(self) -> float:
        """GPU-hours of a million trained tokens."""
        return self.gpus / 3600 * 1e6 / self.tokens_per_second


class Layout(NamedTuple):
    """GPUs that train, GPUs of each sampler, and what that costs."""

    trainers: int
    of_sampler: int
    costs: Costs


@dataclass(frozen=True, slots=True)
class Search:
    """What is to be planned.

    Attributes:
        cluster: the GPUs and the model.
        work: of a step.
        gpus: how many there are.
        fewest_trainers: on which the trainers fit.
        sizes: GPUs of a sampler that are compared, the fewest first.
        max_staleness: of the asynchronous splits; 0: there are none.
    """

    cluster: GPUCluster
    work: Workload
    gpus: int
    fewest_trainers: int
    sizes: Sequence[int]
    max_staleness: int

    def splits(self) -> list[Split]:
        """Every split that is simulated: colocated, synchronous and asynchronous, the fastest of each first."""
        groups = list(islice(self.work.groups(), self.work.prompts))
        found: list[Split] = []
        for mode, layouts in ((COLOCATED, self.colocated()), (SYNCHRONOUS, self.apart()), (ASYNCHRONOUS, self.apart())):
            staleness = self.max_staleness if mode == ASYNCHRONOUS else 0
            if mode == ASYNCHRONOUS and not staleness:
                continue
            best = sorted(layouts, key=lambda layout: self.bound(layout.costs, staleness, groups))
            found += [self._split(mode, layout) for layout in best[: 1 if mode == COLOCATED else SIMULATED]]
        return sorted(found, key=lambda split: split.step)

    def apart(self) -> list[Layout]:
        """Trainers and samplers on GPUs of their own."""
        pairs = [(trainers, size) for size in self.sizes for trainers in self.trainers(size)]
        return [
            Layout(trainers, size, self.cluster.apart(trainers, (self.gpus - trainers) // size, size))
            for trainers, size in pairs
        ]

    def colocated(self) -> list[Layout]:
        """All GPUs in turn, where they hold trainers' shards beside a sampler's weights and cache."""
        beside = self.cluster.room.held() / self.gpus
        longest = self.work.longest
        fit = [
            size
            for size in self.sizes
            if self.gpus >= max(self.fewest_trainers, size) and self.cluster.room.cache_tokens(size, beside) >= longest
        ]
        return [Layout(self.gpus, size, self.cluster.colocated(self.gpus, size)) for size in fit]

    def trainers(self, of_sampler: int) -> Iterator[int]:
        """Numbers of trainers: each, or from two nodes on whole nodes near every sixteenth of the GPUs."""
        most = self.gpus - of_sampler
        if self.gpus < 2 * NODE:
            return iter(range(self.fewest_trainers, most + 1))
        near = {NODE * max(1, round(self.gpus * share / SHARES / NODE)) for share in range(1, SHARES)}
        return iter(sorted(n for n in near | {self.fewest_trainers} if self.fewest_trainers <= n <= most))

    def bound(self, costs: Costs, max_staleness: int, groups: list[Lengths]) -> float:
        """Seconds that a step on these groups takes at least: of the trainers, of the samplers, or of both in turn.

        Samplers take as long as at full slots, and a batch as long as its longest completion alone.
        """
        train = costs.update(self.work, groups) + costs.sync
        decoding = costs.decoding
        together = min(decoding.slots, (max_staleness + 1) * self.work.sequences / costs.samplers)
        steps = sum(map(sum, groups)) / costs.samplers / together
        each = decoding.sequence + decoding.cached * self.work.resident()
        sample = steps * (decoding.step + together * each)
        if max_staleness:
            return max(train, sample)
        return train + max(sample, decoding.seconds(max(map(max, groups)), 1, self.work.prompt_tokens))

    def _split(self, mode: str, layout: Layout) -> Split:
        trainers, of_sampler, costs = layout
        found = simulated(costs, self.work, self.max_staleness if mode == ASYNCHRONOUS else 0)
        sampling_gpus = costs.samplers * of_sampler
        sampled, update = found.sampling * sampling_gpus, found.update * trainers
        waited = found.step - found.update - costs.sync
        if mode != ASYNCHRONOUS:
            waited -= found.sampling + self.work.scoring_seconds
        return Split(
            mode=mode,
            trainers=trainers,
            samplers=costs.samplers,
            of_sampler=of_sampler,
            gpus=self.gpus,
            step=found.step,
            sampling=found.sampling,
            update=found.update,
            sync=costs.sync,
            scoring=self.work.scoring_seconds,
            wait=max(0.0, waited),
            busy=(sampled + update) / (self.gpus * found.step),
            trained=found.trained,
            age=found.age,
        )


@dataclass(frozen=True, slots=True)
class Means:
    """Means of simulated updates, without the first ones."""

    step: float
    sampling: float
    update: float
    trained: float
    age: float


def simulated(costs: Costs, work: Workload, max_staleness: int, lengths: Sequence[Lengths] | None = None) -> Means:
    """Simulate a cluster: first until the pipeline is full, and then `MEASURED` updates."""
    first = 2 * (max_staleness + 1) if max_staleness else 1
    steps = first + MEASURED
    return means(simulate(costs, work, steps=steps, max_staleness=max_staleness, lengths=lengths), first)


def means(found: Simulated, first: int) -> Means:
    """Means of the updates from number `first` on."""
    kept = found.updates[first:]
    before = found.updates[first - 1]
    number = len(kept)
    ages = [age for update in kept for age in update.ages]
    return Means(
        step=(kept[-1].synced - before.synced) / number,
        sampling=(found.sampling[-1] - found.sampling[first - 1]) / number,
        update=math.fsum(update.updated - update.began for update in kept) / number,
        trained=sum(update.trained for update in kept) / number,
        age=sum(ages) / len(ages),
    )
