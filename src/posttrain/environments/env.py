"""The interface of an environment: it speaks in messages and drives the seats.

A seat is whoever answers when asked: a policy behind an engine, another model, a person, a script. Tokens belong to
the seat's engine; an environment never sees one. An episode is played once: `play` holds its whole state in local
variables, so that many can be under way at the same time.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol, runtime_checkable

from posttrain.errors import UserError
from posttrain.types import Episode, EpisodeGroup, Message, Score, Task


@runtime_checkable
class Seat(Protocol):
    """One participant of one episode."""

    async def turn(self, messages: Sequence[Message]) -> Message:
        """What the seat says next, given the messages that are new to it since its last turn.

        Its own replies are not told to it again. The first call passes the prompt.
        """
        ...


@runtime_checkable
class Environment(Protocol):
    """A kind of episode: who takes part, how it goes, and what it is worth."""

    seats: ClassVar[tuple[str, ...]]
    """The names of the seats that `play` needs. The first one is the policy where only one is trained."""

    @property
    def outcome(self) -> str:
        """The name of the score that says whether the task was solved: 1 or not, and possibly `unparsed`."""
        ...

    async def play(self, task: Task, seats: Mapping[str, Seat]) -> Episode:
        """Play one episode. What a seat raises passes through: it is never a reply, and never a score.

        Raises:
            UserError: a seat is missing; see `need_seats`.
        """
        ...

    async def score(self, groups: Sequence[EpisodeGroup]) -> list[list[Mapping[str, Score]]]:
        """For each group the scores of its finished episodes by name, with the same names for each.

        An environment whose rewards compare the episodes of a task says with `min_group` how many it needs.
        """
        ...

    def total(self, scores: Mapping[str, Score]) -> float:
        """What the scores of one episode amount to: the reward that is optimised; NaN: the episode is lost."""
        ...


def min_group_of(environment: Environment) -> int:
    """How many episodes of a task an environment needs to score them."""
    return getattr(environment, "min_group", 1)


def need_group(environment: Environment, size: int, what: str) -> None:
    """Refuse, before anything is sampled, groups that the rewards could not compare.

    Raises:
        UserError: they are smaller than the environment needs; `what` says where the number is from.
    """
    if size < min_group_of(environment):
        raise UserError(
            f"a reward compares {min_group_of(environment)} or more completions of a task; {what} gives {size}"
        )


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
