"""One named algorithm is one short file; one line here registers it."""

from collections.abc import Callable
from typing import TypeVar

from posttrain import errors
from posttrain.algorithms.algorithm import Algorithm, OnlineAlgorithm, PreferenceAlgorithm
from posttrain.algorithms.dpo import DPO
from posttrain.algorithms.grpo import GRPO

ONLINE: dict[str, Callable[..., OnlineAlgorithm]] = {
    "grpo": GRPO,
}
"""Those that learn from the policy's own samples. By name: the dataclass of the algorithm's knobs."""

PREFERENCE: dict[str, Callable[..., PreferenceAlgorithm]] = {
    "dpo": DPO,
}
"""Those that learn from pairs of a chosen and a rejected response."""

A = TypeVar("A", bound=Algorithm)

COMMANDS: dict[str, str] = {"online": "rl", "preference": "preference"}
"""By family: the command that runs its algorithms."""

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {**ONLINE, **PREFERENCE}


def get(name: str) -> Callable[..., Algorithm]:
    """Find an algorithm by its name; raises `UserError`, with the nearest name, for one that does not exist.

    Example:
        >>> get("grpo")(kl_coefficient=0.0).needs_reference
        False
    """
    return _find(name, ALGORITHMS)


def online(name: str) -> Callable[..., OnlineAlgorithm]:
    """As `get`, for `posttrain rl`; a name of another family is an error that says which command runs it."""
    return _find(name, ONLINE)


def preference(name: str) -> Callable[..., PreferenceAlgorithm]:
    """As `get`, for `posttrain preference`."""
    return _find(name, PREFERENCE)


def _find(name: str, among: dict[str, Callable[..., A]]) -> Callable[..., A]:
    if name in among:
        return among[name]
    if name in ALGORITHMS:
        command = COMMANDS[ALGORITHMS[name]().family]
        raise errors.UserError(
            f"{name} is an algorithm of another command; type: posttrain {command} --algorithm {name}"
        )
    raise errors.unknown("algorithm", name, among)
