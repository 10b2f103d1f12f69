"""Discrete-event simulation of samplers and trainers.

    simulate(costs, work, steps=20)                   synchronous
    simulate(costs, work, steps=20, max_staleness=2)  asynchronous

Groups are numbered in the order in which they start, and B of them are a batch: group g is trained in update g // B,
whose trainer has version g // B. A group may start while

    g // B <= version of the samplers + max_staleness

and is sampled by the version v with which its first completion starts, so that its age when it is trained,
g // B - v, is at most `max_staleness`, none is dropped, and none is trained twice. With `max_staleness` 0 a batch
starts when the samplers have the weights of the update before: synchronous training is no other simulation.

An event is a completion, a batch that is scored, or an update that is done. Between events the sequences of a sampler
advance together by `Decoding.steps`. When an update is done all samplers stop, take the weights, and go on with
unfinished completions under the new ones, as AReaL (Fu et al. 2025, arXiv 2505.24298, section 4.1) and PipelineRL do.
"""

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from posttrain.planning.cluster.coefficients import Costs, Decoding, Lengths, Workload

ROUNDING = 1e-9  # of decoding steps


@dataclass(slots=True)
class Group:
    """A group: when it was sampled, and by which version of the weights at its start."""

    lengths: Lengths
    version: int = -1
    started: float = math.inf
    finished: float = -math.inf
    left: int = 0  # completions that are not done


@dataclass(frozen=True, slots=True)
class Update:
    """One update; times are in seconds since the start."""

    version: int  # of the trainer before it
    groups: range  # their numbers
    ages: tuple[int, ...]  # of each group
    trained: int  # tokens of completions
    ready: float  # when the last group was scored
    began: float
    updated: float  # the end of the update, and the start of the weight sync
    synced: float  # when all samplers had the weights


@dataclass(slots=True)
class _Sampler:
    """A sampler: sequences by the decoding step at which they end."""

    decoding: Decoding
    prompt_tokens: int
    running: list[tuple[float, int, int]] = field(default_factory=list[tuple[float, int, int]])  # end, group, length
    done: float = 0.0  # decoding steps
    cached: float = 0.0
    now: float = 0.0  # until when it is computed
    stalled: float = 0.0  # until when it reads prompts or takes weights
    busy: float = 0.0  # without taking weights
    last: int = -1  # group whose prompt it has
    events: int = 0  # newer ones replace older ones

    def advance(self, now: float) -> None:
        """Decode until `now`, before the next completion is done."""
        seconds = now - max(self.now, self.stalled)
        if seconds > 0 and self.running:
            self._step(self.decoding.steps(seconds, len(self.running), self.cached), seconds)
        self.now = max(self.now, now)

    def _step(self, steps: float, seconds: float) -> None:
        self.done += steps
        self.cached += steps * len(self.running)
        self.busy += seconds

    def next(self) -> float:
        """When its next completion is done."""
        seconds = self.decoding.seconds(self.running[0][0] - self.done, len(self.running), self.cached)
        return max(self.now, self.stalled) + seconds

    def finished(self, now: float) -> list[int]:
        """The groups of the completions that are done at `now`, when `next` said that one is."""
        self._step(self.running[0][0] - self.done, now - max(self.now, self.stalled))
        self.now = now
        found: list[int] = []
        while self.running and self.running[0][0] <= self.done + ROUNDING:
            _, group, length = heapq.heappop(self.running)
            self.cached -= self.prompt_tokens + length
            found.append(group)
        if not self.running:
            self.cached = 0.0
        return found

    def add(self, sequences: Iterable[tuple[int, int]], now: float, begin: float) -> None:
        """Start sequences, each a group and a length."""
        self.advance(now)
        seconds = begin
        for group, length in sequences:
            if group != self.last:
                seconds += self.prompt_tokens * self.decoding.prompt
                self.last = group
            heapq.heappush(self.running, (self.done + length, group, length))
            self.cached += self.prompt_tokens
        self.stalled = max(self.stalled, now) + seconds
        self.busy += seconds

    def take_weights(self, now: float, sync: float) -> None:
        """Wait until the weights are there, and read the cache of unfinished sequences again."""
        self.advance(now)
        again = self.cached * self.decoding.prompt
        self.stalled = max(self.stalled, now) + sync + again
        self.busy += again
        self.last = -1  # keys and values of prompts belong to weights


