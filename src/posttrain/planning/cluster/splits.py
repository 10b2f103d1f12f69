"""Splits of GPUs into trainers and samplers, each simulated."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice

from posttrain.planning.cluster.coefficients import Costs, Lengths, Workload
from posttrain.planning.cluster.gpus import NODE, GPUCluster
from posttrain.planning.cluster.simulation import simulate

SHARES = 16  # of the GPUs, that splits give to trainers
SIMULATED = 4  # splits of a mode, those whose bound is the least
MEASURED = 8  # updates, at least
COLOCATED, SYNCHRONOUS, ASYNCHRONOUS = "colocated", "synchronous", "asynchronous"


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Means of simulated updates, without the first ones."""

    step: float  # seconds of a step
    sampling: float  # of them, in which a sampler computes, the mean of all
    update: float  # forward, backward and optimiser
    trained: float  # tokens of completions that are trained, of a step
    age: float  # of a trained group, in updates


@dataclass(frozen=True, slots=True, kw_only=True)
class Split(Means):
    """A mode, and what it takes."""

    mode: str  # `colocated` (all GPUs sample, then train), `synchronous` or `asynchronous` on GPUs of their own
    trainers: int  # GPUs that train
    samplers: int
    of_sampler: int  # GPUs of each
    gpus: int  # all of them, those without work included
    sync: float  # seconds of weights to all samplers
    scoring: float  # seconds of the last group of a batch
    wait: float
    """The rest: synchronous, for the longest completion; asynchronous, the trainers' wait for samples."""
    busy: float  # share of the GPUs' time in which they compute

    @property
    def tokens_per_second(self) -> float:
        """Of completions that are trained."""
        return self.trained / self.step

    def gpu_hours(self) -> float:
        """GPU-hours of a million trained tokens."""
        return self.gpus / 3600 * 1e6 / self.tokens_per_second


@dataclass(frozen=True, slots=True)
class Search:
    """What is to be planned."""

    cluster: GPUCluster
    gpus: int  # how many there are
    fewest_trainers: int  # on which the trainers fit
    sizes: Sequence[int]  # GPUs of a sampler that are compared, the fewest first
    max_staleness: int  # of the asynchronous splits; 0: there are none

    def splits(self) -> list[Split]:
        """Every split that is simulated: colocated, synchronous and asynchronous, the fastest of each first."""
        groups = list(islice(self.cluster.work.groups(), self.cluster.work.prompts))
        modes = [(COLOCATED, self.colocated(), 0, 1), (SYNCHRONOUS, self.apart(), 0, SIMULATED)]
        if self.max_staleness:
            modes.append((ASYNCHRONOUS, self.apart(), self.max_staleness, SIMULATED))
        found: list[Split] = []
        for mode, layouts, staleness, most in modes:
            best = sorted(layouts, key=lambda layout: self.bound(layout[1], staleness, groups))
            found += [self._split(mode, *layout, staleness) for layout in best[:most]]
        return sorted(found, key=lambda split: split.step)

    def apart(self) -> list[tuple[int, Costs]]:
        """Trainers and samplers on GPUs of their own: the GPUs of each sampler, and what it costs."""
        return [
            (size, self.cluster.apart(trainers, (self.gpus - trainers) // size, size))
            for size in self.sizes
            for trainers in self.trainers(size)
        ]

    def colocated(self) -> list[tuple[int, Costs]]:
        """All GPUs in turn, where they hold trainers' shards beside a sampler's weights and cache; as `apart`."""
        beside, longest = self.cluster.held() / self.gpus, self.cluster.work.longest
        return [
            (size, self.cluster.colocated(self.gpus, size))
            for size in self.sizes
            if self.gpus >= max(self.fewest_trainers, size) and self.cluster.cache_tokens(size, beside) >= longest
        ]

    def trainers(self, of_sampler: int) -> list[int]:
        """Numbers of trainers: each, or from two nodes on whole nodes near every sixteenth of the GPUs."""
        most = self.gpus - of_sampler
        if self.gpus < 2 * NODE:
            return list(range(self.fewest_trainers, most + 1))
        near = {NODE * max(1, round(self.gpus * share / SHARES / NODE)) for share in range(1, SHARES)}
        return sorted(n for n in near | {self.fewest_trainers} if self.fewest_trainers <= n <= most)

    def bound(self, costs: Costs, max_staleness: int, groups: list[Lengths]) -> float:
        """Seconds that a step on these groups takes at least: of the trainers, of the samplers, or of both in turn.

        Samplers take as long as at full slots, and a batch as long as its longest completion alone.
        """
        work, decoding = self.cluster.work, costs.decoding
        train = costs.update(work, groups) + costs.sync
        together = min(decoding.slots, (max_staleness + 1) * work.prompts * work.completions / costs.samplers)
        steps = sum(map(sum, groups)) / costs.samplers / together
        each = decoding.sequence + decoding.cached * work.resident()
        sample = steps * (decoding.step + together * each)
        if max_staleness:
            return max(train, sample)
        return train + max(sample, decoding.seconds(max(map(max, groups)), 1, work.prompt_tokens))

    def _split(self, mode: str, of_sampler: int, costs: Costs, max_staleness: int) -> Split:
        work, trainers = self.cluster.work, costs.updating.trainers
        found = simulated(costs, work, max_staleness)
        computed = found.sampling * costs.samplers * of_sampler + found.update * trainers
        waited = found.step - found.update - costs.sync
        if not max_staleness:
            waited -= found.sampling + work.scoring_seconds
        return Split(
            **asdict(found),
            mode=mode,
            trainers=trainers,
            samplers=costs.samplers,
            of_sampler=of_sampler,
            gpus=self.gpus,
            sync=costs.sync,
            scoring=work.scoring_seconds,
            wait=max(0.0, waited),
            busy=computed / (self.gpus * found.step),
        )


def simulated(costs: Costs, work: Workload, max_staleness: int, lengths: Sequence[Lengths] | None = None) -> Means:
    """Simulate a cluster: first until the pipeline is full, and then `MEASURED` updates, whose means these are."""
    first = 2 * (max_staleness + 1) if max_staleness else 1
    found = simulate(costs, work, steps=first + MEASURED, max_staleness=max_staleness, lengths=lengths)
    before, *kept = found.updates[first - 1 :]
    ages = [age for update in kept for age in update.ages]
    return Means(
        step=(kept[-1].synced - before.synced) / MEASURED,
        sampling=(found.sampling[-1] - found.sampling[first - 1]) / MEASURED,
        update=math.fsum(update.updated - update.began for update in kept) / MEASURED,
        trained=sum(update.trained for update in kept) / MEASURED,
        age=sum(ages) / len(ages),
    )
