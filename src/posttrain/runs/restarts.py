"""A run that resumes from its last checkpoint when it loses processes of its cluster."""

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from posttrain.errors import ProcessLost
from posttrain.runs.progress import announce

P = ParamSpec("P")
R = TypeVar("R")
LOSSES = 3  # without a checkpoint in between
_QUIET: ContextVar[bool] = ContextVar("quiet", default=True)  # whether the run that is called shows no progress


def announce_start(line: str) -> None:
    """Print which processes start, once the options of the run have been checked; nothing if the run is quiet."""
    announce(line, quiet=_QUIET.get())


def restarted(train: Callable[P, R]) -> Callable[P, R]:
    """Calls `train`, whose words are `RunOptions`, until it has not lost a process; after the first time it resumes.

    Raises:
        ProcessLost: nothing was saved yet, or nothing between `LOSSES` losses.
    """

    @wraps(train)
    def run(*parts: P.args, **where: P.kwargs) -> R:
        again: dict[str, Any] = {**where}
        step, losses, quiet = 0, 0, again.get("quiet", False)
        while True:
            before = _QUIET.set(quiet)
            try:
                return train(*parts, **again)  # pyright: ignore[reportCallIssue]
            except ProcessLost as lost:
                losses = 1 if lost.step > step else losses + 1
                step = max(step, lost.step)
                resume = (lost.run if lost.step else None) or again.get("resume")  # none is open while processes start
                if resume is None:
                    lost.add_note("there is no checkpoint yet, so the run cannot be restarted")
                    raise
                if losses == LOSSES:
                    lost.add_note(f"{LOSSES} losses without a checkpoint in between: the run is not restarted again")
                    raise
                again |= {"output": None, "resume": resume, "tracking": None}
                announce(f"{lost}; resuming from the last checkpoint with new processes", quiet=quiet)
            finally:
                _QUIET.reset(before)

    return run
