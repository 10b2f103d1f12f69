"""The adapter of a call as a reward: of a function, an object, an HTTP address (`remote.py`), a judge (`judges/`).

A function's parameter names select its inputs, and the name for the completion a single one or a batch; docs/rewards.md
(Custom rewards, TRL's reward functions) says what each is, and what may be returned:

    def reward(prompt, completion, answer, **metadata): ...    one at a time; `task` and `episode` are there, too
    def reward(prompts, completions, answers, **columns): ...  a batch: every argument a list, as in TRL
    def reward(completions, answer, level): ...                a column's list may have the column's own name
    def reward(completion_ids, **kwargs): ...                  token ids after the prompt, the stop token included
    def reward(group, completions): ...                        the completions of one task, to compare them
    async def reward(completion, reward_context): ...          the run's judges and seed, with any of these

Any other parameter is a column of the data; `**columns` gets those that every task of the batch has. In place of each
score there may be a mapping from seats to scores.

An object with a method `__call__` of such parameters may have a state. It has `role`, `bounds` and `min_group` as
attributes (a function by `reward_function`), and may have

    patient = True             it computes as long as it takes, and has no time limit
    at_once = 16               calls of its `async` method for one completion that run at the same time; else all
    async unreadable(tasks)    for each task, why it cannot be scored; "" if it can
"""

import inspect
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from itertools import chain
from types import MappingProxyType
from typing import Any, TypeVar, cast

from posttrain.background import all_of, few_of, in_thread, without_exit
from posttrain.errors import RewardError, UserError, described, unknown
from posttrain.rewards.inputs import CONTEXT, LOGS, Mode, RewardContext, inputs_of, missing_columns
from posttrain.rewards.reward import ROLES, bounds_of, min_group_of, role_of, scoring
from posttrain.types import Episode, EpisodeGroup, Score, SeatScores, Task

_TRAINER = ("trainer_state", "environments")  # what TRL's trainers pass, and only they have
_SIGNATURES = (
    "(completion, task), (prompt, completion, answer, **metadata), (prompts, completions, answers, **columns) or "
    "(group, completions)"
)
_UNBOUNDED = (-math.inf, math.inf)
NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})

F = TypeVar("F", bound=Callable[..., Any])
Q = TypeVar("Q")
T = TypeVar("T")


def reward_function(
    *, role: str = "rule", bounds: tuple[float, float] | None = None, min_group: int = 1
) -> Callable[[F], F]:
    """Declare role, bounds and group size of a reward function; returns the function unchanged.

    Args:
        role: `verifier`, a score of 1 means that the task is solved; `rule`; `learned`; `judge`; `monitor`, it is
            logged and never optimised.
        bounds: the lowest and the highest value; another one is an error then. Unless given, a function that stays
            within 0 and 1 is taken for one whose 1 is the best.
        min_group: how many completions of a task it needs, where it compares them.

    Raises:
        UserError: an unknown role, bounds that are none, or a group below 1.

    Example:
        >>> @reward_function(min_group=2)
        ... def longest(group, completions):
        ...     return [len(c) == max(map(len, completions)) for c in completions]
        >>> from_function(longest).min_group
        2
    """
    _refuse_wrong(role, bounds, min_group)

    def mark(function: F) -> F:
        for key, value in (("role", role), ("bounds", bounds), ("min_group", min_group)):
            setattr(function, key, value)
        return function

    return mark


def _refuse_wrong(role: str, bounds: tuple[float, float] | None, min_group: int) -> None:
    if role not in ROLES:
        raise unknown("role of a reward", role, ROLES)
    if bounds is not None and not bounds[0] < bounds[1]:
        raise UserError(f"the bounds of a reward are its lowest and its highest value; got {bounds}")
    if min_group < 1:
        raise UserError(f"the smallest group of a reward is 1 or more; got {min_group}")


@dataclass(frozen=True)
class Source:
    """Where another process finds a function."""

    path: str  # absolute, `path/to/file.py:function`; of an object its name
    digest: str = ""  # of the file
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of the function, as they were given
    pickled: bytes = b""  # the object


Ask = Callable[[Sequence[EpisodeGroup]], list[list[SeatScores]]]
"""Has groups scored by another process, and blocks until they are; threads may call it at the same time."""


