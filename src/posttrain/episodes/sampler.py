"""The groups of each step: numbers of draws, their prompts, and dynamic sampling, which drops groups without signal."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Generic, NamedTuple, Self, TypeVar

from posttrain.data.curriculum import Curriculum
from posttrain.data.order import seed_for
from posttrain.engine.client import Client
from posttrain.engine.scheduler import Scheduler
from posttrain.environments.scored import ScoredEnvironment, need_group
from posttrain.episodes.episodes import (
    COMPLETIONS,
    Players,
    asks_of,
    none_left,
    refuse_losses,
    sample_group,
    sample_groups,
)
from posttrain.episodes.monte_carlo_values import state_values
from posttrain.errors import EpisodeError, RewardError
from posttrain.types import Engine, Group, States, StateValues, Task

T = TypeVar("T")


class Draws:
    """Gives out the numbers from `first` on, but those in `used`; several threads may take them.

    Each is trained on at most once, also when steps are sampled ahead and those drawn later are ready first.
    """

    def __init__(self, first: int, used: Sequence[int] = ()) -> None:
        self._used = {*used}
        self.first = first
        self._lock = threading.Lock()
        self._numbers = count(first)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        with self._lock:
            return next(n for n in self._numbers if n >= self.first and n not in self._used)

    def use(self, numbers: Iterable[int]) -> None:
        """Note that what these draws sampled was trained on."""
        with self._lock:
            self._used |= {*numbers}
            while self.first in self._used:
                self._used.remove(self.first)
                self.first += 1

    @property
    def used(self) -> list[int]:
        """Those used besides all below `first`, in order."""
        return sorted(self._used)


@dataclass(frozen=True)
class Rolled:
    """The rollouts of one step."""

    groups: list[Group]  # to train on; empty if none was accepted
    sampled: list[Group]  # all of them, discarded ones included
    draws: tuple[int, ...]  # numbers of the batches of prompts that were drawn
    # episodes that failed, by the type of the error; they are in no group
    failed: Mapping[str, int] = field(default_factory=dict[str, int])
    evicted: int | None = None  # groups that would have been too old; None where they are taken in order of start

    @property
    def lost(self) -> int:
        """Number of groups with an episode to which no optimised reward applies."""
        return sum(group.lost for group in self.sampled)

    @property
    def thrown_away(self) -> int:
        """Number of discarded groups: not accepted, or in excess of the batch size."""
        return len(self.sampled) - len(self.groups) - self.lost


class Finished(NamedTuple):
    """A prompt whose group is done."""

    draw: int  # the number of the prompt
    group: Group | None  # None where too few episodes are left
    accepted: Group | None  # what to train on, shaped
    failed: Sequence[Exception] = ()  # of episodes


@dataclass(frozen=True)
class Sampler:
    """Draws prompts and samples their completions; every draw depends only on the seed and its number."""

    environment: ScoredEnvironment
    tasks: Sequence[Task]  # the prompts
    players: Players
    prompts: int  # of a draw, and groups to train on per step
    completions: int  # of each prompt
    seed: int  # of all draws
    min_group: int = 1  # episodes of a task that must be left where others failed
    # whether to train on a group, by the rewards of one seat's rows; one accepted seat is enough
    accepts: Callable[[Sequence[float]], bool] = lambda rewards: True
    # reward shaping of a group, by a seed of its own; those in `Rolled.sampled` keep the unshaped rewards
    shaped: Callable[[Group, int], Group] = lambda group, seed: group
    max_refills: int = 0  # further draws in a step, if not enough groups are accepted
    curriculum: Curriculum | None = None  # which tasks are drawn; None: all alike
    # other models that continue completions, by the option that names them
    others: Mapping[str, Engine | Scheduler] = field(default_factory=dict[str, Engine | Scheduler])

    @property
    def most(self) -> int:
        """Groups that are sampled for a step if not enough are accepted."""
        return self.prompts * (1 + self.max_refills)

    def at_least(self, step: int) -> "Sampler":
        """The same from weights of this step, or newer ones."""
        return replace(self, players=replace(self.players, least=step))

    def roll_out(self, draw: int, further: Iterator[int] | None = None) -> Rolled:
        """Sample until `prompts` groups are accepted, with at most `max_refills` further draws.

        `draw` is the number of the first draw; those of the others are `further`, or follow it. Raises `RewardError`
        where in a run's first draw no optimised reward applies to any group, `EpisodeError` where all episodes failed.
        """
        failed: Counter[str] = Counter()
        players = replace(self.players, on_lost=lambda error: failed.update([type(error).__name__]))
        groups: list[Group] = []
        sampled: list[Group] = []
        draws: list[int] = []
        further = count(draw + 1) if further is None else further
        while len(groups) < self.prompts and len(draws) <= self.max_refills:
            draws.append(next(further) if draws else draw)
            chosen = self._chosen(self.prompts, draws[-1])
            found = sample_groups(
                self.environment,
                [self.tasks[i] for i in chosen],
                players,
                completions_per_prompt=self.completions,
                seed=seed_for(self.seed, "rollout", draws[-1]),
                min_group=self.min_group,
            )
            sampled += found
            seeds = [seed_for(self.seed, "shaped", draws[-1], place) for place in range(len(found))]
            whole = [self.shaped(group, one) for group, one in zip(found, seeds, strict=True) if not group.lost]
            if found and not whole and draws[-1] == 0:
                raise RewardError(_never(found))
            groups += filter(self._is_accepted, whole)
        if not sampled:
            raise EpisodeError(none_left(failed))
        return Rolled(groups[: self.prompts], sampled, tuple(draws), failed)

    def asks(self) -> Client:
        """Where `one` asks, for as long as the step is under way. Raises `UserError` as `sample_groups`."""
        need_group(self.environment, self.completions, COMPLETIONS)
        return asks_of(self.environment, replace(self.players, schedule="continuous"))

    async def one(self, draw: int, asks: Client) -> Finished:
        """The group of one prompt, for a coroutine that `asks` runs; draws are numbers of prompts here."""
        (index,) = self._chosen(1, draw)
        seeds = [
            seed_for(seed_for(self.seed, "rollout", draw), "completion", 0, number)
            for number in range(self.completions)
        ]
        least = max(min(self.min_group, self.completions), self.environment.reward.min_group)
        failed: list[Exception] = []  # how many may fail is said of a step
        group = await sample_group(self.environment, self.tasks[index], self.players, asks, seeds, least, failed.extend)
        mine = self.shaped(group, seed_for(self.seed, "shaped", draw, 0)) if group and not group.lost else None
        return Finished(draw, group, mine if mine and self._is_accepted(mine) else None, failed)

    def rolled(self, finished: Sequence[Finished], evicted: Sequence[int], begun: int) -> Rolled:
        """The rollouts of a step whose prompts were sampled one by one; `evicted` are draws dropped before it.

        `begun` counts the groups of which these finished first: those that fail do so sooner than others.
        """
        lost = [error for one in finished for error in one.failed]
        refuse_losses(lost, self.completions * begun, self.players.max_lost)
        failed = Counter(type(error).__name__ for error in lost)
        sampled = [one.group for one in finished if one.group]
        if not sampled:
            raise EpisodeError(none_left(failed))
        drawn = sorted([*(one.draw for one in finished), *evicted])
        if drawn[0] == 0 and all(group.lost for group in sampled):
            raise RewardError(_never(sampled))
        kept = [one.accepted for one in finished if one.accepted]
        return Rolled(kept, sampled, tuple(drawn), failed, len(evicted))

    def greedy_rewards(self, groups: Sequence[Group]) -> list[dict[str, float]]:
        """The reward of each seat in the greedy episode of each group's task, by seat name."""
        greedy = replace(self.players, sampling=replace(self.players.sampling, temperature=0.0))
        seed = seed_for(self.seed, "rollout", 0)
        tasks = [group.task for group in groups]
        found = sample_groups(self.environment, tasks, greedy, completions_per_prompt=1, seed=seed)
        if len(found) < len(groups):
            raise EpisodeError(
                "the greedy episode of a task failed, to which the algorithm compares the others; mend what fails in "
                "the environment, or use an algorithm that plays none"
            )
        if lost := [group for group in found if group.lost]:
            raise RewardError(
                f"no reward applies to the most likely completion of task {lost[0].task.id!r}, to which the algorithm "
                "compares the others; leave such tasks out, or use another `algorithm`"
            )
        return [{row.seat: row.reward for row in group.rows} for group in found]

    def state_values(self, groups: Sequence[Group], states: States, draw: int) -> list[StateValues]:
        """Monte Carlo values of the states of each completion, from continuations; `draw` seeds the sampling."""
        by = replace(self.players, engine=self.others[states.by], least=None) if states.by else self.players
        seed = seed_for(self.seed, "states", draw)
        return state_values(groups, states, self.environment, self.players, seed=seed, by=by)

    def _chosen(self, batch: int, draw: int) -> list[int]:
        return (self.curriculum or Curriculum(len(self.tasks))).indices(batch, draw, self.seed)

    def _is_accepted(self, group: Group) -> bool:
        return any(self.accepts([row.reward for row in rows]) for rows in group.by_seat.values())


