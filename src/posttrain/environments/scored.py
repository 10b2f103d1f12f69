"""An environment with its rewards, for training and evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from posttrain.environments.env import Environment
from posttrain.environments.single_turn import SingleTurn
from posttrain.errors import UserError
from posttrain.rewards import Weighted, parse_rewards
from posttrain.types import EpisodeGroup, Group, Score, SeatScores, Span, Task


@dataclass(frozen=True)
class ScoredEnvironment:
    """Episodes of an environment, scored by a combination of rewards.

    Example:
        >>> from posttrain.rewards import parse_rewards
        >>> ScoredEnvironment(parse_rewards("numbers tags=0.1")).outcome
        'numbers'
    """

    reward: Weighted
    environment: Environment = field(default_factory=SingleTurn)

    @classmethod
    def of(cls, rewards: str) -> "ScoredEnvironment":
        """The single-turn environment with rewards as typed; raises `UserError` if they cannot be parsed."""
        return cls(parse_rewards(rewards))

    @property
    def outcome(self) -> str:
        """The name of the score that says whether the task was solved."""
        return self.reward.outcome

    def outcome_of(self, groups: Sequence[Group]) -> str:
        """`outcome`; "" if it has weight 0 and applies to none: an environment that does not say what is solved."""
        if not self.outcome or self.reward.weights[self.outcome]:
            return self.outcome
        applies = any(row.scores[self.outcome].applicable for group in groups for row in group.rows)
        return self.outcome if applies else ""

    @property
    def min_group(self) -> int:
        """How many episodes of a task the rewards need."""
        return self.reward.min_group

    async def score(self, groups: Sequence[EpisodeGroup]) -> list[list[Mapping[str, SeatScores]]]:
        """The scores of every reward by name, for each episode of each group; of some rewards by seat.

        Raises:
            RewardError: a reward failed.
        """
        return [list(scores) for scores in await self.reward.score_parts(groups)]

    async def unreadable(self, tasks: Sequence[Task]) -> list[str]:
        """Of each task, why a reward cannot read its own answer; "" where all can."""
        return await self.reward.unreadable(tasks)

    def total(self, scores: Mapping[str, Score]) -> float:
        """The weighted sum of the applicable scores of one seat; NaN where none that is optimised applies."""
        return self.reward.total(scores)

    def spans(self, scores: Mapping[str, Score]) -> list[Span]:
        """The spans of the scores of one seat, by weight; those that are not optimised are left out."""
        return self.reward.spans(scores)


def of_seat(scores: Mapping[str, SeatScores], seat: str) -> dict[str, Score]:
    """The scores of one seat of an episode; one that is not by seat is meant for each."""
    missing = Score.not_applicable("not of this seat")
    return {name: score if isinstance(score, Score) else score.get(seat, missing) for name, score in scores.items()}


def need_group(environment: ScoredEnvironment, size: int, what: str) -> None:
    """Refuse, before anything is sampled, groups that the rewards could not compare.

    Raises:
        UserError: they are smaller than the rewards need; `what` says where the number is from.
    """
    if size < environment.min_group:
        raise UserError(
            f"reward '{environment.reward.most_compared}' compares {environment.min_group} or more completions of a "
            f"task; {what} gives {size}"
        )
