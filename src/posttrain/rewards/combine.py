"""Weighted combinations of named rewards."""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from posttrain.background import all_of
from posttrain.errors import RewardError, UserError
from posttrain.rewards.custom import Ask, CustomReward
from posttrain.rewards.inputs import RewardContext
from posttrain.rewards.learned import Classifier
from posttrain.rewards.reward import EpisodeReward, Named, Reward, apart, bounds_of, min_group_of, role_of, score_all
from posttrain.types import Episode, EpisodeGroup, Message, Score, SeatScores, Span, Task

RESERVED = ("mean", "std", "length_correlation")  # reward/mean and so on are metrics of the sum, next to reward/NAME

DEFAULT_TIMEOUT_S = 300.0
_SHARE = (0.0, 1.0)  # assumed bounds of a reward that declares none
_LEFT_OUT = Score.not_applicable("the row does not name it")


@dataclass(frozen=True)
class Weighted:
    """Rewards and their weights: total = sum of weight x score, over the rewards that apply to the episode."""

    parts: tuple[tuple[Reward, float], ...]  # with names that are all different; weight 0 only logs
    timeout_s: float = DEFAULT_TIMEOUT_S  # seconds that each reward may take for a batch

    def __post_init__(self) -> None:
        names = [reward.name for reward, _ in self.parts]
        if not names:
            raise UserError("a combination of rewards needs at least one; for example gym=1.0 tags=0.1")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UserError(f"two rewards are called '{twice[0]}'; give one of them another name")
        if taken := [name for name in names if name in RESERVED]:
            raise UserError(f"a reward cannot be called '{taken[0]}', which names a measure of their sum; rename it")
        for reward, weight in self.parts:
            if not math.isfinite(weight):
                raise UserError(f"the weight of reward '{reward.name}' must be a finite number; got {weight}")
            if weight and role_of(reward) == "monitor":
                raise UserError(
                    f"reward '{reward.name}' is a monitor, which is logged and never optimised; leave out its "
                    f"weight of {weight:g}"
                )
        if not self.timeout_s > 0:
            raise UserError(f"the time limit of rewards must be above 0 seconds; got {self.timeout_s}")

    @property
    def weights(self) -> dict[str, float]:
        """The weights by name, in order."""
        return {reward.name: weight for reward, weight in self.parts}

    @property
    def outcome(self) -> str:
        """The part that says what is solved: the first verifier; without one, the first reward with maximum 1.

        Empty without a verifier where 1 does not mean solved: with a reward model, a judge, or a function that has
        returned a score outside [0, 1], and for penalties.
        """
        verifiers = [reward.name for reward, _ in self.parts if role_of(reward) == "verifier"]
        judges = {reward.name: bounds_of(reward) or _SHARE for reward, _ in self.parts if role_of(reward) != "monitor"}
        asked = any(role_of(reward) == "judge" for reward, _ in self.parts)
        if verifiers or asked or any(math.isinf(most) for _, most in judges.values()):
            return verifiers[0] if verifiers else ""
        return next((name for name, (_, most) in judges.items() if most == 1), "")

    @property
    def columns(self) -> frozenset[str]:
        """The columns that the rewards name."""
        return frozenset[str]().union(*(getattr(reward, "columns", ()) for reward, _ in self.parts))

    @property
    def min_group(self) -> int:
        """Minimum group size of the rewards."""
        return max(min_group_of(reward) for reward, _ in self.parts)

    @property
    def most_compared(self) -> str:
        """The reward that needs the largest group."""
        return max((reward for reward, _ in self.parts), key=min_group_of).name

    @property
    def compares(self) -> bool:
        """Whether the score of an episode may depend on the others of its group."""
        return any(
            reward.mode == "group"
            if isinstance(reward, CustomReward)
            else getattr(reward, "compares", not isinstance(reward, EpisodeReward) or min_group_of(reward) > 1)
            for reward in self._inner
        )

    @property
    def asks(self) -> list[str]:
        """The functions that may call judges."""
        return [function.name for function in self._functions if function.asks]

    @property
    def asks_policy(self) -> list[str]:
        """The functions that ask the policy itself, as far as they say so."""
        return [function.name for function in self._functions if getattr(function.function, "asks_policy", False)]

    def give(self, context: RewardContext) -> None:
        """Give the functions with a parameter `reward_context` its value, once it is known."""
        for function in self._functions:
            function.context[:] = [context]

    @property
    def classifiers(self) -> list[Classifier]:
        """The classifiers, which ask a model that has to be loaded."""
        return [reward for reward in self._inner if isinstance(reward, Classifier)]

    @property
    def movable(self) -> list[CustomReward]:
        """The functions and objects that another process can call: the user's, and asking nobody."""
        return [each for each in self._functions if (each.source or each.given) and not each.asks]

    def moved(self, ask: Callable[[CustomReward, float], Ask]) -> "Weighted":
        """The same, with the `movable` functions called by what `ask` has of each and of its seconds."""
        movable = {id(function) for function in self.movable}

        def changed(reward: Reward) -> Reward:
            if isinstance(reward, Named):
                return replace(reward, reward=changed(reward.reward))
            if isinstance(reward, CustomReward) and id(reward) in movable:
                return replace(reward, ask=ask(reward, self.timeout_s))
            return reward

        return replace(self, parts=tuple((changed(reward), weight) for reward, weight in self.parts))

    @property
    def _inner(self) -> list[Reward]:
        return [reward.reward if isinstance(reward, Named) else reward for reward, _ in self.parts]

    @property
    def _functions(self) -> list[CustomReward]:
        return [reward for reward in self._inner if isinstance(reward, CustomReward)]

    @property
    def unbounded(self) -> dict[str, float]:
        """The functions that have returned a score outside [0, 1], and the first such score; saved in checkpoints."""
        functions = [reward for reward, _ in self.parts if isinstance(reward, CustomReward)]
        return {function.name: function.beyond[0] for function in functions if function.beyond}

    def restore(self, unbounded: Mapping[str, float]) -> None:
        """Restore `unbounded` from a checkpoint."""
        for reward, _ in self.parts:
            if isinstance(reward, CustomReward) and reward.name in unbounded:
                reward.beyond[:] = [unbounded[reward.name]]

    @property
    def verified(self) -> bool:
        """Whether a verifier says what is solved."""
        return any(role_of(reward) == "verifier" for reward, _ in self.parts)

    @property
    def certain(self) -> bool:
        """Whether the outcome is final: a function without bounds may still return a score above 1."""
        found = next((reward for reward, _ in self.parts if reward.name == self.outcome), None)
        return found is not None and (self.verified or bounds_of(found) is not None)

    async def score_parts(self, groups: Sequence[EpisodeGroup]) -> list[list[dict[str, SeatScores]]]:
        """The scores of every reward by its name, one dictionary per episode of each group.

        The rewards run concurrently. One that a task does not name (`named_in`) is not asked, and does not apply.
        Errors are those of `score_all`.
        """

        async def of_part(reward: Reward) -> list[list[SeatScores]]:
            timeout_s = math.inf if getattr(reward, "patient", False) else self.timeout_s
            asked = [group for group in groups if _applies(reward, group.task)]
            found = iter(await score_all(reward, asked, timeout_s=timeout_s))
            return [
                next(found) if _applies(reward, group.task) else [_LEFT_OUT] * len(group.episodes) for group in groups
            ]

        columns = await all_of(of_part(reward) for reward, _ in self.parts)
        names = list(self.weights)
        return [
            [dict(zip(names, row, strict=True)) for row in zip(*of_group, strict=True)]
            for of_group in zip(*columns, strict=True)
        ]

    async def unreadable(self, tasks: Sequence[Task]) -> list[str]:
        """For each task, why the first part that cannot parse its reference answer cannot; "" if all can."""
        found = [""] * len(tasks)
        for reward, _ in self.parts:
            places = [place for place, task in enumerate(tasks) if not found[place] and _applies(reward, task)]
            why = await unreadable_answers(reward, [tasks[place] for place in places])
            for place, reason in zip(places, why, strict=True):
                found[place] = reason
        return found

    def total(self, parts: Mapping[str, Score]) -> float:
        """sum_i w_i s_i over the applicable scores of one episode, without renormalising the weights.

        s_i is the total of a score: its value plus its spans. NaN if no weighted reward applies: the episode is lost,
        which is not a total of 0.
        """
        scores = self._optimised(parts)
        found = [weight * score.total for weight, score in scores if score.applicable]
        return sum(found) if found or not scores else math.nan

    def spans(self, parts: Mapping[str, Score]) -> list[Span]:
        """The spans of the applicable scores of one episode, each with its value times the weight of its reward."""
        return [
            replace(span, value=weight * span.value)
            for weight, score in self._optimised(parts)
            if score.applicable
            for span in score.spans
        ]

    def _optimised(self, parts: Mapping[str, Score]) -> list[tuple[float, Score]]:
        return [(weight, parts[name]) for name, weight in self.weights.items() if weight]


