"""The environment interface: it exchanges messages with seats.

A seat is a participant: a policy behind an engine, another model, a person, a script. Tokens belong to the seat's
engine; an environment sees messages only. `play` holds the whole state of an episode in local variables, so that many
can run concurrently.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypedDict, Unpack, runtime_checkable

from posttrain.errors import UserError
from posttrain.types import Message, Outcome, Reply, Sampling, Task


class TurnSampling(TypedDict, total=False):
    """What a turn may have of its own, in place of the run's settings. `stop`: strings that end it; see `Sampling`.

    A turn of the policy at another temperature is trained at that temperature, which its tokens carry. One that is
    greedy (temperature 0) or truncated (`top_k`, `top_p`) is not trained: its tokens are context.
    """

    stop: Sequence[str]
    temperature: float
    top_k: int
    top_p: float
    max_new_tokens: int


def own_sampling(sampling: Sampling, own: TurnSampling) -> Sampling:
    """The settings of a turn; raises `UserError` where one is out of its range."""
    stop = own.get("stop", ())
    if isinstance(stop, str) or not all(stop):
        raise UserError(f"a turn's stop strings are a list, none of them empty; got stop={stop!r}")
    found = replace(sampling, **{**own, "stop": tuple(stop)})
    if found.temperature < 0 or found.top_k < 0 or not 0 < found.top_p <= 1 or found.max_new_tokens < 1:
        raise UserError(
            f"a turn's temperature and top_k are 0 or more, top_p is above 0 and at most 1, max_new_tokens 1 or more; "
            f"got {own}"
        )
    return found


@runtime_checkable
class Seat(Protocol):
    """One participant of one episode."""

    async def turn(self, messages: Sequence[Message], tools: Sequence[str] = (), **own: Unpack[TurnSampling]) -> Reply:
        """The seat's next reply, given the messages that are new to it since its last turn.

        Its own replies are not repeated. `tools` are the JSON schemas of the functions that it may call, as
        text; they are given with the first turn. If the seat's context is full, its reply is empty, with
        stop reason `context`.

        Raises:
            UserError: a setting of the turn is out of its range, or a stop string cannot occur in what it says.
        """
        ...

    async def go_on(self, text: str, **own: Unpack[TurnSampling]) -> Reply:
        """Insert `text` into the message that a stop string (or the length) has just ended, and let the seat go on.

        What is inserted is context; the reply has what was said after it. It counts as a turn.

        Raises:
            UserError: the message is finished, nothing was said yet, or the seat cannot go on in a message.
        """
        raise UserError(
            f"{type(self).__name__} cannot go on in a message; give this seat to the policy, or insert text with turn"
        )


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
        """
        raise NotImplementedError


def trained_seats(environment: Environment) -> tuple[str, ...]:
    """The trained seats of an environment."""
    return environment.trained or environment.seats[:1]


class SingleTurn(Environment):
    """The policy answers the task's prompt once; rewards score the answer."""

    async def play(self, task: Task, seats: Mapping[str, Seat], seed: int) -> Outcome:
        """One turn of the policy."""
        await seats["policy"].turn(task.prompt)
        return Outcome()
