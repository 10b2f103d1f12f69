"""The reward interface, and validation of what rewards return.

A reward takes groups of finished episodes, as text, and returns a `Score` for each episode. It is called with a whole
batch, so that it can batch slow calls. Most rewards score one episode at a time (`EpisodeReward`); one that compares
the episodes of a task declares its minimum group size. A failing reward stops the run: a failure scored 0 would be
learned as a wrong answer.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

from posttrain.background import DidNotFinish, crossing, run_apart
from posttrain.errors import ProcessLost, RewardError, UserError, described, place_in_user_code
from posttrain.types import Episode, EpisodeGroup, Score, SeatScores, Span


@runtime_checkable
class Reward(Protocol):
    """Something that scores episodes. A frozen dataclass with a `name` and this one method is enough.

    Optional attributes:

    - `role`: `verifier`, a score of 1 means that the task is solved; `rule`, the default; `learned`, from people's
      choices; `judge`; `monitor`, logged and never optimised.
    - `bounds`: the (lowest, highest) value that it can give, which `check_reward` tests; infinite ones say that no
      value means that a task is solved.
    - `min_group`: how many episodes of a task it needs to compare; 1 unless given.
    - `columns`: the names of the data's columns that it reads in a task's metadata; "**" for all that are there.
    - `alike(one, other)`: of a verifier, whether two answers (`Score.parsed`) are one; `solve` counts votes by it.
    - `orders = True`: it compares, asks about each two answers in both orders, and its scores have two metrics:
      `swapped`, the share of pairs on which these disagree, and `first`, that of verdicts for what stood first.
    - `judges`: judges whose scores it combines; they are not rewards of their own.
    - `patient = True`: it computes as long as it takes, as a model does, and has no time limit.
    """

    @property
    def name(self) -> str:
        """Name in weights, metrics and reports."""
        ...

    async def score(self, groups: Sequence[EpisodeGroup]) -> Sequence[Sequence[SeatScores]]:
        """For each group one score per episode, in order. Raises rather than guesses.

        A score holds for every trained seat of the episode; a mapping has one for each seat that it names.
        """
        ...


ROLES = ("verifier", "rule", "learned", "judge", "monitor")


def role_of(reward: object) -> str:
    """The declared role of a reward: one of `ROLES`."""
    return getattr(reward, "role", "rule")


def bounds_of(reward: object) -> tuple[float, float] | None:
    """The declared lowest and highest value of a reward; None if it declares none."""
    return getattr(reward, "bounds", None)


def min_group_of(reward: object) -> int:
    """Minimum group size of a reward."""
    return getattr(reward, "min_group", 1)


class EpisodeReward:
    """A reward of single episodes, independent of their group.

    A subclass has a `name` and `score_episodes`; or `_score_one`, where it scores one episode after another.
    """

    name: str

    def _score_one(self, episode: Episode) -> SeatScores:
        raise NotImplementedError

    async def score_episodes(self, episodes: Sequence[Episode]) -> Sequence[SeatScores]:
        """One score per episode, in order. Raises rather than guesses."""
        return [self._scored(episode) for episode in episodes]

    def _scored(self, episode: Episode) -> SeatScores:
        with scoring(self.name, episode):
            return self._score_one(episode)

    async def score(self, groups: Sequence[EpisodeGroup]) -> list[list[SeatScores]]:
        """As in `Reward`."""
        episodes = [episode for group in groups for episode in group.episodes]
        returned = iter(_checked(self.name, episodes, await self.score_episodes(episodes) if episodes else []))
        return [[next(returned) for _ in group.episodes] for group in groups]


class Verifier(EpisodeReward):
    """A reward of single episodes that is 1 if the task is solved, and at least 0."""

    role = "verifier"
    bounds = (0.0, 1.0)


def apart(episodes: Sequence[Episode]) -> list[EpisodeGroup]:
    """Each episode as a group of its own."""
    return [EpisodeGroup(episode.task, (episode,)) for episode in episodes]


@dataclass(frozen=True)
class Named:
    """A reward under another name, to be logged and never optimised."""

    reward: Reward
    name: str
    role = "monitor"

    def __post_init__(self) -> None:
        for key in ("patient", "columns", "min_group"):
            if hasattr(self.reward, key):
                object.__setattr__(self, key, getattr(self.reward, key))

    async def score(self, groups: Sequence[EpisodeGroup]) -> Sequence[Sequence[SeatScores]]:
        """The reward's scores."""
        return await self.reward.score(groups)


