"""The environment interface: it exchanges messages with seats.

A seat is whoever answers when asked: a policy behind an engine, another model, a person, a script. Tokens belong to
the seat's engine; an environment never sees one. An episode is played once: `play` holds its whole state in local
variables, so that many can be under way at the same time.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from posttrain.errors import UserError
from posttrain.types import Message, Outcome, Reply, Task


@runtime_checkable
class Seat(Protocol):
    """One participant of one episode."""

    async def turn(self, messages: Sequence[Message], tools: Sequence[str] = ()) -> Reply:
        """What the seat says next, given the messages that are new to it since its last turn.

        Its own replies are not told to it again. `tools` are the JSON schemas of the functions that it may call, as
        text; they are given with the first turn. A seat whose context is full says nothing: its reply is empty, and its
        stop reason is `context`.
        """
        ...


class Environment:
    """A kind of episode: who takes part, and how it goes. A subclass has `play`; all else has defaults.

    Attributes:
        seats: the names of the seats that `play` needs.
        trained: the seats that learn; unless given, the first.
        max_turns: how often a seat may be asked in one episode.
        schedule: `lockstep` where `play` awaits nothing but seats; `continuous` where it awaits tools, servers or
            people, so that others are sampled meanwhile (`rollouts/async_engine.py`).
    """

    seats: tuple[str, ...] = ("policy",)
    trained: tuple[str, ...] = ()
    max_turns: int = 1
    schedule: str = "lockstep"

    def tasks(self, split: str, seed: int) -> Sequence[Task]:
        """Tasks of its own, for `split` "train" or "heldout", which share none; none where a data set has them."""
        return ()

    def demonstrations(self, seed: int) -> Sequence[Sequence[Message]]:
        """Episodes as they should go, each a conversation of the first trained seat: what a cold start learns from."""
        return ()

    async def open(self) -> None:
        """Make ready what episodes share, such as processes or connections; called once before the first."""

    async def close(self) -> None:
        """Let go of it; called once after the last episode."""

    async def play(self, task: Task, seats: Mapping[str, Seat], seed: int) -> Outcome:
        """Play one episode; what the environment draws by chance depends on `seed` alone.

        What a seat raises passes through: it is never a reply. What `play` itself raises ends this episode alone.

        Raises:
            UserError: a seat is missing; see `need_seats`.
        """
        raise NotImplementedError


def trained_seats(environment: Environment) -> tuple[str, ...]:
    """The seats of an environment that learn."""
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
