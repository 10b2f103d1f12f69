"""Python functions as rewards: `path/to/file.py:function`.

Its parameter names select its inputs; the name for the completion selects a single one or a batch:

one completion at a time

    def reward(completion, task): ...                          task: posttrain.types.Task
    def reward(prompt, completion, answer, **metadata): ...    metadata: the task's, by key

a batch of completions, as TRL's reward functions do

    def reward(prompts, completions, answers, **columns): ...  every argument a list, columns the data's other columns
    def reward(completions, answer, level): ...                a column's list may have the column's own name
    def reward(completion_ids, **kwargs): ...                  token ids after the prompt, the stop token included

the completions of one task, to compare them with each other; other arguments as in a batch

    def reward(group, completions): ...                        group: posttrain.types.EpisodeGroup

the run's judges and seed, in addition to any of these

    async def reward(completion, reward_context): ...          reward_context: posttrain.rewards.RewardContext

In a batch `prompts` and `completions` are what TRL's trainers pass: text where the data's prompt is text, and lists of
{role, content} where it is such a list. One at a time they are text: `prompt` is the last user message, `completion`
the last thing that the assistant said. A function that needs the conversation takes `episode` (or `episodes`).

Parameters may be left out, in any order. One that is none of these words is a column of the data; `**columns` gets
those that every task of the batch has. The function returns a number, a bool or a Score, or a list of them for a batch
or a group, in which None says that the reward does not apply to a completion. In place of each there may be a mapping
from seats to scores, where an environment has several. It may be `async`. A function that is not
runs in a thread, so that a hang hits the time limit.

What else is known of a function is declared above it:

    @reward_function(role="verifier", bounds=(0, 1), min_group=2)
    def majority(group, completions): ...

TRL's `log_extra` and `log_metric` may be called and log nothing. Its `trainer_state` and `environments` do not exist.
"""

import hashlib
import inspect
import json
import math
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast

from posttrain import user_code
from posttrain.background import all_of, in_thread, without_exit
from posttrain.errors import RewardError, UserError, unknown
from posttrain.rewards.context import RewardContext
from posttrain.rewards.reward import ROLES, scoring
from posttrain.types import Episode, EpisodeGroup, Message, Score, SeatScores, Task

_PLURALS = {
    "completion": "completions",
    "prompt": "prompts",
    "answer": "answers",
    "task": "tasks",
    "episode": "episodes",
}
_TRAINER = ("trainer_state", "environments")  # what TRL's trainers pass, and only they have
_SIGNATURES = (
    "(completion, task), (prompt, completion, answer, **metadata), (prompts, completions, answers, **columns) or "
    "(group, completions)"
)
_UNBOUNDED = (-math.inf, math.inf)
_CONTEXT = "reward_context"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Declared:
    """A function's declaration, apart from its parameters; see `Reward`."""

    role: str = "rule"
    bounds: tuple[float, float] | None = None
    min_group: int = 1

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise unknown("role of a reward", self.role, ROLES)
        if self.bounds is not None and not self.bounds[0] < self.bounds[1]:
            raise UserError(f"the bounds of a reward are its lowest and its highest value; got {self.bounds}")
        if self.min_group < 1:
            raise UserError(f"the smallest group of a reward is 1 or more; got {self.min_group}")


_DECLARED = "__posttrain_reward__"


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
    declared = Declared(role, bounds, min_group)

    def mark(function: F) -> F:
        setattr(function, _DECLARED, declared)
        return function

    return mark


class Source(NamedTuple):
    """Where a function was loaded from.

    Attributes:
        path: absolute, `path/to/file.py:function`.
        digest: of the file.
    """

    path: str
    digest: str


