"""The conformance kit of environments, with scripted seats."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from posttrain.environments.env import Environment, Seat, min_group_of
from posttrain.types import Episode, EpisodeGroup, Message, Score, Task

_MOST_TURNS = 1000
_EVENT_LOOP_ROUNDS = 3  # times that a scripted seat lets others run before it replies


@dataclass
class ScriptedSeat:
    """A seat that says given things and remembers what it was told. After the last one it repeats it."""

    replies: Sequence[str]
    told: list[tuple[Message, ...]] = field(default_factory=list[tuple[Message, ...]])
    said: list[Message] = field(default_factory=list[Message])

    async def turn(self, messages: Sequence[Message]) -> Message:
        """The next reply.

        Raises:
            RuntimeError: it has been asked far more often than an episode that ends would ask.
        """
        if len(self.said) >= _MOST_TURNS:
            raise RuntimeError(f"asked more than {_MOST_TURNS} times; the episode does not end")
        self.told.append(tuple(messages))
        for _ in range(_EVENT_LOOP_ROUNDS):
            await asyncio.sleep(0)
        reply = Message("assistant", self.replies[min(len(self.said), len(self.replies) - 1)])
        self.said.append(reply)
        return reply


class SeatFailure(Exception):
    """What the kit's failing seat raises."""


class FailingSeat:
    """A seat that cannot answer."""

    async def turn(self, messages: Sequence[Message]) -> Message:
        """Raise `SeatFailure`."""
        raise SeatFailure(f"this seat fails on purpose ({len(messages)} messages)")


async def check_environment(environment: Environment, tasks: Sequence[Task]) -> list[str]:
    """What `environment` does wrong on `tasks`, one line each; an empty list means that it conforms.

    Checked, with scripted seats: every seat is told each message once, in order, and never its own words; the first
    call passes the task's prompt; replies reach the episode as they were said; plays that are under way at the same
    time do not leak into each other; what a seat raises is not swallowed; there is one mapping of finite scores per
    episode, with the same names, alone or in a batch; a gold completion scores 1 under `outcome`, an empty one less.
    Each of these rests on those before it, so the first that fails is the last that is checked.
    """
    if not tasks:
        return ["check_environment needs at least one task"]
    if not environment.seats or len(set(environment.seats)) != len(environment.seats):
        return [f"its seats are {environment.seats!r}; expected at least one name, all different"]
    scripts = [_script(environment, task, f"reply to play {i}") for i, task in enumerate(tasks)]
    alone = [await environment.play(task, seats) for task, seats in zip(tasks, scripts, strict=True)]
    return (
        [f for played in zip(tasks, scripts, alone, strict=True) for f in _check_messages(environment, *played)]
        or await _check_concurrency(environment, tasks, alone)
        or await _check_seat_failure(environment, tasks[0])
        or await _check_scores(environment, alone)
        or await _check_outcome(environment, tasks)
    )


def _script(environment: Environment, task: Task, reply: str) -> dict[str, ScriptedSeat]:
    """Fresh seats whose replies are unlike any other play's."""
    return {name: ScriptedSeat([f"{reply}, seat {name}, turn {n}" for n in range(8)]) for name in environment.seats}


def _check_messages(
    environment: Environment, task: Task, seats: Mapping[str, ScriptedSeat], episode: Episode
) -> list[str]:
    where = f"on task {task.id!r}"
    failures: list[str] = []
    if episode.task != task:
        failures.append(f"the episode {where} belongs to another task")
    if episode.messages[: len(task.prompt)] != task.prompt:
        failures.append(f"the episode {where} does not begin with the task's prompt")
    first = seats[environment.seats[0]]
    if not first.told:
        failures.append(f"the first seat, '{environment.seats[0]}', is never asked {where}")
    elif first.told[0][: len(task.prompt)] != task.prompt:
        failures.append(f"the first call to seat '{environment.seats[0]}' {where} does not pass the task's prompt")
    for name, seat in seats.items():
        told = [message for batch in seat.told for message in batch]
        if any(message in seat.said for message in told):
            failures.append(f"seat '{name}' is told its own words again {where}")
        if not _in_order([m.content for m in seat.said], [m.content for m in episode.messages]):
            failures.append(f"the replies of seat '{name}' {where} are not in the episode as they were said, in order")
        if len(seats) == 1 and _conversation(seat) != episode.messages:
            failures.append(f"what seat '{name}' was told and said {where} is not the episode's conversation")
    return failures


