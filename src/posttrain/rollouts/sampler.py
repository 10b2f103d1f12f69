"""Dynamic sampling: groups without signal are filtered and resampled."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from posttrain.data.order import batch_indices, seed_for
from posttrain.environments.scored import ScoredEnvironment
from posttrain.errors import EpisodeError, RewardError
from posttrain.rollouts.episodes import Lost, Players, none_left, sample_groups
from posttrain.rollouts.monte_carlo_values import state_values
from posttrain.types import Engine, Group, States, StateValues, Task


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
    """

    groups: list[Group]
    sampled: list[Group]
    thrown_away: int
    lost: int
    draws: tuple[int, ...]
    failed: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True)
class Sampler:
    """Draws prompts and samples their completions; every draw depends only on the seed and its number."""

    environment: ScoredEnvironment
    tasks: Sequence[Task]
    players: Players
    prompts: int  # per draw, and the number of groups to train on per step
    completions: int  # of each prompt
    seed: int
    min_group: int = 1  # minimum number of episodes of a task to train on, if others failed

    def on(self, engine: Engine) -> "Sampler":
        """The same with another engine."""
        return replace(self, players=replace(self.players, engine=engine))

    def roll_out(
        self,
        draw: int,
        accepts: Callable[[Sequence[float]], bool] = lambda rewards: True,
        shaped: Callable[[Group], Group] = lambda group: group,
        *,
        max_refills: int = 0,
        further: Iterator[int] | None = None,
    ) -> Rolled:
        """Sample until `prompts` groups are accepted, with at most `max_refills` further draws.

        Args:
            draw: the number of the first draw.
            accepts: whether to train on a group, given the rewards of one seat's rows; one accepted seat is enough.
            shaped: applies reward shaping to a group; the groups in `sampled` keep the unshaped rewards.
            max_refills: maximum number of further draws.
            further: their numbers; None: those that follow `draw`.

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
        while len(groups) < self.prompts and len(draws) <= max_refills:
            draws.append(next(further) if draws else draw)
            chosen = batch_indices(len(self.tasks), self.prompts, draws[-1], self.seed)
            found = self._sample([self.tasks[i] for i in chosen], players, self.completions, draws[-1])
            sampled += found
            whole = [group for group in found if not group.lost]
            if found and not whole and draws[-1] == 0:
                raise RewardError(_never(found))
            lost += len(found) - len(whole)
            groups += [
                group
                for group in map(shaped, whole)
                if any(accepts([group.rewards[row] for row in rows]) for rows in group.rows_by_seat)
            ]
        if not sampled:
            raise EpisodeError(none_left(failed))
        kept = groups[: self.prompts]
        return Rolled(kept, sampled, len(sampled) - len(kept) - lost, lost, tuple(draws), failed)

    def greedy_rewards(self, groups: Sequence[Group]) -> list[dict[str, float]]:
        """The reward of each seat in the greedy episode of each group's task, by seat name."""
        greedy = replace(self.players, sampling=replace(self.players.sampling, temperature=0.0))
        found = self._sample([group.task for group in groups], greedy, 1, 0)
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
        return [dict(zip(group.seat_names, group.rewards, strict=True)) for group in found]

    def state_values(self, groups: Sequence[Group], states: States, draw: int) -> list[StateValues]:
        """Monte Carlo values of the states of each completion, from continuations; `draw` seeds the sampling."""
        return state_values(
            groups,
            states,
            self.environment,
            self.players,
            seed=seed_for(self.seed, "states", draw),
        )

    def _sample(self, tasks: Sequence[Task], players: Players, completions: int, draw: int) -> list[Group]:
        return sample_groups(
            self.environment,
            tasks,
            players,
            completions_per_prompt=completions,
            seed=seed_for(self.seed, "rollout", draw),
            min_group=min(self.min_group, completions),
        )


def _never(groups: Sequence[Group]) -> str:
    names = ", ".join(f"'{name}'" for name in groups[0].scores[0])
    return (
        f"no reward ({names}) applies to all completions of any of the first {len(groups)} prompts, so that there is "
        "nothing to learn from; see what they score with posttrain score, or add a reward that always applies"
    )
