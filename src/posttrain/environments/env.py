"""The environment interface: it exchanges messages with seats.

A seat is a participant: a policy behind an engine, another model, a person, a script. Tokens belong to the seat's
engine; an environment sees messages only. `play` holds the whole state of an episode in local variables, so that many
can run concurrently.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from posttrain.errors import UserError
from posttrain.types import Message, Outcome, Reply, Task


@runtime_checkable
class Seat(Protocol):
    """One participant of one episode."""

    async def turn(self, messages: Sequence[Message], tools: Sequence[str] = ()) -> Reply:
        """The seat's next reply, given the messages that are new to it since its last turn.

        Its own replies are not repeated. `tools` are the JSON schemas of the functions that it may call, as
        text; they are given with the first turn. If the seat's context is full, its reply is empty, with
        stop reason `context`.
        """
        ...


class Environment:
    """Defines episodes: their seats and turns. A subclass implements `play`; all else has defaults.

    Attributes:
        seats: the names of the seats that `play` needs.
        trained: the seats that learn; unless given, the first.
        max_turns: how often a seat may be asked in one episode.
        columns: the columns of the data that `play` reads in a task's metadata. One that means something elsewhere
            (`context`, `images`, ...) is refused unless it is named here or by a reward.
        schedule: `lockstep` where `play` awaits nothing but seats; `continuous` where it awaits tools, servers or
            people, so that others are sampled meanwhile (`engine/scheduler.py`).
    """

    seats: tuple[str, ...] = ("policy",)
    trained: tuple[str, ...] = ()
    max_turns: int = 1
    columns: tuple[str, ...] = ("**",)
    schedule: str = "lockstep"

    def tasks(self, split: str, seed: int) -> Sequence[Task]:
        """The environment's own tasks, for `split` "train" or "heldout", disjoint; none with a data set."""
        return ()

    def demonstrations(self, seed: int) -> Sequence[Sequence[Message]]:
        """Demonstrations for a cold start, each a conversation of the first trained seat."""
        return ()

    async def open(self) -> None:
        """Set up resources that episodes share, such as processes or connections; called once before the first."""

    async def close(self) -> None:
        """Tear down; called once after the last episode."""

    async def play(self, task: Task, seats: Mapping[str, Seat], seed: int) -> Outcome:
        """Play one episode; random draws of the environment depend only on `seed`.

        Exceptions of a seat propagate: they are never a reply. An exception of `play` itself ends this episode only.

        Raises:
            UserError: a seat is missing; see `need_seats`.
        """
        raise NotImplementedError


def trained_seats(environment: Environment) -> tuple[str, ...]:
    """The trained seats of an environment."""
    return environment.trained or environment.seats[:1]


def need_seats(environment: Environment, seats: Mapping[str, Seat]) -> None:
    """Refuse to play without every seat.

    Raises:
        UserError: a seat is missing.
    """
    if missing := [name for name in environment.seats if name not in seats]:
        raise UserError(
            f"{type(environment).__name__} needs the seats {', '.join(environment.seats)}; got "
            f"{', '.join(seats) or 'none'}, so {', '.join(missing)} is missing"
        )