@dataclass(frozen=True)
class CustomReward:
    """A call as a `Reward`, made by `from_function`; with `ask` another process makes the calls."""

    name: str
    function: Callable[..., Any]
    mode: Mode
    parameters: tuple[str, ...]  # that it must be given
    optional: tuple[str, ...]  # that it is given if the tasks have them
    rest: bool  # whether it takes **metadata
    role: str = "rule"
    declared: tuple[float, float] | None = None  # bounds
    min_group: int = 1
    source: Source | None = None  # None: not of a file
    given: bool = False  # whether it is an object of the user's, which is sent to another process pickled
    ask: Ask | None = None
    beyond: list[float] = field(default_factory=list[float], compare=False, repr=False)  # its first score not in [0, 1]
    alone: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)  # see `_call`
    context: list[RewardContext] = field(default_factory=list[RewardContext], compare=False, repr=False)  # once known

    @property
    def bounds(self) -> tuple[float, float] | None:
        """As declared; infinite once a function without declared bounds has returned a score outside [0, 1]."""
        return self.declared or (_UNBOUNDED if self.beyond else None)

    @property
    def columns(self) -> frozenset[str]:
        """Its parameters."""
        return frozenset((*self.parameters, *self.optional, *(("**",) if self.rest else ())))

    @property
    def asks(self) -> bool:
        """Whether it takes `reward_context`, and so may call judges."""
        return CONTEXT in (*self.parameters, *self.optional)

    @property
    def patient(self) -> bool:
        """Whether it has no time limit here: judges, and the process that makes the calls, have their own."""
        return self.asks or self.ask is not None or getattr(self.function, "patient", False)

    def sent(self) -> Source:
        """Where another process finds the function; raises `UserError` for an object that cannot be pickled."""
        # pickles what is defined in no module, too, such as functions of a notebook
        import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

        try:
            pickled: bytes = cast("Any", cloudpickle).dumps(self.source.arguments if self.source else self.function)
        except Exception as error:  # whatever an object says of itself
            raise UserError(
                f"reward '{self.name}' cannot be sent to scorers ({described(error)}); write it as a function in a "
                "file, FILE.py:function, or leave out `scorers`"
            ) from error
        return self.source or Source(self.name, pickled=pickled)

    async def unreadable(self, tasks: Sequence[Task]) -> list[str]:
        """For each task, why it cannot be scored: its row lacks a column, or the object says why."""
        tell = getattr(self.function, "unreadable", None)
        missing = missing_columns(self.name, self.mode, self.parameters, tasks)
        return [one or other for one, other in zip(missing, await tell(tasks) if tell else missing, strict=True)]

    async def score(self, groups: Sequence[EpisodeGroup]) -> list[list[SeatScores]]:
        """For each group one score per episode, or one for each seat that the function names."""
        if self.ask is not None:
            found = await in_thread(self.ask, groups)
            for scores in chain.from_iterable(found):
                for score in [scores] if isinstance(scores, Score) else scores.values():
                    self._note(score)
            return found
        if self.mode == "group":
            return await self._each(self._compared, groups)
        episodes = [episode for group in groups for episode in group.episodes]
        if self.mode == "single":
            scores = iter(await self._each(self._score_one, episodes))
        else:
            scores = iter(await self._score_batch(episodes) if episodes else [])
        return [[next(scores) for _ in group.episodes] for group in groups]

    async def _each(self, score: Callable[[Q], Coroutine[Any, Any, T]], items: Sequence[Q]) -> list[T]:
        """The scores of items: one after another, or of an `async` function at the same time."""
        if not _is_async(self.function):
            return [await score(item) for item in items]
        if most := getattr(self.function, "at_once", None):
            return await few_of(most, score, items)
        return await all_of(score(item) for item in items)

    async def _compared(self, group: EpisodeGroup) -> list[SeatScores]:
        with scoring(self.name, group.episodes[0]):
            return await self._score_batch(group.episodes, group=group)

    async def _score_batch(self, episodes: Sequence[Episode], **group: EpisodeGroup) -> list[SeatScores]:
        try:
            returned = await self._call({**self._inputs(episodes), **group})
        except TypeError as error:
            if "string indices" in str(error) and not all(episode.task.conversational for episode in episodes):
                raise RewardError(
                    f"reward '{self.name}' raised TypeError: {error}; it reads completions as lists of messages, and "
                    "they are text where the data's prompts are text: write each prompt as "
                    '[{"role": "user", "content": ...}]'
                ) from error
            raise
        return self._scores(episodes, returned)

    async def _score_one(self, episode: Episode) -> SeatScores:
        with scoring(self.name, episode):
            columns = self._inputs([episode])
            returned = await self._call({key: values[0] for key, values in columns.items()})
            return self._seat_scores(episode, returned)

    async def _call(self, arguments: Mapping[str, Any]) -> object:
        arguments = {**arguments, **{name: _log_nothing for name in LOGS if name in self.parameters}}
        if self.asks:
            arguments[CONTEXT] = self.context[0] if self.context else RewardContext()
        if _is_async(self.function):
            return await without_exit(self.function(**arguments))

        @wraps(self.function)
        def one_at_a_time(**given: Any) -> object:
            with self.alone:  # groups may be scored at the same time, and a function may have a state
                return self.function(**given)

        returned = await in_thread(one_at_a_time, **arguments)
        return await without_exit(cast("Awaitable[object]", returned)) if inspect.isawaitable(returned) else returned

    def _inputs(self, episodes: Sequence[Episode]) -> dict[str, list[Any]]:
        found = inputs_of(self.name, self.mode, self.parameters, self.optional, self.rest, episodes)
        return {key: values for key, values in found.items() if key not in _bound(self.function)}

    def _scores(self, episodes: Sequence[Episode], returned: object) -> list[SeatScores]:
        if not hasattr(returned, "__iter__"):
            raise RewardError(
                f"reward '{self.name}' takes a batch and must return a list of {len(episodes)} numbers; got "
                f"{type(returned).__name__}"
            )
        values = list(cast("Iterable[object]", returned))
        if len(values) != len(episodes):
            raise RewardError(
                f"reward '{self.name}' returned a list of {len(values)} for {len(episodes)} completions, not one each "
                f"(first task {episodes[0].task.id!r})"
            )
        return [
            self._seat_scores(episode, Score.not_applicable() if value is None else value)
            for episode, value in zip(episodes, values, strict=True)
        ]

    def _seat_scores(self, episode: Episode, value: object) -> SeatScores:
        if not isinstance(value, Mapping):
            return self._score(episode, value)
        by_seat = cast(Mapping[str, object], value).items()
        return {seat: self._score(episode, Score.not_applicable() if one is None else one) for seat, one in by_seat}

    def _score(self, episode: Episode, value: object) -> Score:
        score = value if isinstance(value, Score) else None
        if score is None and hasattr(value, "__float__"):  # numbers, and what numpy and torch have for them
            with suppress(OverflowError):  # an integer above all floats
                score = Score(float(cast("Any", value)))
        if score is None or (score.applicable and not math.isfinite(score.total)):
            hint = "; where it does not apply, return Score.not_applicable()" if value is None else ""
            raise RewardError(
                f"reward '{self.name}' returned {repr(value)[:200]} on task {episode.task.id!r}; expected a finite "
                f"number, a bool or a Score{hint}"
            )
        low, high = self.declared or _UNBOUNDED
        if score.applicable and not low <= score.total <= high:
            raise RewardError(
                f"reward '{self.name}' returned {score.total:g} on task {episode.task.id!r}; it declares bounds of "
                f"{low:g} and {high:g}"
            )
        self._note(score)
        return score

    def _note(self, score: Score) -> None:
        """Keep the first score outside [0, 1], which no bounds announced."""
        if score.applicable and not (self.beyond or self.declared or 0 <= score.total <= 1):
            self.beyond.append(score.total)