@dataclass(frozen=True)
class Earned(EpisodeReward):
    """The environment's reward of each seat, from its `Outcome`. It applies to the seats that are named."""

    name: str = "environment"
    bounds = (-math.inf, math.inf)

    def _score_one(self, episode: Episode) -> SeatScores:
        return {seat: Score(value) for seat, value in episode.outcome.rewards.items()}


@dataclass(frozen=True)
class Solved(Verifier):
    """Task success as reported by the environment's `Outcome`: 1 if solved, else 0. It applies if that is reported."""

    name: str = "solved"

    def _score_one(self, episode: Episode) -> Score:
        solved = episode.outcome.solved
        return Score.not_applicable("the environment does not say") if solved is None else Score(float(solved))


async def score_all(reward: Reward, groups: Sequence[EpisodeGroup], *, timeout_s: float) -> list[list[SeatScores]]:
    """Run `reward` and validate that it returns one `Score` per episode, finite where it applies; else `RewardError`.

    The reward runs in a thread of its own, so that a hang hits the time limit even if it blocks. (Only compiled code
    that never releases the interpreter's lock cannot be timed out inside a process; the verifiers that call such code
    do it in a worker process.) A `UserError`, as of too small a group, and a `ProcessLost` of the reward pass.
    """
    episodes = [episode for group in groups for episode in group.episodes]
    if not episodes:
        return [[] for _ in groups]
    if small := [group for group in groups if len(group.episodes) < min_group_of(reward)]:
        raise UserError(
            f"reward '{reward.name}' compares {min_group_of(reward)} or more completions of a task; "
            f"{_tasks(small[0].episodes[:1])} has {len(small[0].episodes)}"
        )
    running: list[tuple[int, Episode]] = []
    token = _running.set(running)
    try:
        returned = cast(object, await run_apart(reward.name, reward.score(groups), timeout_s))
    except DidNotFinish:
        culprits = [episode for _, episode in running] or episodes
        raise RewardError(
            f"reward '{reward.name}' did not finish within {timeout_s:g} s on {_tasks(culprits)}; "
            "make it faster or raise the reward's time limit"
        ) from None
    except (RewardError, UserError, ProcessLost):  # after a loss the run goes on
        raise
    except Exception as error:
        raise RewardError(f"reward '{reward.name}' {_raised(error)} on {_tasks(episodes)}") from error
    finally:
        _running.reset(token)
    return _checked_groups(reward.name, groups, returned)


@contextmanager
def scoring(name: str, episode: Episode) -> Generator[None, None, None]:
    """Say which episode is being scored, so that an error or a time-out inside can name it."""
    running = _running.get()
    entry = (id(episode), episode)
    running.append(entry)
    try:
        yield
    except (RewardError, UserError):
        raise
    except Exception as error:
        raise RewardError(f"reward '{name}' {_raised(error)} on {_tasks([episode])}") from error
    finally:
        running.remove(entry)


_nobody: list[tuple[int, Episode]] = []
_running: ContextVar[list[tuple[int, Episode]]] = ContextVar("_running", default=_nobody)


def _checked_groups(name: str, groups: Sequence[EpisodeGroup], returned: object) -> list[list[SeatScores]]:
    values = cast(Sequence[object], returned) if isinstance(returned, list | tuple) else None
    if values is None or len(values) != len(groups):
        what = _kind(cast(object, returned)) if values is None else f"{len(values)} lists"
        raise RewardError(
            f"reward '{name}' returned {what} for {len(groups)} groups; expected one list of scores for each"
        )
    return [_checked(name, group.episodes, value) for group, value in zip(groups, values, strict=True)]


