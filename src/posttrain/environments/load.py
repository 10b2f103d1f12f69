"""Environment lookup: a class in a Python file, or an entry point of an installed package."""

import inspect
import shlex
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from posttrain.environments.env import Environment, trained_seats
from posttrain.errors import UserError, described, unknown
from posttrain.user_code import load, made

GROUP = "posttrain.environments"
"""The group of entry points under which a package offers its environments."""


def load_environment(given: object, arguments: str | Mapping[str, Any] = "") -> Environment:
    """An environment, made with arguments such as `numbers=100 max_turns=6`.

    Args:
        given: `path/to/file.py:CLASS`, the name of an entry point in the group `posttrain.environments`, a class, or
            an environment, which takes no arguments any more.
        arguments: KEY=VALUE words, or a mapping; a value with spaces is put in quotes. They are read as the type of the
            parameter's annotation or default.

    Raises:
        UserError: there is no such environment or parameter (the nearest one given), a value is none of its type, or
            it is no environment.
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
