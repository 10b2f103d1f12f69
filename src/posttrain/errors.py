"""Errors that a person can act on. Each says in one line what was given, what was expected, and what to type."""

import traceback
from collections.abc import Iterable
from difflib import get_close_matches


class PosttrainError(Exception):
    """Anything that posttrain raises on purpose. The command line prints it in one line and exits with `exit_code`."""

    exit_code = 1


class UserError(PosttrainError, ValueError):
    """The user's mistake: a wrong option, file, column, or combination of them."""

    exit_code = 2


class DataError(UserError):
    """A file or a row that cannot be read as what it should be; names file, line and field."""


class TemplateError(UserError):
    """A chat template that cannot be rendered, or whose rendering leaves nothing to learn."""


class ModelError(UserError):
    """A model folder, hub id or checkpoint that cannot be loaded."""


class CheckpointError(PosttrainError):
    """A checkpoint that cannot be written, or none that can be read."""


class EngineError(PosttrainError):
    """A sampler that cannot be reached, or that answered from other weights than the policy's."""


class RewardError(PosttrainError):
    """A reward that raised, hung, or returned something that is not one finite number per episode."""


class EpisodeError(PosttrainError):
    """More episodes failed than may."""


class CallbackError(PosttrainError):
    """A user's callback raised."""


class TrainingError(PosttrainError):
    """Training cannot go on: a loss or gradient that is not finite."""


def described(error: BaseException) -> str:
    """The type of an error and what it says, if it says anything.

    Example:
        >>> described(KeyError("a")), described(AssertionError())
        ("KeyError: 'a'", 'AssertionError')
    """
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def place_of(error: BaseException) -> str:
    """` (file.py:12)`: the line that raised an error; "" where it was never raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def unknown(kind: str, given: str, known: Iterable[str], *, see: str = "") -> UserError:
    """The error for a name that does not exist: the nearest one that does, and all of them or, if given, `see`.

    Example:
        >>> print(unknown("algorithm", "grop", ["grpo", "ppo"]))
        unknown algorithm 'grop'; did you mean 'grpo'? There are: grpo, ppo
    """
    names = sorted(known)
    near = get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return UserError(f"unknown {kind} '{given}'; {hint}{see or 'There are: ' + ', '.join(names)}")
