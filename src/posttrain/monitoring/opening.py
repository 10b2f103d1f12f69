"""A training run's directory: new, or gone on with from its newest checkpoint.

For recipes that have nothing to put back but what `restore` does: rl and iterate have more, and preference reads its
reference between the two steps.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from posttrain.monitoring.run_directory import RunDirectory


class Found(Protocol):
    """A checkpoint that was put back."""

    @property
    def step(self) -> int:
        """How many were done."""
        ...

    @property
    def skipped(self) -> tuple[str, ...]:
        """What to tell the user of newer ones that were not whole."""
        ...


def open_run(
    command: str,
    settings: Mapping[str, Any],
    restore: Callable[[Path], Found],
    *,
    environment: Mapping[str, Any],
    output: Path | None,
    resume: Path | None,
) -> tuple[RunDirectory, int, tuple[str, ...]]:
    """Make the directory of a new run, or put back what the run in `resume` left.

    Returns the directory, the step to go on from, and what to tell the user of that.

    Args:
        command: which one runs.
        settings: all of its options.
        restore: puts the newest of a folder's checkpoints in place.
        environment: what only the caller knows of machine and data.
        output: where a new run goes.
        resume: the run to go on with, if it is none.

    Raises:
        UserError: as `RunDirectory.create`, `RunDirectory.resume` and `restore`.
    """
    if resume is None:
        return RunDirectory.create(output, command, settings, environment=environment), 0, ()
    directory = RunDirectory.resume(resume, settings, may_differ=("steps", "epochs"), environment=environment)
    found = restore(directory.checkpoints)
    directory.rewind(found.step)
    return directory, found.step, found.skipped
