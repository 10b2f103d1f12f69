"""An environment with its rewards, for training and evaluation; and with gold rewards, which are never optimised."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from posttrain.environments.env import Environment, SingleTurn
from posttrain.errors import DataError, UserError
from posttrain.rewards import (
    CachedScores,
    Disagreement,
    LearnedReward,
    Named,
    Reward,
    StepReward,
    Weighted,
    named_in,
    parse_rewards,
)
from posttrain.rewards.outcomes import Earned, Solved
from posttrain.types import Group, Score, ScoreFn, SeatScores, Task

GOLD = "gold"  # the name of gold rewards


@dataclass(frozen=True)
class ScoredEnvironment:
    """Episodes of an environment, scored by a combination of rewards.

    Example:
        >>> ScoredEnvironment(parse_rewards("numbers tags=0.1")).outcome
        'numbers'
    """

    reward: Weighted
    environment: Environment = field(default_factory=SingleTurn)

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
    """Refuse (`UserError`), before sampling, groups too small for the rewards; `what` says where `size` is from."""
    if size < environment.reward.min_group:
        raise UserError(
            f"reward '{environment.reward.most_compared}' compares {environment.reward.min_group} or more completions "
            f"of a task; {what} gives {size}"
        )


def refuse_unknown_rewards(tasks: Sequence[Task], rewards: Weighted | None, reward_model: str = "") -> None:
    """Refuse (`DataError`), before weights are read, a row whose column `rewards` names one that is not there."""
    known = {*(rewards.weights if rewards else ()), *(("reward_model",) if reward_model else ())}
    for task in tasks:
        if other := [name for name in named_in(task) if name not in known]:
            raise DataError(
                f"{task.id} names the reward '{other[0]}' in its column 'rewards'; there are: "
                f'{", ".join(sorted(known))}; add it to `reward`, or rename the column with `columns="other=rewards"`'
            )


class Overseen(NamedTuple):
    """An environment, and the same with gold rewards logged."""

    environment: ScoredEnvironment
    heldout: ScoredEnvironment
    gold: dict[str, float]  # names and weights of the gold rewards


def rewards_in(given: object, judges: Mapping[str, Reward] | None = None) -> Weighted | None:
    """The rewards of an option, as `parse_rewards` takes them; None where it is empty. Raises `UserError` as that."""
    return None if given is None or given in ("", {}, []) else parse_rewards(given, judges=judges or {})


def overseen(
    rewards: Weighted | None,
    models: Sequence[ScoreFn] = (),
    *,
    members: int = 2,
    use: str = "mean",
    penalty: float = 0.5,
    steps: str = "",
    gold: Weighted | None = None,
    gold_model: ScoreFn | None = None,
    gold_steps: str = "",
    environment: Environment | None = None,
) -> Overseen:
    """Combine rewards: rules, verifiers and reward models, and gold rewards.

    Args:
        rewards: training rewards; None if there are only models.
        models: training reward models: their members form one ensemble, of weight 1.
        members: their number of scores; disagreement is logged if there are several.
        use: ensemble aggregation, a name in `COMBINATIONS`.
        penalty: weight of the ensemble variance.
        steps: of process reward models the aggregation of steps, a name in `STEP_AGGREGATIONS`; empty for others.
        gold: gold rewards, whose weighted sum counts.
        gold_model: a gold reward model, of weight 1.
        gold_steps: of it as `steps`.
        environment: of both; one question and one answer unless given. Where its outcome is a reward, whether it was
            solved is logged too.

    Raises:
        UserError: two rewards have one name.
    """
    parts = rewards.parts if rewards else ()
    kinds = {type(reward) for reward, _ in parts}
    if Earned in kinds and Solved not in kinds:
        parts = (*parts, (Solved(), 0.0))
    if models and steps:
        parts = (*parts, (StepReward(models, steps, use=use, penalty=penalty), 1.0))
    elif models:
        ask = CachedScores(_together(models))
        parts = (*parts, (LearnedReward(ask, use=use, penalty=penalty), 1.0))
        if members > 1:
            parts = (*parts, (Disagreement(ask), 0.0))
    read = list(gold.parts) if gold else []
    if gold_model is not None:
        model = StepReward([gold_model], gold_steps, "model") if gold_steps else LearnedReward(gold_model, "model")
        read.append((model, 1.0))
    named = [(Named(reward, GOLD if len(read) == 1 else f"{GOLD}/{reward.name}"), weight) for reward, weight in read]
    both = Weighted((*parts, *((reward, 0.0) for reward, _ in named)))
    played, weights = environment or SingleTurn(), {reward.name: weight for reward, weight in named}
    return Overseen(ScoredEnvironment(Weighted(parts), played), ScoredEnvironment(both, played), weights)


def _together(models: Sequence[ScoreFn]) -> ScoreFn:
    """The members of all of them."""
    return lambda conversations: [
        [score for scores in each for score in scores]
        for each in zip(*(ask(conversations) for ask in models), strict=True)
    ]
