"""Splits of GPUs into trainers and samplers, each simulated."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

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


@dataclass(frozen=True, slots=True)
class Search:
    """What is to be planned."""

    cluster: GPUCluster
    work: Workload
    gpus: int
    fewest_trainers: int
    of_sampler: int
    max_staleness: int

    def splits(self) -> list[Split]:
        """Every split that is simulated: colocated, synchronous and asynchronous, the fastest of each first."""
        found = [self._colocated()] if self._colocates() else []
        apart = [(trainers, self._apart(trainers)) for trainers in self.trainers()]
        for staleness in (0, self.max_staleness) if self.max_staleness else (0,):
            best = sorted(apart, key=lambda each: self.bound(each[1], staleness))[:SIMULATED]
            found += [self._split(trainers, costs, staleness) for trainers, costs in best]
        return sorted(found, key=lambda split: split.step)

    def trainers(self) -> Iterator[int]:
        """Numbers of trainers: each, or from two nodes on whole nodes near every sixteenth of the GPUs."""
        most = self.gpus - self.of_sampler
        if self.gpus < 2 * NODE:
            return iter(range(self.fewest_trainers, most + 1))
        near = {NODE * max(1, round(self.gpus * share / SHARES / NODE)) for share in range(1, SHARES)}
        return iter(sorted(n for n in near | {self.fewest_trainers} if self.fewest_trainers <= n <= most))

    def bound(self, costs: Costs, max_staleness: int) -> float:
        """Seconds that a step takes at least: of the trainers, of the samplers at full slots, or of both in turn."""
        groups = list(islice(self.work.groups(), self.work.prompts))
        train = costs.update(self.work, groups) + costs.sync
        together = min(costs.decoding.slots, (max_staleness + 1) * self.work.sequences / costs.samplers)
        steps = sum(map(sum, groups)) / costs.samplers / together
        each = costs.decoding.sequence + costs.decoding.cached * self.work.resident()
        sample = steps * (costs.decoding.step + together * each)
        return max(train, sample) if max_staleness else train + sample

    def _apart(self, trainers: int) -> Costs:
        samplers = (self.gpus - trainers) // self.of_sampler
        return self.cluster.apart(trainers, samplers, self.of_sampler)

    def _colocates(self) -> bool:
        """Whether all GPUs hold trainers' shards beside a sampler's weights and cache."""
        beside = self.cluster.room.held() / self.gpus
        fits = self.gpus >= max(self.fewest_trainers, self.of_sampler)
        return fits and self.cluster.room.cache_tokens(self.of_sampler, beside) >= self.work.longest

    def _colocated(self) -> Split:
        costs = self.cluster.colocated(self.gpus, self.of_sampler)
        return self._split(self.gpus, costs, 0, COLOCATED)

    def _split(self, trainers: int, costs: Costs, max_staleness: int, mode: str = "") -> Split:
        mode = mode or (ASYNCHRONOUS if max_staleness else SYNCHRONOUS)
        found = simulated(costs, self.work, max_staleness)
        sampling_gpus = costs.samplers * self.of_sampler
        sampled, update = found.sampling * sampling_gpus, found.update * trainers
        waited = found.step - found.update - costs.sync
        if mode != ASYNCHRONOUS:
            waited -= found.sampling + self.work.scoring_seconds
        return Split(
            mode=mode,
            trainers=trainers,
            samplers=costs.samplers,
            of_sampler=self.of_sampler,
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
