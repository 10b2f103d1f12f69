"""One question, one answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from posttrain.environments.env import Seat, need_seats
from posttrain.rewards import Weighted, parse_rewards
from posttrain.types import Episode, EpisodeGroup, Score, Task


@dataclass(frozen=True)
class SingleTurn:
    """The policy is shown the task's prompt and answers once; the answer is scored by a combination of rewards.

    Example:
        >>> from posttrain.rewards import parse_rewards
        >>> SingleTurn(parse_rewards("numbers tags=0.1")).outcome
        'numbers'
    """

    reward: Weighted
    seats: ClassVar[tuple[str, ...]] = ("policy",)

    @classmethod
    def of(cls, rewards: str) -> "SingleTurn":
        """With rewards as they are typed; raises `UserError` for what is none."""
        return cls(parse_rewards(rewards))

    @property
    def outcome(self) -> str:
        """The name of the score that says whether the task was solved."""
        return self.reward.outcome

    async def play(self, task: Task, seats: Mapping[str, Seat]) -> Episode:
        """Ask the policy once.

        Raises:
            UserError: there is no seat "policy".
        """
        need_seats(self, seats)
        reply = await seats["policy"].turn(task.prompt)
        return Episode(task, (*task.prompt, reply))

    @property
    def min_group(self) -> int:
        """How many completions of a task the rewards need."""
        return self.reward.min_group

    async def score(self, groups: Sequence[EpisodeGroup]) -> list[list[Mapping[str, Score]]]:
        """The scores of every reward by name.

        Raises:
            RewardError: a reward failed.
        """
        return [list(scores) for scores in await self.reward.score_parts(groups)]

    async def unreadable(self, tasks: Sequence[Task]) -> list[str]:
        """Of each task, why a reward cannot read its own answer; "" where all can."""
        return await self.reward.unreadable(tasks)

    def total(self, scores: Mapping[str, Score]) -> float:
        """The weighted sum of one episode's applicable scores; NaN where none that is optimised applies."""
        return self.reward.total(scores)
