"""The conformance kit of environments, and a scripted seat for tests of one."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Unpack, cast

from posttrain.background import finish
from posttrain.environments.env import Environment, Seat, TurnSampling, own_sampling, trained_seats
from posttrain.environments.user_methods import finite, outcome_of, tasks_of
from posttrain.errors import described, place_in_user_code
from posttrain.testing.conformance import require
from posttrain.types import Message, Outcome, Reply, Sampling, StopReason, Task, Usage

_EVENT_LOOP_ROUNDS = 3  # times that a scripted seat lets others run before it replies
_SEED = 7
_SAMPLING = Sampling(16, 1.0)


@dataclass
class ScriptedSeat:
    """A seat with scripted replies, which records messages. It repeats the last reply.

    Attributes:
        replies: its replies; messages, for tool calls.
        max_turns: how often it may be asked.
        stop_reason: of every reply.
        ends: which of the stop strings of a turn its replies end in; of one like `</tag>` it writes both tags.
    """

    replies: Sequence[str | Message]
    max_turns: int = 1000
    stop_reason: StopReason = StopReason.STOP
    ends: int | None = None
    told: list[tuple[Message, ...]] = field(default_factory=list[tuple[Message, ...]])
    said: list[Message] = field(default_factory=list[Message])
    tools: tuple[str, ...] = ()

    async def turn(self, messages: Sequence[Message], tools: Sequence[str] = (), **own: Unpack[TurnSampling]) -> Reply:
        """The next reply, up to the first stop string.

        Raises:
            RuntimeError: it has been asked more often than `max_turns`.
            UserError: a setting of the turn is out of its range.
        """
        stops = own_sampling(_SAMPLING, own).stop
        if len(self.said) >= self.max_turns:
            raise RuntimeError(f"asked more than {self.max_turns} times; the episode does not end")
        self.told.append(tuple(messages))
        self.tools = self.tools or tuple(tools)
        for _ in range(_EVENT_LOOP_ROUNDS):
            await asyncio.sleep(0)
        reply = self.replies[min(len(self.said), len(self.replies) - 1)]
        message = Message("assistant", reply) if isinstance(reply, str) else reply
        if self.ends is not None and stops:
            stop = stops[self.ends % len(stops)]
            tag = re.fullmatch(r"</(\w+)>", stop)
            message = replace(message, content=f"{f'<{tag[1]}>' if tag else ''}{message.content}{stop}")
        ends = [message.content.find(stop) + len(stop) for stop in stops if stop in message.content]
        message = replace(message, content=message.content[: min(ends, default=None)])
        self.said.append(message)
        return Reply(message, self.stop_reason, Usage(0, 0))

    async def go_on(self, text: str, **own: Unpack[TurnSampling]) -> Reply:
        """The next reply, after text that is noted as what a tool says."""
        return await self.turn([Message("tool", text)], **own)

    @property
    def conversation(self) -> tuple[Message, ...]:
        """Its messages and replies, in order."""
        return tuple(m for told, said in zip(self.told, self.said, strict=True) for m in (*told, said))


class SeatFailure(Exception):
    """Raised by the kit's failing seat."""


class FailingSeat(Seat):
    """A seat that fails."""

    async def turn(self, messages: Sequence[Message], tools: Sequence[str] = (), **own: Unpack[TurnSampling]) -> Reply:
        """Raise `SeatFailure`."""
        raise SeatFailure(f"this seat fails on purpose ({len(messages)} messages)")


def check_environment(environment: Environment, tasks: Sequence[Task] = ()) -> None:
    """Check that `environment` conforms on `tasks`, by default its own.

    Checked, with scripted seats: its own tasks depend on the seed alone, and none is in both splits; every seat is told
    each message once, and never its own words; where there is one seat, the first call begins with the task's prompt;
    an episode depends on its task, its seed and the replies, and not on others that are under way; what a seat raises
    is not swallowed; an outcome names seats and finite numbers; a gold completion solves its task, an empty one does
    not; an episode ends within `max_turns`, also when all replies are empty because the context is full, and when all
    end in a stop string that was asked for. Each of these rests on those before it, so the first that fails is the last
    that is checked. An exception of the environment is a violation, too.

    Raises:
        ConformanceError: it does not conform.
    """
    try:
        violations = finish(_check(environment, tasks))
    except Exception as error:
        place = place_in_user_code(error)
        violations = [f"it raised {described(error)}{place}" if place else str(error)]
    require(violations)


