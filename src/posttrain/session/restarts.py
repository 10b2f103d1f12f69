"""A run that goes on from its last checkpoint when it loses processes of its cluster."""

from collections.abc import Callable
from typing import TypeVar

from posttrain.errors import ProcessLost
from posttrain.session.progress import announce
from posttrain.session.session import RunOptions

R = TypeVar("R")
LOSSES = 3  # without a checkpoint in between


def restarted(run: Callable[[RunOptions], R], where: RunOptions) -> R:
    """Call `run` until it has not lost a process; after the first time it resumes.

    Raises:
        ProcessLost: nothing was saved yet, or nothing between `LOSSES` losses.
    """
    step, losses = 0, 0
    while True:
        try:
            return run(where)
        except ProcessLost as lost:
            losses = 1 if lost.step > step else losses + 1
            step = max(step, lost.step)
            if not step or losses == LOSSES:
                raise
            resume = lost.run or where.get("resume")  # none is open where processes are lost while they start
            where = RunOptions(**{**where, "output": None, "resume": resume, "tracking": None})
            announce(f"{lost}; going on from step {step} with new processes", quiet=where.get("quiet", False))
