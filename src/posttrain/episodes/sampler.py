"""Dynamic sampling: groups without signal are filtered and resampled."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Generic, NamedTuple, TypeVar

from posttrain.data.order import batch_indices, seed_for
from posttrain.engine.client import Client
from posttrain.environments.scored import ScoredEnvironment, need_group
from posttrain.episodes.episodes import (
    COMPLETIONS,
    Lost,
    Players,
    asks_of,
    none_left,
    refuse_losses,
    sample_group,
    sample_groups,
)
from posttrain.episodes.monte_carlo_values import state_values
from posttrain.errors import EpisodeError, RewardError
from posttrain.types import Group, States, StateValues, Task


@dataclass(frozen=True)
class Rolled:
    """The rollouts of one step.

    Attributes:
        groups: the groups to train on; empty if none was accepted.
        sampled: all groups, discarded ones included.
        thrown_away: number of discarded groups: not accepted, or in excess of the batch size.
        lost: number of groups with an episode to which no optimised reward applies.
        draws: numbers of the batches of prompts that were drawn.
        failed: number of failed episodes by error type; they are in no group.
        evicted: number of groups that would have been too old; None where groups are taken in the order of start.
    """

    groups: list[Group]
    sampled: list[Group]
    thrown_away: int
    lost: int
    draws: tuple[int, ...]
    failed: Mapping[str, int] = field(default_factory=dict[str, int])
    evicted: int | None = None


class Finished(NamedTuple):
    """A prompt whose group is done.

    Attributes:
        draw: the number of the prompt.
        group: its group; None where too few episodes are left.
        accepted: the group to train on, shaped; None where it is none.
        failed: episodes.
    """

    draw: int
    group: Group | None
    accepted: Group | None
    failed: Sequence[Lost] = ()


T = TypeVar("T")


@dataclass(frozen=True)
class Sampler:
    """Draws prompts and samples their completions; every draw depends only on the seed and its number.

    Attributes:
        environment: plays and scores episodes.
        tasks: the prompts.
        players: who plays; `on` another engine.
        prompts: of a draw, and the number of groups to train on per step.
        completions: of each prompt.
        seed: of all draws.
        min_group: minimum number of episodes of a task to train on, if others failed.
        accepts: whether to train on a group, given the rewards of one seat's rows; one accepted seat is enough.
        shaped: applies reward shaping to a group; the groups in `Rolled.sampled` keep the unshaped rewards.
        max_refills: maximum number of further draws in a step, if not enough groups are accepted.
    """

    environment: ScoredEnvironment
    tasks: Sequence[Task]
    players: Players
    prompts: int
    completions: int
    seed: int
    min_group: int = 1
    accepts: Callable[[Sequence[float]], bool] = lambda rewards: True
    shaped: Callable[[Group], Group] = lambda group: group
    max_refills: int = 0

    @property
    def most(self) -> int:
        """Groups that are sampled for a step if not enough are accepted."""
        return self.prompts * (1 + self.max_refills)

    def at_least(self, step: int) -> "Sampler":
        """The same from weights of this step, or newer ones."""
        return replace(self, players=replace(self.players, least=step))

    def roll_out(self, draw: int, further: Iterator[int] | None = None) -> Rolled:
        """Sample until `prompts` groups are accepted, with at most `max_refills` further draws.

        Args:
            draw: the number of the first draw.
            further: the numbers of the others; None: those that follow `draw`.

        Raises:
            RewardError: in the first draw of a run no optimised reward applies to any group.
            EpisodeError: no group is left after failed episodes.
        """
        failed: Counter[str] = Counter()

        def on_lost(episode: Lost) -> None:
            failed[episode.cause] += 1

        players = replace(self.players, on_lost=on_lost)
        groups: list[Group] = []
        sampled: list[Group] = []
        draws: list[int] = []
        lost = 0
        further = count(draw + 1) if further is None else further
        while len(groups) < self.prompts and len(draws) <= self.max_refills:
            draws.append(next(further) if draws else draw)
            chosen = batch_indices(len(self.tasks), self.prompts, draws[-1], self.seed)
            found = sample_groups(
                self.environment,
                [self.tasks[i] for i in chosen],
                players,
                completions_per_prompt=self.completions,
                seed=seed_for(self.seed, "rollout", draws[-1]),
                min_group=self.min_group,
            )
            sampled += found
            whole = [group for group in found if not group.lost]
            if found and not whole and draws[-1] == 0:
                raise RewardError(_never(found))
            lost += len(found) - len(whole)
            groups += filter(self._is_accepted, map(self.shaped, whole))
        if not sampled:
            raise EpisodeError(none_left(failed))
        kept = groups[: self.prompts]
        return Rolled(kept, sampled, len(sampled) - len(kept) - lost, lost, tuple(draws), failed)

    def asks(self) -> Client:
        """Where `one` asks, for as long as the step is under way. Raises `UserError` as `sample_groups`."""
        need_group(self.environment, self.completions, COMPLETIONS)
        return asks_of(self.environment, replace(self.players, schedule="continuous"))

    async def one(self, draw: int, asks: Client) -> Finished:
        """The group of one prompt, for a coroutine that `asks` runs; draws are numbers of prompts here."""
        (index,) = batch_indices(len(self.tasks), 1, draw, self.seed)
        group, failed = await sample_group(
            self.environment,
            self.tasks[index],
            self.players,
            asks,
            completions=self.completions,
            seed=seed_for(self.seed, "rollout", draw),
            min_group=self.min_group,
        )
        mine = self.shaped(group) if group and not group.lost else None
        return Finished(draw, group, mine if mine and self._is_accepted(mine) else None, failed)

    def rolled(self, finished: Sequence[Finished], evicted: Sequence[int], begun: int) -> Rolled:
        """The rollouts of a step whose prompts were sampled one by one; errors as in `roll_out`, and of `Players`.

        Args:
            finished: the groups of the step.
            evicted: the draws of those that were dropped before it.
            begun: groups of which these finished first: those that fail do so sooner than others.
        """
        lost = [each for one in finished for each in one.failed]
        refuse_losses(lost, self.completions * begun, self.players.max_lost)
        failed = Counter(each.cause for each in lost)
        sampled = [one.group for one in finished if one.group]
        if not sampled:
            raise EpisodeError(none_left(failed))
        unscored = sum(group.lost for group in sampled)
        drawn = [one.draw for one in finished]
        if unscored == len(sampled) and min(*drawn, *evicted) == 0:
            raise RewardError(_never(sampled))
        kept = [one.accepted for one in finished if one.accepted]
        thrown_away = len(sampled) - len(kept) - unscored
        return Rolled(kept, sampled, thrown_away, unscored, tuple(sorted([*drawn, *evicted])), failed, len(evicted))

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
        return state_values(
            groups,
            states,
            self.environment,
            self.players,
            seed=seed_for(self.seed, "states", draw),
        )

    def _is_accepted(self, group: Group) -> bool:
        return any(self.accepts([row.reward for row in rows]) for rows in group.by_seat.values())


@dataclass(frozen=True)
class Rollouts(Generic[T]):
    """What the steps of a run are trained on, in order; each is sampled when it is taken.

    Attributes:
        sampler: samples them.
        draws: numbers of draws: of batches of prompts, or of prompts that are sampled one by one.
        given: from the rollouts and a sampler to what the step is given.
    """

    sampler: Sampler
    draws: Iterator[int]
    given: Callable[[Rolled, Sampler], T]

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
