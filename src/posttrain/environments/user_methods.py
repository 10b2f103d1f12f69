"""Environments that users give: found and made; and in one line what is wrong with what their methods return."""

import contextlib
import inspect
import math
import shlex
from collections.abc import Generator, Iterable, Mapping
from importlib.metadata import entry_points
from itertools import chain
from typing import Any, SupportsFloat

from posttrain.environments.env import Environment, Seat, trained_seats
from posttrain.errors import PosttrainError, UserError, described, place_in_user_code, unknown
from posttrain.types import Message, Outcome, Task
from posttrain.user_code import load, made

GROUP = "posttrain.environments"
"""The group of entry points under which a package offers its environments."""


def load_environment(given: object, arguments: str | Mapping[str, Any] = "") -> Environment:
    """The environment `path/to/file.py:CLASS`, of an entry point's name, of a class, or an object as it is.

    Arguments are a mapping or words such as `numbers=100 max_turns=6` (a value with spaces in quotes), read as the
    type of the parameter's annotation or default. Raises `UserError` for all that does not fit.
    """
    name = given if isinstance(given, str) else (given if inspect.isclass(given) else type(given)).__qualname__
    what = f"the environment '{name}'"
    values = _read(what, arguments) if isinstance(arguments, str) else arguments
    found: Any = given
    if isinstance(given, str):
        found = load("environment", name, "class") if ".py" in name else _installed(name)
    if inspect.isclass(found) and issubclass(found, Environment):
        environment: Environment = made(what, found, values)
    elif isinstance(found, Environment):
        if values:
            raise UserError(f"{what} is an object, which takes no arguments; got {', '.join(values)}")
        environment = found
    else:
        raise UserError(
            f"{what} is no subclass of posttrain.environments.Environment; write class "
            f"{getattr(found, '__name__', name)}(Environment)"
        )
    if other := [seat for seat in trained_seats(environment) if seat not in environment.seats]:
        raise unknown(f"trained seat of {what}:", other[0], environment.seats)
    return environment


def _installed(name: str) -> Any:
    offered = {point.name: point for point in entry_points(group=GROUP)}
    if name not in offered:
        raise unknown("environment", name, [*offered, "path/to/file.py:CLASS"])
    try:
        return offered[name].load()
    except Exception as error:
        raise UserError(f"the environment '{name}' cannot be imported: {described(error)}") from error


def _read(what: str, arguments: str) -> dict[str, str]:
    try:
        words = shlex.split(arguments)
    except ValueError as error:
        raise UserError(f"cannot read the arguments {arguments!r} of {what}: {error}") from error
    if wrong := [word for word in words if "=" not in word]:
        raise UserError(f"cannot read '{wrong[0]}' in the arguments of {what}; expected KEY=VALUE")
    return dict(word.split("=", 1) for word in words)


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
    """The outcome of one episode; `TypeError` or `ValueError` where `play` gives something else than it should."""
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
