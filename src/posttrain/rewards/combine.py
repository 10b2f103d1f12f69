"""Weighted combinations of named rewards."""

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import cast

from posttrain.background import all_of
from posttrain.errors import UserError
from posttrain.rewards.binding import Part, is_pair, of_entry, of_object, of_word
from posttrain.rewards.check import unreadable_answers
from posttrain.rewards.context import RewardContext
from posttrain.rewards.custom import Ask, CustomReward
from posttrain.rewards.learned import Classifier
from posttrain.rewards.reward import (
    EpisodeReward,
    Named,
    Reward,
    bounds_of,
    columns_of,
    min_group_of,
    role_of,
    score_all,
)
from posttrain.types import EpisodeGroup, Score, SeatScores, Span, Task

RESERVED = ("mean", "std", "length_correlation")  # reward/mean and so on are metrics of the sum, next to reward/NAME

DEFAULT_TIMEOUT_S = 300.0
NO_JUDGES: Mapping[str, Reward] = MappingProxyType({})
_SHARE = (0.0, 1.0)  # assumed bounds of a reward that declares none


@dataclass(frozen=True)
class Weighted:
    """Rewards and their weights: total = sum of weight x score, over the rewards that apply to the episode.

    Args:
        parts: (reward, weight), with names that are all different. Weight 0 only logs.
        timeout_s: seconds that each reward may take for a batch.
    """

    parts: tuple[tuple[Reward, float], ...]
    timeout_s: float = DEFAULT_TIMEOUT_S

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
        """The part that indicates correctness: the first verifier; without one, the first reward with maximum 1.

        Empty without a verifier if a score of 1 does not indicate correctness: with a reward model or a judge, with a
        function that has returned a score outside [0, 1], and for penalties.
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
        return frozenset[str]().union(*(columns_of(reward) for reward, _ in self.parts))

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
        return any(compares(reward) for reward, _ in self.parts)

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
        """The same, with the functions that are `movable` called elsewhere.

        Args:
            ask: from a function and its time limit in seconds to what has groups scored by it.
        """
        movable = {id(function) for function in self.movable}

        def changed(reward: Reward) -> Reward:
            if isinstance(reward, Named):
                return replace(reward, reward=changed(reward.reward))
            if isinstance(reward, CustomReward) and id(reward) in movable:
                return replace(reward, ask=ask(reward, self.timeout_s))
            return reward

        return replace(self, parts=tuple((changed(reward), weight) for reward, weight in self.parts))

    @property
    def _functions(self) -> list[CustomReward]:
        return [reward for reward in self._inner if isinstance(reward, CustomReward)]

    @property
    def _inner(self) -> list[Reward]:
        return [reward.reward if isinstance(reward, Named) else reward for reward, _ in self.parts]

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

        Raises:
            RewardError: any of them failed; see `score_all`.
        """

        async def of_part(reward: Reward) -> list[list[SeatScores]]:
            asked = [_applies(reward, group.task) for group in groups]
            timeout_s = math.inf if getattr(reward, "patient", False) else self.timeout_s
            of_asked = [group for group, yes in zip(groups, asked, strict=True) if yes]
            found = iter(await score_all(reward, of_asked, timeout_s=timeout_s))
            left_out = Score.not_applicable("the row does not name it")
            return [
                next(found) if yes else [left_out] * len(group.episodes)
                for group, yes in zip(groups, asked, strict=True)
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
            for place, why in zip(
                places, await unreadable_answers(reward, [tasks[place] for place in places]), strict=True
            ):
                found[place] = why
        return found

    def total(self, parts: Mapping[str, Score]) -> float:
        """sum_i w_i s_i over the applicable scores of one episode, without renormalising the weights.

        s_i is the total of a score: its value plus its spans.

        NaN if no weighted reward applies: the episode is lost, which is not a total of 0.

        Raises:
            KeyError: a part is missing.
        """
        scores = self._optimised(parts)
        found = [weight * score.total for weight, score in scores if score.applicable]
        return sum(found) if found or not scores else math.nan

    def spans(self, parts: Mapping[str, Score]) -> list[Span]:
        """The spans of the applicable scores of one episode, each with its value times the weight of its reward.

        Those of weight 0 are left out. Raises `KeyError` as `total` does.
        """
        return [
            replace(span, value=weight * span.value)
            for weight, score in self._optimised(parts)
            if score.applicable
            for span in score.spans
        ]

    def _optimised(self, parts: Mapping[str, Score]) -> list[tuple[float, Score]]:
        return [(weight, parts[name]) for name, weight in self.weights.items() if weight]


def named_in(task: Task) -> tuple[str, ...]:
    """The rewards that a task has, where its row names some in a column `rewards`, a text or a list; empty: all.

    Example:
        >>> named_in(Task((), metadata={"rewards": "numbers, tags"})), named_in(Task((), metadata={"rewards": [0.5]}))
        (('numbers', 'tags'), ())
    """
    given = task.metadata.get("rewards")
    named = given.replace(",", " ").split() if isinstance(given, str) else given
    names = cast("Sequence[object]", named) if isinstance(named, list | tuple) else ()
    found = tuple(name for name in names if isinstance(name, str))
    return found if len(found) == len(names) else ()


def _applies(reward: Reward, task: Task) -> bool:
    """Whether a task names a reward, or names none at all; monitors apply to all."""
    names = named_in(task)
    return not names or reward.name in names or role_of(reward) == "monitor"


def compares(reward: Reward) -> bool:
    """Whether a reward compares the episodes of a group, whatever its `min_group`."""
    if isinstance(reward, Named):
        return compares(reward.reward)
    return reward.mode == "group" if isinstance(reward, CustomReward) else not isinstance(reward, EpisodeReward)


def parse_rewards(
    spec: object, *, timeout_s: float = DEFAULT_TIMEOUT_S, judges: Mapping[str, Reward] = NO_JUDGES
) -> Weighted:
    """Rewards from a text, a table or objects.

    A text is words such as `gym=1.0 tags=0.1 my/rewards.py:brief=0.2`: each a name of `REWARDS` or of `judges`,
    `path/to/file.py:function`, or an address (`rewards/remote.py`), then arguments of the verifier or function, as in
    `numbers?answer_in=boxed&name=strict`, and its weight after `=` (after a function also `:`). A weight that is left
    out is 1; of a monitor, 0. A value that has `=` in it needs a weight behind it. A path with spaces is put in quotes.

    Args:
        spec: a text; a function, an object with a name and a method `score`, or an object that can be called; a pair
            of such a thing and its weight; a sequence of all these; or a mapping, from a word to its weight or to a
            table of its weight and arguments, and from a name to an object or such a pair.
        timeout_s: seconds that each reward may take for a batch.
        judges: rewards by further names.

    Raises:
        UserError: an unknown name (the nearest one given), an argument or a weight that does not fit, a name given
            twice, or a function or object that is no reward.

    Example:
        >>> parse_rewards("numbers tags=0.1").weights
        {'numbers': 1.0, 'tags': 0.1}
        >>> def brief(completion, limit=20): return len(completion) <= limit
        >>> parse_rewards({"numbers": {"weight": 2, "answer_in": "boxed"}, "short": (brief, 0.5)}).weights
        {'numbers': 2.0, 'short': 0.5}
    """
    if isinstance(spec, Mapping):
        entries = cast("Mapping[str, object]", spec)
        return Weighted(tuple(of_entry(key, value, judges) for key, value in entries.items()), timeout_s)
    several = isinstance(spec, list | tuple) and not is_pair(cast(object, spec))
    parts: list[Part] = []
    for given in cast("Sequence[object]", spec if several else [spec]):
        if isinstance(given, str):
            parts += [of_word(word, judges) for word in _words(given)]
        else:
            parts.append(of_object(given, judges))
    return Weighted(tuple(parts), timeout_s)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(
            f"cannot read the rewards {text!r}: {error}; expected words such as gym=1.0 tags=0.1"
        ) from error
