"""Training rewards together with gold rewards: logged on held-out tasks, never optimised."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from posttrain.environments.env import Environment
from posttrain.environments.scored import ScoredEnvironment
from posttrain.environments.single_turn import SingleTurn
from posttrain.rewards import (
    CachedScores,
    Disagreement,
    LearnedReward,
    Named,
    Reward,
    StepReward,
    Weighted,
    parse_rewards,
)
from posttrain.rewards.outcomes import Earned, Solved
from posttrain.types import ScoreFn

GOLD = "gold"  # the name of gold rewards


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