def _conversation(seat: ScriptedSeat) -> tuple[Message, ...]:
    return tuple(m for told, said in zip(seat.told, seat.said, strict=True) for m in (*told, said))


def _in_order(wanted: Sequence[str], given: Sequence[str]) -> bool:
    rest = iter(given)
    return all(any(one == other for other in rest) for one in wanted)


async def _check_concurrency(environment: Environment, tasks: Sequence[Task], alone: Sequence[Episode]) -> list[str]:
    """Each task twice at the same time, next to all others, against the plays that were alone."""
    scripts = [_script(environment, task, f"reply to play {i}") for i, task in enumerate(tasks) for _ in range(2)]
    plays = [environment.play(tasks[i // 2], seats) for i, seats in enumerate(scripts)]
    together = await asyncio.gather(*plays)
    return [
        f"the episode of task {tasks[i // 2].id!r} differs when others are under way at the same time"
        for i, episode in enumerate(together)
        if episode != alone[i // 2]
    ]


async def _check_seat_failure(environment: Environment, task: Task) -> list[str]:
    seats: dict[str, Seat] = {name: FailingSeat() for name in environment.seats}
    try:
        await environment.play(task, seats)
    except SeatFailure:
        return []
    except Exception as error:
        return [] if isinstance(error.__cause__, SeatFailure) else [f"a seat's failure becomes {error!r}"]
    return ["a seat's failure is swallowed: play returned an episode"]


async def _check_scores(environment: Environment, episodes: Sequence[Episode]) -> list[str]:
    groups = [_group(environment, episode) for episode in episodes]
    found = await environment.score(groups)
    if list(map(len, found)) != [len(group.episodes) for group in groups]:
        every = sum(len(group.episodes) for group in groups)
        return [f"it returned {sum(map(len, found))} mappings of scores for {every} episodes in {len(groups)} groups"]
    together = [scores[0] for scores in found]
    if list(await environment.score([])):
        return ["it returned scores for no episodes"]
    failures: list[str] = []
    for episode, scores in zip(episodes, together, strict=True):
        where = f"on task {episode.task.id!r}"
        if scores.keys() != together[0].keys():
            failures.append(f"the names of the scores {where} differ from those of other episodes")
        if environment.outcome not in scores:
            failures.append(f"there is no score '{environment.outcome}' {where}, which is its outcome")
        failures += [
            f"score '{name}' {where} is {score.value}"
            for name, score in scores.items()
            if score.applicable and not math.isfinite(score.value)
        ]
        if not math.isfinite(environment.total(scores)) and all(score.applicable for score in scores.values()):
            failures.append(f"the total {where} is not finite")
        alone = (await environment.score([_group(environment, episode)]))[0][0]
        if _values(alone) != _values(scores):
            failures.append(f"the scores {where} differ alone ({_values(alone)}) and in a batch ({_values(scores)})")
    return failures


def _group(environment: Environment, episode: Episode) -> EpisodeGroup:
    """An episode as often as the environment needs it to compare."""
    return EpisodeGroup(episode.task, (episode,) * min_group_of(environment))


def _values(scores: Mapping[str, Score]) -> dict[str, float]:
    return {name: score.value for name, score in scores.items() if score.applicable}


async def _check_outcome(environment: Environment, tasks: Sequence[Task]) -> list[str]:
    """Gold completions as the reply of every seat, where tasks have them; then empty replies."""
    failures: list[str] = []
    for wanted, told in (("gold", [task for task in tasks if task.gold]), ("empty", list(tasks))):
        replies = [task.gold or "" if wanted == "gold" else "" for task in told]
        plays = [
            environment.play(task, {name: ScriptedSeat([reply]) for name in environment.seats})
            for task, reply in zip(told, replies, strict=True)
        ]
        episodes = [await play for play in plays]
        found = await environment.score([_group(environment, episode) for episode in episodes])
        for episode, (scores, *_) in zip(episodes, found, strict=True):
            score = scores.get(environment.outcome, Score(math.nan))
            if (score.value == 1.0) != (wanted == "gold"):
                failures.append(
                    f"the {wanted} completion of task {episode.task.id!r} scores {score.value:g} under "
                    f"'{environment.outcome}' ({score.explanation or 'no explanation'})"
                )
    return failures