@dataclass(frozen=True)
class Rollouts(Generic[T]):
    """What the steps of a run are trained on, in order; each is sampled when it is taken."""

    sampler: Sampler
    draws: Iterator[int]  # numbers: of batches of prompts, or of prompts that are sampled one by one
    given: Callable[[Rolled, Sampler], T]  # what a step is given

    def take(self, step: int) -> T:
        """The rollouts of a step; raises what sampling raised."""
        return self.given(self.sampler.roll_out(next(self.draws), self.draws), self.sampler)

    def trained(self, step: int) -> None:
        """The weights are those with which this step begins; nothing changes."""

    def at_least(self, step: int) -> "Rollouts[T]":
        """The same from weights of this step, or newer ones."""
        return replace(self, sampler=self.sampler.at_least(step))


def _never(groups: Sequence[Group]) -> str:
    """The error message for a first batch whose groups are all lost, with the explanation of one score."""
    names = ", ".join(f"'{name}'" for name in groups[0].rows[0].scores)
    said = [
        f"'{name}': {score.explanation}"
        for group in groups
        for row in group.rows
        for name, score in row.scores.items()
        if not score.applicable and score.explanation
    ]
    return (
        f"there is nothing to learn from: each of the first {len(groups)} prompts has a completion to which no reward "
        f"({names}) applies{f' ({said[0]})' if said else ''}; see what they score with posttrain score, or add a "
        "reward that always applies"
    )
