"""Environment lookup: a class in a Python file, or an entry point of an installed package."""

import dataclasses
import inspect
import shlex
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, cast

from posttrain.environments.env import Environment, trained_seats
from posttrain.errors import UserError, described, unknown
from posttrain.user_code import load

GROUP = "posttrain.environments"
"""The group of entry points under which a package offers its environments."""


def load_environment(name: str, arguments: str = "") -> Environment:
    """An environment, made with arguments such as `numbers=100 max_turns=6`.

    Args:
        name: `path/to/file.py:CLASS`, or the name of an entry point in the group `posttrain.environments`.
        arguments: KEY=VALUE words; a value with spaces is put in quotes. They are read as the type of the parameter's
            annotation or default: int, float, bool (true or false) or text.

    Raises:
        UserError: there is no such environment or parameter (the nearest one given), a value is none of its type, or
            the class is no subclass of `Environment`.
    """
    found = load("environment", name, "class") if ".py" in name else _installed(name)
    if not (inspect.isclass(found) and issubclass(found, Environment)):
        raise UserError(
            f"the environment '{name}' is no subclass of posttrain.environments.Environment; write class "
            f"{getattr(found, '__name__', name)}(Environment)"
        )
    given = _read(name, found, arguments)
    try:
        made = found(**given)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"the environment '{name}' cannot be created: {described(error)}") from error
    if other := [seat for seat in trained_seats(made) if seat not in made.seats]:
        raise unknown(f"trained seat of the environment '{name}':", other[0], made.seats)
    return made


def _installed(name: str) -> Any:
    offered = {point.name: point for point in entry_points(group=GROUP)}
    if name not in offered:
        raise unknown("environment", name, [*offered, "path/to/file.py:CLASS"])
    try:
        return offered[name].load()
    except Exception as error:
        raise UserError(f"the environment '{name}' cannot be imported: {described(error)}") from error


def _read(name: str, kind: type[Environment], arguments: str) -> dict[str, Any]:
    try:
        words = shlex.split(arguments)
    except ValueError as error:
        raise UserError(f"cannot read the arguments {arguments!r} of the environment '{name}': {error}") from error
    known = _parameters(kind)
    found: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise UserError(f"cannot read '{word}' in the arguments of the environment '{name}'; expected KEY=VALUE")
        if key not in known:
            raise unknown(f"argument of the environment '{name}':", key, known)
        found[key] = _value(name, key, text, known[key])
    return found


def _parameters(kind: type[Environment]) -> dict[str, type]:
    """The parameters of a class and their types: as it is annotated, or of its default; text where neither says."""
    if dataclasses.is_dataclass(kind):
        pairs = {f.name: (f.default, f.type) for f in dataclasses.fields(kind) if f.init}
    else:
        signature = inspect.signature(kind)
        pairs = {key: (one.default, one.annotation) for key, one in signature.parameters.items()}
    return {key: _kind(default, annotation) for key, (default, annotation) in pairs.items()}


def _kind(default: object, annotation: object) -> type:
    kinds: Mapping[str, type] = {"int": int, "float": float, "bool": bool, "str": str}
    known = kinds.get(annotation if isinstance(annotation, str) else getattr(annotation, "__name__", ""))
    return known or (type(default) if isinstance(default, int | float | str) else str)


def _value(name: str, key: str, text: str, kind: type) -> Any:
    if kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        if kind is not bool:
            return cast(Any, kind)(text)
    except ValueError:
        pass
    expected = {int: "a whole number", float: "a number", bool: "true or false"}[kind]
    raise UserError(f"argument {key} of the environment '{name}' is '{text}'; expected {expected}")