async def _check(environment: Environment, tasks: Sequence[Task]) -> list[str]:
    if isinstance(cast(object, environment), type):
        name = cast(type, environment).__name__
        return [f"it is the class {name}; expected an object: type {name}()"]
    if not isinstance(cast(object, environment), Environment):
        name = type(environment).__name__
        return [f"{name} is no subclass of posttrain.environments.Environment; write class {name}(Environment)"]
    if not environment.seats or len(set(environment.seats)) != len(environment.seats):
        return [f"its seats are {environment.seats!r}; expected at least one name, all different"]
    if unknown := [name for name in trained_seats(environment) if name not in environment.seats]:
        return [f"its trained seats {unknown!r} are none of its seats {environment.seats!r}"]
    if not tasks and (failures := _check_tasks(environment)):
        return failures
    asked = tasks or tasks_of(environment, "train", _SEED)[:4]
    if not asked:
        return ["check_environment needs at least one task"]
    await environment.open()
    try:
        alone = [await _play(environment, task, f"reply to play {i}") for i, task in enumerate(asked)]
        return (
            [f for task, played in zip(asked, alone, strict=True) for f in _check_messages(environment, task, played)]
            or await _check_concurrency(environment, asked, alone)
            or await _check_seat_failure(environment, asked[0])
            or await _check_solved(environment, asked)
            or await _check_stops(environment, asked)
        )
    finally:
        await environment.close()


@dataclass(frozen=True)
class _Played:
    seats: Mapping[str, ScriptedSeat]
    outcome: Outcome

    @property
    def record(self) -> object:
        return {name: seat.conversation for name, seat in self.seats.items()}, self.outcome


async def _play(
    environment: Environment,
    task: Task,
    reply: str,
    *,
    alike: bool = False,
    reason: StopReason = StopReason.STOP,
    ends: int | None = None,
) -> _Played:
    """An episode with fresh seats, whose replies are unlike any other play's; `alike`: as they are given."""
    seats = {
        name: ScriptedSeat(
            [reply] if alike else [f"{reply}, seat {name}, turn {n}" for n in range(8)],
            environment.max_turns,
            reason,
            ends,
        )
        for name in environment.seats
    }
    return _Played(seats, await outcome_of(environment, task, seats, _SEED))


def _check_tasks(environment: Environment) -> list[str]:
    train, again = tasks_of(environment, "train", _SEED), tasks_of(environment, "train", _SEED)
    if train != again:
        return ["its tasks differ from call to call with the same seed"]
    prompts = {task.prompt: task.answer for task in train}
    both = [t for t in tasks_of(environment, "heldout", _SEED) if prompts.get(t.prompt, _NOTHING) == t.answer]
    return [f"task {both[0].id!r} is in the training split and in the held-out split"] if both else []


_NOTHING = object()


def _check_messages(environment: Environment, task: Task, played: _Played) -> list[str]:
    where = f"on task {task.id!r}"
    failures: list[str] = []
    first = played.seats[trained_seats(environment)[0]]
    if not first.told:
        failures.append(f"the first trained seat, '{trained_seats(environment)[0]}', is never asked {where}")
    elif len(played.seats) == 1 and first.told[0][: len(task.prompt)] != task.prompt:
        failures.append(f"the first call to its seat {where} does not begin with the task's prompt")
    for name, seat in played.seats.items():
        if any(message in seat.said for told in seat.told for message in told):
            failures.append(f"seat '{name}' is told its own words again {where}")
        if any(not told for told in seat.told):
            failures.append(f"seat '{name}' is asked without a new message {where}")
    numbers = played.outcome.metrics
    failures += [f"its outcome {where} has {key} = {numbers[key]!r}" for key in numbers if not finite(numbers[key])]
    return failures


async def _check_concurrency(environment: Environment, tasks: Sequence[Task], alone: Sequence[_Played]) -> list[str]:
    """Each task twice at the same time, next to all others, against the plays that were alone."""
    plays = [_play(environment, task, f"reply to play {i}") for i, task in enumerate(tasks) for _ in range(2)]
    together = await asyncio.gather(*plays)
    return [
        f"the episode of task {tasks[i // 2].id!r} differs when others are under way at the same time"
        for i, played in enumerate(together)
        if played.record != alone[i // 2].record
    ]


async def _check_seat_failure(environment: Environment, task: Task) -> list[str]:
    seats: dict[str, Seat] = {name: FailingSeat() for name in environment.seats}
    try:
        await environment.play(task, seats, _SEED)
    except SeatFailure:
        return []
    except Exception as error:
        return [] if isinstance(error.__cause__, SeatFailure) else [f"a seat's failure becomes {error!r}"]
    return ["a seat's failure is swallowed: play returned an outcome"]


async def _check_solved(environment: Environment, tasks: Sequence[Task]) -> list[str]:
    """Gold completions as the reply of every seat, where tasks have them; then empty replies, stopped or cut off."""
    failures: list[str] = []
    for task in tasks:
        gold = (await _play(environment, task, task.gold, alike=True)).outcome.solved if task.gold else None
        if gold is False:
            failures.append(f"the gold completion of task {task.id!r} does not solve it")
        for reason in (StopReason.STOP, StopReason.CONTEXT):
            if (await _play(environment, task, "", alike=True, reason=reason)).outcome.solved:
                failures.append(f"empty replies solve task {task.id!r}")
    return failures


async def _check_stops(environment: Environment, tasks: Sequence[Task]) -> list[str]:
    """Replies that all end in one of the first stop strings of their turn: they must not go on for ever."""
    for task in tasks:
        for ends in range(3):
            await _play(environment, task, "a reply", alike=True, ends=ends)
    return []
