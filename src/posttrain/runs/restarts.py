"""A run that resumes from its last checkpoint when it loses processes of its cluster."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

from posttrain.errors import ProcessLost
from posttrain.runs.progress import announce
from posttrain.runs.training import RunOptions

R = TypeVar("R")
LOSSES = 3  # without a checkpoint in between
_QUIET: ContextVar[bool] = ContextVar("quiet", default=True)  # whether the run that is called shows no progress


def announce_start(line: str) -> None:
    """Print which processes start, once the options of the run have been checked; nothing if the run is quiet."""
    announce(line, quiet=_QUIET.get())


def restarted(run: Callable[[RunOptions], R], where: RunOptions) -> R:
    """Call `run`, and resume it where it loses a process, unless nothing was saved, or nothing between `LOSSES`."""
    step, losses, quiet = 0, 0, where.get("quiet", False)
    while True:
        before = _QUIET.set(quiet)
        try:
            return run(where)
        except ProcessLost as lost:
            losses = 1 if lost.step > step else losses + 1
            step = max(step, lost.step)
            resume = (lost.run if lost.step else None) or where.get("resume")  # none is open while processes start
            if resume is None:
                lost.add_note("there is no checkpoint yet, so the run cannot be restarted")
                raise
            if losses == LOSSES:
                lost.add_note(f"{LOSSES} losses without a checkpoint in between: the run is not restarted again")
                raise
            where = RunOptions(**{**where, "output": None, "resume": resume, "tracking": None})
            announce(f"{lost}; resuming from the last checkpoint with new processes", quiet=quiet)
        finally:
            _QUIET.reset(before)
