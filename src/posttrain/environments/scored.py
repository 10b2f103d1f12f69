"""An environment with its rewards, for training and evaluation; and with gold rewards, which are never optimised."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from posttrain.environments.env import Environment, SingleTurn
from posttrain.errors import DataError, UserError, unknown, words_of
from posttrain.rewards import (
    REWARDS,
    TIME_LIMITS,
    Ask,
    CustomReward,
    Disagreement,
    Judge,
    JudgePrompt,
    LearnedReward,
    Named,
    RewardContext,
    StepReward,
    Weighted,
    cached_scores,
    named_in,
    parse_rewards,
    read_prompt,
)
from posttrain.rewards.reward import Earned, Solved
from posttrain.types import ChatModel, Group, Message, Sampling, Score, ScoreFn, SeatScores, Task

GOLD = "gold"  # the name of gold rewards


@dataclass(frozen=True)
class ScoredEnvironment:
    """Episodes of an environment, scored by a combination of rewards."""

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


def overseen(
    rewards: Weighted | None,
    models: Sequence[ScoreFn] = (),  # whose members form one ensemble
    *,
    members: int = 2,  # scores of the models; if there are several, their disagreement is logged
    use: str = "mean",  # a name in `COMBINATIONS`
    penalty: float = 0.5,  # weight of the ensemble's variance
    steps: str = "",  # of process reward models, a name in `STEP_AGGREGATIONS`
    gold: Weighted | None = None,
    gold_model: ScoreFn | None = None,
    gold_steps: str = "",  # of it as `steps`
    environment: Environment | None = None,  # None: one question and one answer
) -> Overseen:
    """Combine rules, verifiers and reward models, and gold rewards, of which the weighted sum counts.

    A model has weight 1, and so has an ensemble. Where the environment's outcome is a reward, whether it was solved is
    logged too. Raises `UserError` where two rewards have one name.
    """
    parts = rewards.parts if rewards else ()
    kinds = {type(reward) for reward, _ in parts}
    if Earned in kinds and Solved not in kinds:
        parts = (*parts, (Solved(), 0.0))
    if models and steps:
        parts = (*parts, (StepReward(models, steps, use=use, penalty=penalty), 1.0))
    elif models:

        def members_of_all(conversations: Sequence[Sequence[Message]]) -> list[list[float]]:
            every = zip(*(ask(conversations) for ask in models), strict=True)
            return [[*chain.from_iterable(each)] for each in every]

        ask = cached_scores(members_of_all)
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


class ParsedRewards(NamedTuple):
    """Training rewards and gold rewards; None if there are none."""

    rewards: Weighted | None
    gold: Weighted | None
    notes: tuple[str, ...] = ()  # what to tell the user

    @property
    def movable(self) -> list[CustomReward]:
        """See `Weighted.movable`."""
        return [function for each in (self.rewards, self.gold) if each for function in each.movable]

    def moved(self, ask: Callable[[CustomReward, float], Ask]) -> "ParsedRewards":
        """See `Weighted.moved`."""
        rewards, gold = (each.moved(ask) if each else None for each in (self.rewards, self.gold))
        return self._replace(rewards=rewards, gold=gold)


def judged(
    reward: object,
    gold: object = "",
    *,
    judges: Mapping[str, ChatModel],
    policy: ChatModel | None = None,  # for functions that ask it
    prompts: str = "",  # one for all judges, or NAME=PROMPT for some of them
    sampling: Sampling = Judge.sampling,  # of verdicts
    seed: int = 0,  # of the run
) -> ParsedRewards:
    """The rewards of two options, as `parse_rewards` takes them, and the judges.

    A judge that no option names has weight 1; where a function takes `reward_context`, it is left to it. Raises
    `UserError` where a judge has the name of another reward, and for a prompt that is none, or of no judge.
    """
    by_name: dict[str, JudgePrompt] = {}
    default = read_prompt("quality")
    for word in words_of("judge_prompt", prompts):
        named = re.fullmatch(r"([\w-]+)=(.+)", word)
        if named is None:
            default = read_prompt(word)
        elif named[1] not in judges:
            raise unknown("judge in `judge_prompt`:", named[1], judges)
        else:
            by_name[named[1]] = read_prompt(named[2])
    found = {
        name: Judge(
            model, name, by_name.get(name, default), sampling, seed, at_once=getattr(model, "at_once", Judge.at_once)
        )
        for name, model in judges.items()
    }
    options = (parse_rewards(each, judges=found) if each not in (None, "", {}, []) else None for each in (reward, gold))
    rewards, read = options
    both = [each for each in (rewards, read) if each]
    parts = [part for each in both for part, _ in each.parts]
    taken = {*REWARDS, *(part.name for part in parts if part is not found.get(part.name))}
    if taken := [name for name in found if name in taken]:
        raise UserError(f"a judge cannot be called '{taken[0]}', which is the name of a reward; rename it")
    asking = [name for each in both for name in each.asks]
    told = {name for each in both for name in each.weights}
    told |= {judge.name for part in parts for judge in getattr(part, "judges", ())}
    unnamed = [judge for name, judge in found.items() if name not in told]
    notes: list[str] = []
    if asking:
        notes = [f"judge '{judge.name}' is no reward of its own: '{asking[0]}' may ask it" for judge in unnamed]
    elif unnamed:
        rewards = Weighted((*(rewards.parts if rewards else ()), *((judge, 1.0) for judge in unnamed)))
    for each in both:
        each.give(RewardContext(seed, judges, policy))
    return ParsedRewards(rewards, read, tuple(notes))


def verdicts_kept_in(run: Path) -> AbstractContextManager[None]:
    """Keep in a run what a resumed one must reuse: verdicts that a time limit brought about."""
    return TIME_LIMITS.kept_in(run)