def named_in(task: Task) -> tuple[str, ...]:
    """The rewards that a task's row names in a column `rewards`, a text or a list of names; empty: all."""
    given = task.metadata.get("rewards")
    named = given.replace(",", " ").split() if isinstance(given, str) else given
    names = cast("Sequence[object]", named) if isinstance(named, list | tuple) else ()
    found = tuple(name for name in names if isinstance(name, str))
    return found if len(found) == len(names) else ()


def _applies(reward: Reward, task: Task) -> bool:
    """Whether a task names a reward, or names none at all; monitors apply to all."""
    names = named_in(task)
    return not names or reward.name in names or role_of(reward) == "monitor"


async def unreadable_answers(reward: Reward, tasks: Sequence[Task]) -> list[str]:
    """For each task, why `reward` cannot parse its reference answer; "" if it can.

    A reward for which this is slow has a method `unreadable(tasks)`. Any other verifier scores an empty completion: it
    parses the reference answer first, and raises if it cannot. What is no verifier needs no answer.
    """
    unreadable: Callable[[Sequence[Task]], Awaitable[list[str]]] | None = getattr(reward, "unreadable", None)
    if unreadable is not None:
        return await unreadable(tasks)
    if role_of(reward) != "verifier" or min_group_of(reward) > 1:
        return [""] * len(tasks)
    silent = [Episode(task, (*task.prompt, Message("assistant", ""))) for task in tasks]
    try:
        await reward.score(apart(silent))
    except RewardError as error:
        if len(tasks) == 1:
            return [str(error)]
        return [why for task in tasks for why in await unreadable_answers(reward, [task])]
    return [""] * len(tasks)
