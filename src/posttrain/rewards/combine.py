"""Weighted combinations of named rewards."""

import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from posttrain.background import all_of
from posttrain.errors import UserError, unknown
from posttrain.rewards.check import unreadable_answers
from posttrain.rewards.context import RewardContext
from posttrain.rewards.custom import CustomReward, load_reward
from posttrain.rewards.elsewhere import Ask, elsewhere
from posttrain.rewards.outcomes import Earned, Solved
from posttrain.rewards.remote import is_remote, remote_reward
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
from posttrain.rewards.rules.language import LanguageConsistency
from posttrain.rewards.rules.length import LengthTarget, SoftOverlong
from posttrain.rewards.rules.repetition import Repetition
from posttrain.rewards.rules.steps import StepDiversity
from posttrain.rewards.rules.tags import Tags
from posttrain.rewards.rules.verification import VerificationPhrases
from posttrain.rewards.verifiers.choice import ChoiceVerifier
from posttrain.rewards.verifiers.exact import ExactVerifier
from posttrain.rewards.verifiers.gym import GymVerifier
from posttrain.rewards.verifiers.math import MathVerifier
from posttrain.rewards.verifiers.numbers import NumberVerifier
from posttrain.types import EpisodeGroup, Score, SeatScores, Span, Task

REWARDS: dict[str, Callable[[], Reward]] = {
    "environment": Earned,
    "solved": Solved,
    "math": MathVerifier,
    "numbers": NumberVerifier,
    "last_number": partial(NumberVerifier, last_number=True, name="last_number"),
    "choice": ChoiceVerifier,
    "exact": ExactVerifier,
    "gym": GymVerifier,
    "gym_bare": partial(GymVerifier, answer_in="outside_think", name="gym_bare"),
    "tags": Tags,
    "language": LanguageConsistency,
    "length": SoftOverlong,
    "length_target": LengthTarget,
    "repetition": Repetition,
    "steps": StepDiversity,
    "verification": VerificationPhrases,
}
"""Every reward that has a name. One line registers another."""

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

    def give(self, context: RewardContext) -> None:
        """Give the functions with a parameter `reward_context` its value, once it is known."""
        for function in self._functions:
            function.context[:] = [context]

    @property
    def movable(self) -> list[CustomReward]:
        """The functions that another process can load and call: of files, and asking nobody."""
        return [function for function in self._functions if function.source and not function.asks]

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
                return elsewhere(reward, ask(reward, self.timeout_s))
            return reward

        return replace(self, parts=tuple((changed(reward), weight) for reward, weight in self.parts))

    @property
    def _functions(self) -> list[CustomReward]:
        inner = (reward.reward if isinstance(reward, Named) else reward for reward, _ in self.parts)
        return [reward for reward in inner if isinstance(reward, CustomReward)]

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
    def certain(self) -> bool:
        """Whether the outcome is final: a function without bounds may still return a score above 1."""
        found = next((reward for reward, _ in self.parts if reward.name == self.outcome), None)
        return found is not None and (role_of(found) == "verifier" or bounds_of(found) is not None)

    async def score_parts(self, groups: Sequence[EpisodeGroup]) -> list[list[dict[str, SeatScores]]]:
        """The scores of every reward by its name, one dictionary per episode of each group.

        The rewards run concurrently.

        Raises:
            RewardError: any of them failed; see `score_all`.
        """
        columns = await all_of(
            score_all(reward, groups, timeout_s=math.inf if getattr(reward, "patient", False) else self.timeout_s)
            for reward, _ in self.parts
        )
        names = list(self.weights)
        return [
            [dict(zip(names, row, strict=True)) for row in zip(*of_group, strict=True)]
            for of_group in zip(*columns, strict=True)
        ]

    async def unreadable(self, tasks: Sequence[Task]) -> list[str]:
        """For each task, why the first part that cannot parse its reference answer cannot; "" if all can."""
        columns = [await unreadable_answers(reward, tasks) for reward, _ in self.parts]
        return [next((why for why in row if why), "") for row in zip(*columns, strict=True)]

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


def compares(reward: Reward) -> bool:
    """Whether a reward compares the episodes of a group, whatever its `min_group`."""
    if isinstance(reward, Named):
        return compares(reward.reward)
    return reward.mode == "group" if isinstance(reward, CustomReward) else not isinstance(reward, EpisodeReward)


def parse_rewards(
    spec: str | Sequence[str], *, timeout_s: float = DEFAULT_TIMEOUT_S, judges: Mapping[str, Reward] = NO_JUDGES
) -> Weighted:
    """Rewards from words such as `gym=1.0 tags=0.1 my/rewards.py:brief=0.2`.

    A word is a name of `REWARDS` or of `judges`, `path/to/file.py:function`, or an address (`rewards/remote.py`); its
    weight follows after `=` (after the function also after `:`). One that is left out is 1; of a monitor, 0. A path
    with spaces is put in quotes.

    Raises:
        UserError: an unknown name (the nearest one given), a weight that is not a number, a name given twice, or a
            function that `load_reward` refuses.

    Example:
        >>> parse_rewards("numbers tags=0.1").weights
        {'numbers': 1.0, 'tags': 0.1}
    """
    try:
        words = [word for part in ([spec] if isinstance(spec, str) else spec) for word in shlex.split(part)]
    except ValueError as error:
        raise UserError(
            f"cannot read the rewards {spec!r}: {error}; expected words such as gym=1.0 tags=0.1"
        ) from error
    return Weighted(tuple(_parse_word(word, judges) for word in words), timeout_s)


_CUSTOM = re.compile(r"(?P<path>.+\.py:[^:=]*)(?:[:=](?P<weight>.*))?", re.DOTALL)


def _parse_word(word: str, judges: Mapping[str, Reward]) -> tuple[Reward, float]:
    if is_remote(word):
        address, equals, weight = word.partition("=")
        return remote_reward(address), _weight(word, weight if equals else None)
    if custom := _CUSTOM.fullmatch(word):
        reward = load_reward(custom["path"])
        return reward, _weight(word, custom["weight"], 0.0 if role_of(reward) == "monitor" else 1.0)
    name, equals, weight = word.partition("=")
    if name.endswith(".py"):
        raise UserError(f"the reward '{word}' names a file; say which function: {name}:FUNCTION")
    if name in judges:
        return judges[name], _weight(word, weight if equals else None)
    if name not in REWARDS:
        raise unknown("reward", name, [*REWARDS, *judges, "path/to/file.py:function"])
    return REWARDS[name](), _weight(word, weight if equals else None)


def _weight(word: str, text: str | None, default: float = 1.0) -> float:
    if text is None:
        return default
    try:
        return float(text)
    except ValueError:
        raise UserError(
            f"'{word}' has the weight '{text}', which is not a number; expected for example gym=1.0"
        ) from None
