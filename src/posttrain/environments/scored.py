"""An environment with its rewards, for training and evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from posttrain.environments.env import Environment
from posttrain.environments.single_turn import SingleTurn
from posttrain.errors import DataError, UserError
from posttrain.rewards import Weighted, named_in, parse_rewards
from posttrain.types import Group, Score, SeatScores, Task


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


def of_seat(scores: Mapping[str, SeatScores], seat: str) -> dict[str, Score]:
    """The scores of one seat of an episode; one that is not by seat is meant for each."""
    missing = Score.not_applicable("not of this seat")
    return {name: score if isinstance(score, Score) else score.get(seat, missing) for name, score in scores.items()}


def need_group(environment: ScoredEnvironment, size: int, what: str) -> None:
    """Refuse, before anything is sampled, groups that the rewards could not compare.

    Raises:
        UserError: they are smaller than the rewards need; `what` says where the number is from.
    """
    if size < environment.reward.min_group:
        raise UserError(
            f"reward '{environment.reward.most_compared}' compares {environment.reward.min_group} or more completions "
            f"of a task; {what} gives {size}"
        )


def refuse_unknown_rewards(tasks: Sequence[Task], rewards: Weighted | None, reward_model: str = "") -> None:
    """Refuse, before weights are read, a row whose column `rewards` names one that is not there.

    Raises:
        DataError: names the row, the reward, and those that there are, `reward_model` among them where one is given.
    """
    known = {*(rewards.weights if rewards else ()), *(("reward_model",) if reward_model else ())}
    for task in tasks:
        if other := [name for name in named_in(task) if name not in known]:
            raise DataError(
                f"{task.id} names the reward '{other[0]}' in its column 'rewards'; there are: "
                f'{", ".join(sorted(known))}; add it to `reward`, or rename the column with `columns="other=rewards"`'
            )