@dataclass(frozen=True)
class CustomReward:
    """A user's function as a `Reward`; made by `load_reward` or `from_function`."""

    name: str
    function: Callable[..., Any]
    mode: Literal["single", "batch", "group"]
    parameters: tuple[str, ...]  # that it must be given
    optional: tuple[str, ...]  # that it is given if the tasks have them
    rest: bool  # whether it takes **metadata
    declared: Declared = Declared()
    source: Source | None = None  # None: not of a file
    beyond: list[float] = field(default_factory=list[float], compare=False, repr=False)  # its first score not in [0, 1]
    alone: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)  # see `_call`
    context: list[RewardContext] = field(default_factory=list[RewardContext], compare=False, repr=False)  # once known

    @property
    def role(self) -> str:
        """As declared."""
        return self.declared.role

    @property
    def bounds(self) -> tuple[float, float] | None:
        """As declared; infinite once a function without declared bounds has returned a score outside [0, 1]."""
        return self.declared.bounds or (_UNBOUNDED if self.beyond else None)

    @property
    def columns(self) -> frozenset[str]:
        """Its parameters."""
        return frozenset((*self.parameters, *self.optional, *(("**",) if self.rest else ())))

    @property
    def min_group(self) -> int:
        """As declared."""
        return self.declared.min_group

    @property
    def asks(self) -> bool:
        """Whether it takes `reward_context`, and so may call judges."""
        return _CONTEXT in (*self.parameters, *self.optional)

    @property
    def patient(self) -> bool:
        """Whether it has no time limit: requests to judges have their own."""
        return self.asks

    async def unreadable(self, tasks: Sequence[Task]) -> list[str]:
        """Empty: which answers a function can parse is not known in advance."""
        return [""] * len(tasks)

    async def score(self, groups: Sequence[EpisodeGroup]) -> list[list[SeatScores]]:
        """For each group one score per episode, or one for each seat that the function names.

        Raises:
            RewardError: the function raised, or returned something that is not a finite number within its bounds; or it
                wants a key that a task's metadata does not have.
        """
        if self.mode == "group":
            if inspect.iscoroutinefunction(self.function):
                return await all_of(self._compared(group) for group in groups)
            return [await self._compared(group) for group in groups]
        episodes = [episode for group in groups for episode in group.episodes]
        scores = iter(await self._score_episodes(episodes) if episodes else [])
        return [[next(scores) for _ in group.episodes] for group in groups]

    async def _compared(self, group: EpisodeGroup) -> list[SeatScores]:
        with scoring(self.name, group.episodes[0]):
            columns = self._columns(group.episodes)
            return self._scores(group.episodes, await self._call({**columns, "group": group}))

    async def _score_episodes(self, episodes: Sequence[Episode]) -> list[SeatScores]:
        if self.mode == "batch":
            try:
                returned = await self._call(self._columns(episodes))
            except TypeError as error:
                if "string indices" in str(error) and not all(episode.task.conversational for episode in episodes):
                    raise RewardError(_needs_messages(self.name, error)) from error
                raise
            return self._scores(episodes, returned)
        if inspect.iscoroutinefunction(self.function):
            return await all_of(self._score_one(episode) for episode in episodes)
        return [await self._score_one(episode) for episode in episodes]

    async def _score_one(self, episode: Episode) -> SeatScores:
        with scoring(self.name, episode):
            columns = self._columns([episode])
            returned = await self._call({key: values[0] for key, values in columns.items()})
            return self._seat_scores(episode, returned)

    async def _call(self, arguments: Mapping[str, Any]) -> object:
        arguments = {**arguments, **{name: _log_nothing for name in _LOGS if name in self.parameters}}
        if self.asks:
            arguments[_CONTEXT] = self.context[0] if self.context else RewardContext()
        if inspect.iscoroutinefunction(self.function):
            return await without_exit(self.function(**arguments))

        @wraps(self.function)
        def one_at_a_time(**given: Any) -> object:
            with self.alone:  # groups may be scored at the same time, and a function may have a state
                return self.function(**given)

        returned = await in_thread(one_at_a_time, **arguments)
        return await without_exit(cast("Awaitable[object]", returned)) if inspect.isawaitable(returned) else returned

    def _columns(self, episodes: Sequence[Episode]) -> dict[str, list[Any]]:
        """The function's arguments, each as a list over `episodes`."""
        batch = self.mode != "single"
        ours: dict[str, list[Any]] = {
            "completion": [_said(episode) if batch else episode.completion for episode in episodes],
            "prompt": [_asked(episode) if batch else _question(episode) for episode in episodes],
            "answer": [episode.task.answer for episode in episodes],
            "task": [episode.task for episode in episodes],
            "episode": list(episodes),
            "gold": [episode.task.gold for episode in episodes],
            "id": [episode.task.id for episode in episodes],
        }
        if batch:
            ours |= {plural: ours[singular] for singular, plural in _PLURALS.items()}
        if all(episode.completion_ids is not None for episode in episodes):
            ours["completion_ids"] = [list(episode.completion_ids or ()) for episode in episodes]
        elif "completion_ids" in self.parameters:
            raise UserError(
                f"reward '{self.name}' needs completion_ids, the tokens of completions, which completions that are "
                "read from a file do not have; use it in rl, evaluate or best-of-n"
            )
        shared = {key for key in episodes[0].task.metadata if all(key in e.task.metadata for e in episodes)}
        for name in self.parameters:
            for episode in episodes:
                if name not in ours and name not in episode.task.metadata and name not in (*_LOGS, _CONTEXT, "group"):
                    raise RewardError(_no_such_key(self.name, name, episode))
        wanted = {*self.parameters, *self.optional, *(shared if self.rest else ())}
        metadata = {key: [episode.task.metadata[key] for episode in episodes] for key in wanted & shared}
        given = {
            key: values for key, values in ours.items() if key in wanted or (self.rest and key in _usual(self.mode))
        }
        return metadata | given

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
            Score.not_applicable() if value is None else self._seat_scores(episode, value)
            for episode, value in zip(episodes, values, strict=True)
        ]

    def _seat_scores(self, episode: Episode, value: object) -> SeatScores:
        if not isinstance(value, Mapping):
            return self._score(episode, value)
        by_seat = cast(Mapping[str, object], value)
        return {
            seat: Score.not_applicable() if one is None else self._score(episode, one) for seat, one in by_seat.items()
        }

    def _score(self, episode: Episode, value: object) -> Score:
        score = value if isinstance(value, Score) else None
        if score is None and hasattr(value, "__float__"):  # numbers, and what numpy and torch have for them
            score = Score(float(cast("Any", value)))
        if score is None or (score.applicable and not math.isfinite(score.total)):
            hint = "; where it does not apply, return Score.not_applicable()" if value is None else ""
            raise RewardError(
                f"reward '{self.name}' returned {value!r} on task {episode.task.id!r}; expected a finite number, a "
                f"bool or a Score{hint}"
            )
        bounds = self.declared.bounds
        if score.applicable and bounds and not bounds[0] <= score.total <= bounds[1]:
            raise RewardError(
                f"reward '{self.name}' returned {score.total:g} on task {episode.task.id!r}; it declares bounds of "
                f"{bounds[0]:g} and {bounds[1]:g}"
            )
        self._note(score)
        return score

    def _note(self, score: Score) -> None:
        """Keep the first score outside [0, 1]."""
        if score.applicable and not self.beyond and not (0 <= score.total <= 1):
            self.beyond.append(score.total)