class Simulation:
    """A simulation: its state, and what has come of it."""

    def __init__(self, costs: Costs, work: Workload, lengths: Iterator[Lengths], max_staleness: int) -> None:
        self.costs, self.work, self.lengths, self.staleness = costs, work, lengths, max_staleness
        self.samplers = [_Sampler(costs.decoding, work.prompt_tokens) for _ in range(costs.samplers)]
        self.groups: list[Group] = []  # all that may have started, by number
        self.waiting: deque[tuple[int, int]] = deque()  # sequences that may start, each a group and a length
        self.updates: list[Update] = []
        self.sampling: list[float] = []  # seconds that a sampler computed until each update ended, the mean of all
        self.version = 0
        self.free = 0.0  # when the trainers are
        self.done: Counter[int] = Counter()  # groups of a batch that are
        self.ready: dict[int, float] = {}  # when all groups of a batch are scored
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()

    def at(self, time: float, event: Callable[[float], None]) -> None:
        """Have something happen, which is told the time."""
        heapq.heappush(self.events, (time, next(self._order), event))

    def admit(self, now: float) -> None:
        """Let groups start that will not be too old; samplers get equally many sequences, as of `SamplerGroup`."""
        for number in range(len(self.groups), (self.version + self.staleness + 1) * self.work.prompts):
            lengths = next(self.lengths)
            self.groups.append(Group(lengths, left=len(lengths)))
            self.waiting.extend((number, length) for length in lengths)
        loads = [len(sampler.running) for sampler in self.samplers]
        share = min(self.costs.decoding.slots, math.ceil((len(self.waiting) + sum(loads)) / len(loads)))
        for place in sorted(range(len(loads)), key=loads.__getitem__):
            self.start(place, share - loads[place], now, self.costs.decoding.begin)

    def start(self, place: int, most: int, now: float, begin: float = 0.0) -> None:
        """Start up to `most` waiting sequences on a sampler."""
        taken = [self.waiting.popleft() for _ in range(max(0, min(most, len(self.waiting))))]
        for number, _ in taken:
            group = self.groups[number]
            if group.version < 0:
                group.version, group.started = self.version, now
        if taken:
            self.samplers[place].add(taken, now, begin)
            self.expect(place)

    def expect(self, place: int) -> None:
        """Replace the event of a sampler's next completion."""
        sampler = self.samplers[place]
        sampler.events += 1
        if sampler.running:
            self.at(sampler.next(), partial(self.complete, place, sampler.events))

    def complete(self, place: int, event: int, now: float) -> None:
        """Completions of a sampler are done, unless a newer event replaces this one; others take their slots."""
        if event != self.samplers[place].events:
            return
        for number in self.samplers[place].finished(now):
            group = self.groups[number]
            group.left -= 1
            if not group.left:
                group.finished = now
                batch = number // self.work.prompts
                self.done[batch] += 1
                if self.done[batch] == self.work.prompts:
                    self.ready[batch] = now + self.work.scoring_seconds
                    self.at(self.ready[batch], self.train)
        if self.waiting:
            self.start(place, self.costs.decoding.slots - len(self.samplers[place].running), now)
        self.expect(place)

    def train(self, now: float) -> None:
        """Begin the next update, if its batch is there and the trainers are free."""
        batch = self.version
        if self.ready.get(batch, math.inf) > now or self.free > now:
            return
        numbers = range(batch * self.work.prompts, (batch + 1) * self.work.prompts)
        groups = self.groups[numbers.start : numbers.stop]
        lengths = [group.lengths for group in groups]
        updated = now + self.costs.update(self.work, lengths)
        self.free = synced = updated + self.costs.sync
        ages, trained = tuple(batch - group.version for group in groups), sum(map(sum, lengths))
        self.updates.append(Update(batch, numbers, ages, trained, self.ready[batch], now, updated, synced))
        self.at(updated, self.publish)

    def publish(self, now: float) -> None:
        """Samplers take the weights; the groups that start from now on are sampled by these."""
        self.version += 1
        for place, sampler in enumerate(self.samplers):
            sampler.take_weights(now, self.costs.sync)
            self.expect(place)
        self.sampling.append(sum(sampler.busy for sampler in self.samplers) / len(self.samplers))
        self.at(self.free, self.train)


def simulate(
    costs: Costs, work: Workload, *, steps: int, max_staleness: int = 0, lengths: Iterable[Lengths] | None = None
) -> Simulation:
    """Simulate this many updates, with groups of an age up to `max_staleness`; 0: synchronous.

    `lengths` of group after group are drawn from `work` unless given: (`max_staleness` + `steps`) x prompts of them.
    """
    found, now = Simulation(costs, work, work.groups() if lengths is None else iter(lengths), max_staleness), 0.0
    for done in range(steps):
        found.admit(now)
        while len(found.sampling) == done:  # until the update is synced
            now, _, event = heapq.heappop(found.events)
            event(now)
    return found
