"""Episodes of an environment, played by the model and, if asked, by other models or a person."""

import asyncio
import contextlib
import os
import select
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack, cast

from posttrain.bindings.judges import HUMAN, JudgeModels, named_models, players_of
from posttrain.bindings.sampling import refuse_dressing
from posttrain.data import seed_for
from posttrain.engine.policy import Policy
from posttrain.environments.env import Environment, Seat, TurnSampling
from posttrain.environments.scored import ScoredEnvironment
from posttrain.environments.user_methods import load_environment, tasks_of
from posttrain.episodes.episodes import Played, Players, opened, play
from posttrain.errors import EpisodeError, UserError, as_typed, described, place_in_user_code
from posttrain.options.evaluation import Generate
from posttrain.report.markup import printable
from posttrain.rewards import parse_rewards
from posttrain.runs.progress import Progress
from posttrain.types import Message, Reply, Sampling, StopReason, Task, Usage

POLL_S = 0.05  # between two looks for what was typed


@dataclass(frozen=True)
class Prepared:
    """An environment, its tasks, and who plays the seats that the model does not take."""

    environment: Environment
    tasks: Sequence[Task]
    models: JudgeModels
    people: tuple[str, ...]  # the seat that a person takes, if one does
    notes: tuple[str, ...]  # of tasks that are not played


@dataclass(frozen=True)
class EpisodesResult:
    """The episodes, in order, and those that failed."""

    model: str
    episodes: tuple[Played | Exception, ...]
    seconds: float
    notes: tuple[str, ...] = ()

    def summary(self) -> dict[str, Any]:
        """Everything for a machine to read."""
        episodes = [_as_dict(each) for each in self.episodes]
        notes = [as_typed(note) for note in self.notes]
        return {"model": self.model, "episodes": episodes, "seconds": self.seconds, "notes": notes}

    def lines(self) -> list[str]:
        """Each episode with its outcome; control characters are made visible."""
        found = [f"note: {as_typed(note)}" for note in self.notes]
        for number, each in enumerate(self.episodes, 1):
            found += [*_lines(number, each), f"  [{_outcome(each)}]"]
        played = [each for each in self.episodes if isinstance(each, Played)]
        turns = sum(len(trajectory.turns) for each in played for trajectory in each.trajectories.values())
        return [*found, f"{len(self.episodes)} episodes with {turns} turns of {self.model} in {self.seconds:.1f} s"]


def prepare(options: Generate, tasks: Callable[[], Sequence[Task]] | None) -> Prepared:
    """All that shows before weights are read; `tasks` in place of the environment's own held-out ones."""
    environment = load_environment(options.environment, options.environment_args)
    named = named_models("seats", options.seats)
    people = [name for name, what in named.items() if what == HUMAN]
    if len(people) > 1:
        raise UserError(f"one person can play, at this terminal; `seats` names {len(people)}")
    named = {name: what for name, what in named.items() if what != HUMAN}
    models = JudgeModels(options.precision)
    models.seat(named)
    players_of(models, environment, Sampling(1), people)
    if tasks is None:
        refuse_dressing(options, "`prompts`")
    found = tasks() if tasks else tasks_of(environment, "heldout", options.seed)
    found = found or tasks_of(environment, "train", options.seed)
    if not found:
        raise UserError(f"{options.environment} has no tasks of its own; pass `prompts`")
    some = found[: options.limit]
    left = f"{len(found) - len(some)} more tasks were not played; `limit` is {options.limit}"
    return Prepared(environment, some, models, tuple(people), (left,) if len(some) < len(found) else ())


