"""Dynamic sampling: groups without signal are filtered and resampled."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from posttrain.data.order import batch_indices, seed_for
from posttrain.environments.scored import ScoredEnvironment
from posttrain.errors import EpisodeError, RewardError
from posttrain.rollouts.episodes import Lost, Players, none_left, sample_groups
from posttrain.rollouts.monte_carlo_values import state_values
from posttrain.types import Group, States, StateValues, Task


@dataclass(frozen=True)
class Rolled:
    """What was sampled for one step.

    Attributes:
        groups: those to learn from; none, where none was accepted.
        sampled: all of them, thrown away or not.
        thrown_away: how many are not learned from: not accepted, or more than the step wants.
        lost: how many have an episode to which no optimised reward applies.
        draws: how often a batch of prompts was drawn.
        failed: how many episodes failed, by the type of the error; they are in no group.
    """

    groups: list[Group]
    sampled: list[Group]
    thrown_away: int
    lost: int
    draws: int
    failed: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True)
class Sampler:
    """Draws prompts and samples their completions; every draw depends on the seed and its number alone."""

    environment: ScoredEnvironment
    tasks: Sequence[Task]
    players: Players
    prompts: int  # of one draw, and what a step wants to learn from
    completions: int  # of each prompt
    seed: int
    min_group: int = 1  # the fewest episodes of a task that are learned from, where others failed

    def roll_out(
        self,
        draw: int,
        accepts: Callable[[Sequence[float]], bool] = lambda rewards: True,
        shaped: Callable[[Group], Group] = lambda group: group,
        *,
        max_refills: int = 0,
    ) -> Rolled:
        """Sample until `prompts` groups have rewards that are accepted, but draw `max_refills` times more at most.

        Args:
            draw: the number of the first draw.
            accepts: whether to learn from a group in which the rows of one seat have these rewards; one seat is enough.
            shaped: a group with the rewards that are learned from; the groups `sampled` keep what they earned.
            max_refills: how often to draw again.

        Raises:
            RewardError: in the first draw of a run no optimised reward applies to any group.
            EpisodeError: so many episodes failed that no group is left.
        """
        failed: Counter[str] = Counter()

        def on_lost(episode: Lost) -> None:
            failed[episode.cause] += 1

        players = replace(self.players, on_lost=on_lost)
        groups: list[Group] = []
        sampled: list[Group] = []
        drawn = lost = 0
        while len(groups) < self.prompts and drawn <= max_refills:
            chosen = batch_indices(len(self.tasks), self.prompts, draw + drawn, self.seed)
            found = self._sample([self.tasks[i] for i in chosen], players, self.completions, draw + drawn)
            sampled += found
            whole = [group for group in found if not group.lost]
            if found and not whole and draw + drawn == 0:
                raise RewardError(_never(found))
            lost += len(found) - len(whole)
            groups += [
                group
                for group in map(shaped, whole)
                if any(accepts([group.rewards[row] for row in rows]) for rows in group.rows_by_seat)
            ]
            drawn += 1
        if not sampled:
            raise EpisodeError(none_left(failed))
        kept = groups[: self.prompts]
        return Rolled(kept, sampled, len(sampled) - len(kept) - lost, lost, drawn, failed)

    def greedy_rewards(self, groups: Sequence[Group]) -> list[dict[str, float]]:
        """What each seat earns in the greedy episode of each group's task, by the seat's name."""
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
                "compares the others; leave such tasks out, or use another --algorithm"
            )
        return [dict(zip(group.seat_names, group.rewards, strict=True)) for group in found]

    def state_values(self, groups: Sequence[Group], states: States, draw: int) -> list[StateValues]:
        """What the states of each completion are worth, by continuing it from them; `draw` decides by what chance."""
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
