"""One named algorithm is one short file; one line here registers it."""

from collections.abc import Callable

from posttrain import errors
from posttrain.algorithms.algorithm import OnlineAlgorithm
from posttrain.algorithms.grpo import GRPO

ALGORITHMS: dict[str, Callable[..., OnlineAlgorithm]] = {
    "grpo": GRPO,
}
"""By name: the dataclass of the algorithm's knobs."""


def get(name: str) -> Callable[..., OnlineAlgorithm]:
    """Find an algorithm by its name; raises `UserError`, with the nearest name, for one that does not exist.

    Example:
        >>> get("grpo")(kl_coefficient=0.0).needs_reference
        False
    """
    if name not in ALGORITHMS:
        raise errors.unknown("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]