def from_function(function: Callable[..., Any], name: str = "") -> CustomReward:
    """A function or an object as a reward; raises `UserError` for parameters that are not understood.

    What a `functools.partial` has is given: the tasks' columns do not replace it.
    """
    given: Any = function
    told: Any = given.func if isinstance(given, partial) else given
    name = name or getattr(told, "__name__", "") or getattr(told, "name", type(told).__name__)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise UserError(f"reward '{name}' has no readable signature; expected {_SIGNATURES}") from error
    named = [
        p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in _bound(function)
    ]
    names = {p.name for p in named}
    rest = any(p.kind == p.VAR_KEYWORD for p in parameters)
    nameless = [str(p) for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)]
    single = names & {"completion", "episode"}
    batch = names & {"completions", "episodes", "group"}
    if not single:
        batch |= names & {"completion_ids"}
    if wanted := [p.name for p in named if p.name in _TRAINER and p.default is p.empty]:
        raise UserError(
            f"reward '{name}' needs '{wanted[0]}', which only TRL's trainers have; give it a default of None"
        )
    if nameless or bool(single) == bool(batch):
        shown = f"({', '.join(str(p) for p in parameters)})"
        raise UserError(f"cannot understand the parameters {shown} of reward '{name}'; expected {_SIGNATURES}")
    role, bounds, min_group = role_of(told), bounds_of(told), min_group_of(told)
    _refuse_wrong(role, bounds, min_group)
    if min_group > 1 and "group" not in names:
        raise UserError(f"reward '{name}' declares min_group, but takes no 'group'; expected (group, completions)")
    return CustomReward(
        name=name,
        function=function,
        mode="group" if "group" in names else "single" if single else "batch",
        parameters=tuple(p.name for p in named if p.default is p.empty),
        optional=tuple(p.name for p in named if p.default is not p.empty),
        rest=rest,
        role=role,
        declared=bounds,
        min_group=min_group,
    )


def _log_nothing(name: str, value: object) -> None:
    """No-op for TRL's `log_extra` and `log_metric`."""


def _bound(function: Callable[..., Any]) -> Mapping[str, Any]:
    return function.keywords if isinstance(function, partial) else NO_ARGUMENTS


def _is_async(function: Callable[..., Any]) -> bool:
    """Whether calls of a function, or of an object, are awaited."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
