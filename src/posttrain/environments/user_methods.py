"""What an environment's author may get wrong, in one line that names the method and the place."""

import contextlib
from collections.abc import Generator
from typing import Any

from posttrain.environments.env import Environment
from posttrain.errors import PosttrainError, UserError, described, place_in_user_code
from posttrain.types import Message, Task


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


def tasks_of(environment: Environment, split: str, seed: int) -> list[Task]:
    """The environment's own tasks of a split.

    Raises:
        UserError: its method raises, or returns something else than tasks.
    """
    with calling(environment, "tasks"):
        found: list[Any] = list(environment.tasks(split, seed))
    if wrong := [task for task in found if not isinstance(task, Task)]:
        raise UserError(
            f"{type(environment).__name__}.tasks returned a {type(wrong[0]).__name__}; expected posttrain.types.Task"
        )
    return found


def demonstrations_of(environment: Environment, seed: int) -> list[tuple[Message, ...]]:
    """The environment's demonstrations.

    Raises:
        UserError: its method raises, or returns something else than conversations.
    """
    with calling(environment, "demonstrations"):
        found: list[tuple[Any, ...]] = [tuple(conversation) for conversation in environment.demonstrations(seed)]
    if wrong := [message for conversation in found for message in conversation if not isinstance(message, Message)]:
        raise UserError(
            f"{type(environment).__name__}.demonstrations returned conversations with a {type(wrong[0]).__name__}; "
            "expected posttrain.types.Message"
        )
    return found