def load_reward(path: str) -> CustomReward:
    """The reward `path/to/file.py:function`.

    Raises:
        UserError: the file or the function does not exist (nearest name given), the file cannot be imported, or the
            function's parameters are not understood.
    """
    file, _, name = path.rpartition(":")
    function = user_code.load("reward", path, "function")
    if not callable(function):
        raise UserError(f"'{name}' in '{file}' is a {type(function).__name__}, not a function")
    where = Path(file).expanduser().absolute()
    return replace(from_function(function, name), source=Source(f"{where}:{name}", _digest(where)))


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def from_function(function: Callable[..., Any], name: str = "") -> CustomReward:
    """A Python function as a reward.

    Raises:
        UserError: its parameters are not understood.

    Example:
        >>> def brief(completion, limit=20): return len(completion) <= limit
        >>> from_function(brief).mode
        'single'
    """
    name = name or getattr(function, "__name__", type(function).__name__)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise UserError(f"reward '{name}' has no readable signature; expected {_SIGNATURES}") from error
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
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
        given = f"({', '.join(str(p) for p in parameters)})"
        raise UserError(f"cannot understand the parameters {given} of reward '{name}'; expected {_SIGNATURES}")
    declared: Declared = getattr(function, _DECLARED, Declared())
    if declared.min_group > 1 and "group" not in names:
        raise UserError(f"reward '{name}' declares min_group, but takes no 'group'; expected (group, completions)")
    return CustomReward(
        name=name,
        function=function,
        mode="group" if "group" in names else "single" if single else "batch",
        parameters=tuple(p.name for p in named if p.default is p.empty),
        optional=tuple(p.name for p in named if p.default is not p.empty),
        rest=rest,
        declared=declared,
    )


def _usual(mode: str) -> set[str]:
    """Additional values of `**metadata`: TRL's functions find prompts there that they do not name."""
    if mode == "single":
        return {"prompt", "completion", "answer"}
    return {"prompts", "completions", "answers", "answer", "completion_ids"}


def _said(episode: Episode) -> Any:
    """The completion as TRL passes it: in the format of the data's prompt."""
    if not episode.task.conversational:
        return episode.completion
    return _as_dicts(episode.messages[len(episode.task.prompt) :])


def _asked(episode: Episode) -> Any:
    return _as_dicts(episode.task.prompt) if episode.task.conversational else _question(episode)


def _as_dicts(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as TRL has them, with the arguments of calls as objects where they are JSON."""
    found: list[dict[str, Any]] = []
    for message in messages:
        calls = [
            {"type": "function", "function": {"name": call.name, "arguments": _object(call.arguments)}}
            for call in message.tool_calls
        ]
        own = {"tool_calls": calls, "name": message.name}
        found.append({"role": message.role, "content": message.content, **{k: v for k, v in own.items() if v}})
    return found


def _object(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _log_nothing(name: str, value: object) -> None:
    """No-op for TRL's `log_extra` and `log_metric`."""


_LOGS = ("log_extra", "log_metric")


def _question(episode: Episode) -> str:
    return next((m.content for m in reversed(episode.task.prompt) if m.role == "user"), "")


def _needs_messages(reward: str, error: TypeError) -> str:
    return (
        f"reward '{reward}' raised TypeError: {error}; it reads completions as lists of messages, and they are text "
        'where the data\'s prompts are text: write each prompt as [{"role": "user", "content": ...}]'
    )


def _no_such_key(reward: str, key: str, episode: Episode) -> str:
    known = sorted(episode.task.metadata)
    near = get_close_matches(key, [*known, *_PLURALS, *_PLURALS.values()], n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return (
        f"reward '{reward}' wants '{key}', which the metadata of task {episode.task.id!r} does not have; {hint}"
        f"It has: {', '.join(known) or 'none'}"
    )
