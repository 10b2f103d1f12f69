"""A run that goes on from its last checkpoint when it loses processes of its cluster."""

from collections.abc import Callable
from typing import TypeVar

from posttrain.errors import ProcessLost
from posttrain.session.progress import announce
from posttrain.session.training import RunOptions

R = TypeVar("R")
LOSSES = 3  # without a checkpoint in between


def restarted(run: Callable[[RunOptions], R], where: RunOptions, starting: str = "") -> R:
    """Call `run` until it has not lost a process; after the first time it resumes.

    `starting` says which processes start, each time.

    Raises:
        ProcessLost: nothing was saved yet, or nothing between `LOSSES` losses.
    """
    step, losses = 0, 0
    while True:
        if starting:
            announce(starting, quiet=where.get("quiet", False))
        try:
            return run(where)
        except ProcessLost as lost:
            losses = 1 if lost.step > step else losses + 1
            step = max(step, lost.step)
            resume = (lost.run if lost.step else None) or where.get("resume")  # none is open while processes start
            if resume is None:
                lost.add_note("no checkpoint had been written, so the run cannot go on by itself")
                raise
            if losses == LOSSES:
                lost.add_note(f"{LOSSES} losses without a checkpoint in between: the run does not go on by itself")
                raise
            where = RunOptions(**{**where, "output": None, "resume": resume, "tracking": None})
            announce(f"{lost}; going on from the last checkpoint with new processes", quiet=where.get("quiet", False))