def _checked(name: str, episodes: Sequence[Episode], returned: object) -> list[SeatScores]:
    values = cast(Sequence[object], returned) if isinstance(returned, list | tuple) else None
    if values is None or len(values) != len(episodes):
        what, expected = f"{len(values or ())} scores", "one per episode"
        if values is None:
            what, expected = _kind(cast(object, returned)), "a list of Score, one per episode"
        raise RewardError(
            f"reward '{name}' returned {what} for {len(episodes)} episodes ({_tasks(episodes)}); expected {expected}"
        )
    return [_checked_one(name, episode, value) for episode, value in zip(episodes, values, strict=True)]


def _checked_one(name: str, episode: Episode, value: object) -> SeatScores:
    if not isinstance(value, Mapping):
        return _checked_score(name, episode, value)
    by_seat = cast(Mapping[str, object], value)
    if other := [seat for seat in by_seat if episode.views and seat not in episode.views]:
        raise RewardError(
            f"reward '{name}' scores a seat '{other[0]}' on {_tasks([episode])}; its seats are "
            f"{', '.join(episode.views)}"
        )
    return {seat: _checked_score(name, episode, score, seat) for seat, score in by_seat.items()}


def _checked_score(name: str, episode: Episode, value: object, seat: str = "") -> Score:
    if not isinstance(value, Score):
        raise RewardError(
            f"reward '{name}' returned {_kind(value)} on {_tasks([episode])}; expected a posttrain.types.Score"
        )
    if not value.applicable:  # of one that does not apply no value may be counted by mistake
        return replace(value, value=math.nan, spans=())
    number: Any = value.value
    if not isinstance(number, int | float) or not math.isfinite(number):
        raise RewardError(
            f"reward '{name}' returned a Score of value {number!r} on {_tasks([episode])}; expected a finite number"
        )
    if value.spans and (wrong := _wrong_with(value, episode, seat)):
        raise RewardError(f"reward '{name}' returned {wrong} on {_tasks([episode])}")
    return value


def _wrong_with(score: Score, episode: Episode, seat: str) -> str:
    """Violation of a score's spans; "" if they are valid."""
    if not seat and len(episode.texts) > 1:
        return f"spans for all of the seats {', '.join(episode.texts)}; expected a score for each seat, as a mapping"
    if episode.texts and seat and seat not in episode.texts:
        return f"spans for seat '{seat}', which sampled nothing; those that did: {', '.join(episode.texts)}"
    texts = episode.turn_texts(seat)
    for span in score.spans:
        if not isinstance(cast(object, span), Span):
            return f"{_kind(span)} among its spans; expected a posttrain.types.Span"
        if not all(isinstance(cast(object, n), int) for n in (span.turn, span.start, span.end)):
            return f"{span}; expected whole numbers for its turn, start and end"
        if not 0 <= span.turn < len(texts):
            return f"{span}; expected a turn from 0 to {len(texts) - 1}" if texts else f"{span}, but there is no turn"
        if not 0 <= span.start < span.end <= len(texts[span.turn]):
            return f"{span}; expected 0 <= start < end <= {len(texts[span.turn])}, the characters of that turn"
        if not isinstance(cast(object, span.value), int | float) or not math.isfinite(span.value):
            return f"{span}; expected a finite value"
    total = sum((score.value, *(span.value for span in score.spans)))
    return "" if math.isfinite(total) else f"a score and spans of {total} in all; expected a finite number"


def _tasks(episodes: Sequence[Episode]) -> str:
    """`task 'a'`, or `tasks 'a', 'b', 'c' and 5 more`."""
    names = list(dict.fromkeys(repr(e.task.id) if e.task.id else f"without id ({_beginning(e)!r})" for e in episodes))
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"task{'s' if len(names) > 1 else ''} {shown}"


def _beginning(episode: Episode) -> str:
    text = episode.task.prompt[-1].content if episode.task.prompt else ""
    return text if len(text) <= 40 else text[:37] + "..."


def _raised(error: Exception) -> str:
    """`raised KeyError: 'answer' (rewards.py:12)`, in one line."""
    cause = error.__cause__
    told = error if cause is None or crossing(cause) is cause or not isinstance(error, RuntimeError) else cause
    return f"raised {' '.join(described(told).split())}{place_in_user_code(told)}"


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
