"""A training run's directory: new, or gone on with from its newest checkpoint.

For recipes that have nothing to restore but weights and one optimiser; rl and iterate put more back, and preference
reads its reference between the two steps.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.models.language_model import LanguageModel
from posttrain.monitoring import RunDirectory
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.state import restore_latest

Opened = tuple[RunDirectory, int, tuple[str, ...]]
"""The directory, the step to go on from, and what to tell the user."""


def open_run(
    command: str,
    settings: Mapping[str, Any],
    model: LanguageModel,
    optimizer: MasterAdamW,
    *,
    notes: tuple[str, ...],
    output: Path | None,
    resume: Path | None,
    **about: Any,
) -> Opened:
    """Make the directory of a new run, or put model and optimiser back as the run in `resume` left them.

    Args:
        command: which one runs.
        settings: all of its options.
        model: what is trained.
        optimizer: what trains it.
        notes: what to tell the user in any case.
        output: where a new run goes.
        resume: the run to go on with, if it is none.
        about: what else environment.json should say of the data.

    Raises:
        UserError: as `RunDirectory.create`, `RunDirectory.resume` and `restore_latest`.
    """
    about = {"device": str(model.device), "precision": str(model.dtype)} | about
    if resume is None:
        return RunDirectory.create(output, command, settings, environment=about), 0, notes
    directory = RunDirectory.resume(resume, settings, may_differ=("steps", "epochs"), environment=about)
    found = restore_latest(directory.checkpoints, optimizer)
    directory.rewind(found.step)
    return directory, found.step, notes + found.skipped