def play_episodes(
    options: Generate,
    prepared: Prepared,
    policy: Policy,
    sampling: Sampling,
    said: Iterable[str],
    show: Callable[[str], object],
    quiet: bool,
) -> tuple[list[Played | Exception], float]:
    """Play `n` episodes of each task, all at once; with a person one after the other. Says how long it took, too."""
    prepared.models.load()
    environment, people = prepared.environment, prepared.people
    others = players_of(prepared.models, environment, sampling, people)
    lines = Lines(said)
    others |= {name: partial(Person, name, lines, show) for name in people}
    room = policy.model.context
    players = Players(policy.engine, policy.chat, sampling, others, max_tokens=room, max_lost=1.0)
    places = [(task, i, j) for i, task in enumerate(prepared.tasks) for j in range(options.n)]
    seeds = [seed_for(options.seed, "episode", i, j) for _, i, j in places]
    began = time.perf_counter()
    found: list[Played | Exception] = []
    scored = ScoredEnvironment(parse_rewards("environment"), environment)
    at_once = 1 if people else len(places)
    with (
        opened(environment),
        Progress("generate", len(places), quiet=quiet or bool(people)) as progress,
        contextlib.suppress(InputEnded),
    ):
        for first in range(0, len(places), at_once):
            with progress.phase("sampling"):
                some = [task for task, *_ in places[first : first + at_once]]
                found += play(scored, some, players, seeds[first : first + at_once])
            progress.step(len(found))
            for name in people:
                show(f"[{_outcome(found[-1], name)}]\n")
    if not found:
        raise UserError("the input ended before an episode did")
    lost = [each for each in found if isinstance(each, Exception)]
    if len(lost) == len(found):
        raise EpisodeError(
            f"all {len(found)} episodes failed; the first: {described(lost[0])}{place_in_user_code(lost[0])}"
        )
    return found, time.perf_counter() - began


class InputEnded(UserError):
    """The person has no more to say."""


class Lines:
    """Lines of a person, without a thread that would wait for input when the process is to end."""

    def __init__(self, said: Iterable[str]) -> None:
        self._said, self._begun = iter(said), b""
        self._file: int | None = None
        with contextlib.suppress(AttributeError, OSError, ValueError):  # a list, or a standard input that is no file
            self._file = cast(Any, said).fileno()

    async def next(self) -> str | None:
        """The next line; None at the end."""
        if self._file is None:
            return next(self._said, None)
        while b"\n" not in self._begun:
            if not select.select([self._file], [], [], 0)[0]:
                await asyncio.sleep(POLL_S)
            elif not (read := os.read(self._file, 4096)):
                break
            else:
                self._begun += read
        line, end, self._begun = self._begun.partition(b"\n")
        return line.decode(errors="replace") if line or end else None


class Person(Seat):
    """A seat that a person at the terminal takes: reads what is new, and types a line."""

    def __init__(self, name: str, said: Lines, show: Callable[[str], object], seed: int) -> None:
        self._name, self._said, self._show = name, said, show

    async def turn(self, messages: Sequence[Message], tools: Sequence[str] = (), **own: Unpack[TurnSampling]) -> Reply:
        """The next line of input; raises `InputEnded` if there is none."""
        for message in messages:
            self._show(printable(f"{message.name or message.role}: {message.text}"))
        self._show(f"{self._name}, your turn:")
        line = await self._said.next()
        if line is None:
            raise InputEnded(f"the input ended while it was the turn of {self._name}")
        return Reply(Message("assistant", line.strip()), StopReason.STOP, Usage(0, 0))


def _as_dict(each: Played | Exception) -> dict[str, Any]:
    if isinstance(each, Exception):
        return {"error": described(each)}
    outcome = each.episode.outcome
    return {
        "task": each.episode.task.id,
        "seats": {seat: [_message(m) for m in view] for seat, view in each.episode.views.items()},
        "rewards": dict(outcome.rewards),
        "solved": outcome.solved,
        "metrics": dict(outcome.metrics),
        "stop_reason": str(each.episode.stop_reason),
    }


def _message(message: Message) -> dict[str, Any]:
    calls = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    return {"role": message.role, "content": message.content} | ({"tool_calls": calls} if calls else {})


def _lines(number: int, each: Played | Exception) -> list[str]:
    """One seat's conversation, or of several seats what each said after the prompt."""
    if isinstance(each, Exception):
        return [f"episode {number}: failed"]
    episode = each.episode
    if len(episode.views) == 1:
        said: Iterable[tuple[str, Message]] = ((message.role, message) for message in episode.messages)
    else:
        said = [*((message.role, message) for message in episode.task.prompt), *episode.transcript]
    return [f"episode {number}: {printable(episode.task.id)}"] + [
        f"{name}> {printable(message.text)}" for name, message in said
    ]


def _outcome(each: Played | Exception, you: str = "") -> str:
    """How an episode went; the seat `you` is addressed so."""
    if isinstance(each, Exception):
        return f"{described(each)}{place_in_user_code(each)}"
    outcome = each.episode.outcome
    parts = [f"{'you' if seat == you else seat} earned {value:g}" for seat, value in outcome.rewards.items()]
    parts += ["solved" if outcome.solved else "not solved"] if outcome.solved is not None else []
    parts += [f"{name} {value:g}" for name, value in outcome.metrics.items()]
    return ", ".join(parts) or "the environment does not say how it went"
