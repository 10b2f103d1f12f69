"""What an environment's author may get wrong, in one line that names the method and the place."""

import contextlib
import inspect
import math
from collections.abc import Generator, Iterable, Mapping
from itertools import chain
from typing import Any, SupportsFloat

from posttrain.environments.env import Environment, Seat
from posttrain.errors import PosttrainError, UserError, described, place_in_user_code
from posttrain.types import Message, Outcome, Task


@contextlib.contextmanager
def calling(environment: Environment, method: str) -> Generator[None]:
    """While a method of an environment runs, an exception of its author's code becomes a `UserError`."""
    try:
        yield
    except PosttrainError:
        raise
    except Exception as error:
        name = type(environment).__name__
        raise UserError(f"{name}.{method} raised {described(error)}{place_in_user_code(error)}") from error


async def outcome_of(environment: Environment, task: Task, seats: Mapping[str, Seat], seed: int) -> Outcome:
    """The outcome of one episode.

    Raises:
        TypeError: `play` is no coroutine, or returns something else.
        ValueError: it rewards a seat that is none, or with something else than a finite number.
    """
    name = type(environment).__name__
    playing: Any = environment.play(task, seats, seed)
    if not inspect.isawaitable(playing):
        raise TypeError(f"{name}.play is no coroutine; write async def play")
    outcome: Any = await playing
    if not isinstance(outcome, Outcome):
        raise TypeError(f"{name}.play returned a {type(outcome).__name__}; expected a posttrain.types.Outcome")
    for seat, value in outcome.rewards.items():
        if seat not in environment.seats:
            raise ValueError(f"{name}.play rewards the seat '{seat}'; its seats are {list(environment.seats)}")
        if not finite(value):
            raise ValueError(f"{name}.play rewards seat '{seat}' with {value!r}; expected a finite number")
    return outcome


def finite(value: Any) -> bool:
    """Whether a value is a finite number, of whatever type."""
    return isinstance(value, SupportsFloat) and math.isfinite(value)


def tasks_of(environment: Environment, split: str, seed: int) -> list[Task]:
    """The environment's own tasks of a split; `UserError` where its method raises or returns something else."""
    with calling(environment, "tasks"):
        found = list(environment.tasks(split, seed))
    _refuse_others(environment, "tasks returned a", found, Task)
    return found


def demonstrations_of(environment: Environment, seed: int) -> list[tuple[Message, ...]]:
    """The environment's demonstrations; `UserError` where its method raises or returns something else."""
    with calling(environment, "demonstrations"):
        found = [tuple(conversation) for conversation in environment.demonstrations(seed)]
    _refuse_others(environment, "demonstrations returned conversations with a", chain.from_iterable(found), Message)
    return found


def _refuse_others(environment: Environment, returned: str, found: Iterable[object], kind: type) -> None:
    for one in found:
        if not isinstance(one, kind):
            given = f"{type(environment).__name__}.{returned} {type(one).__name__}"
            raise UserError(f"{given}; expected posttrain.types.{kind.__name__}")
