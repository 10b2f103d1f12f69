"""How a run is resumed: its directory and its last checkpoint; what a failed update, disk or process leaves for it."""

import contextlib
import errno
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from posttrain.data.packing import Example
from posttrain.errors import CheckpointError, PosttrainError, ProcessLost, TrainingError, UserError, described
from posttrain.runs import RunDirectory, config_file, read_run
from posttrain.runs.inputs import InputsChanged, options_named, refuse_changes
from posttrain.runs.progress import announce
from posttrain.runs.run import CHECKPOINTS
from posttrain.runs.training import Training
from posttrain.training import checkpoint

P = ParamSpec("P")
R = TypeVar("R")
LOSSES = 3  # without a checkpoint in between
_QUIET: ContextVar[bool] = ContextVar("quiet", default=True)  # whether the run that is called shows no progress

MOVED = ("offload_optimizer",)
"""Options that say where numbers are kept: a run may be resumed with others."""

OWED = "evaluation_owed"
"""In the state of a checkpoint: the row of its step, which is not written, since an evaluation is due."""


def resumed(
    run: Path,
    command: str,
    settings: Mapping[str, Any],
    training: Training,
    environment: Mapping[str, Any],
    accept_changes: str | Sequence[str],
) -> RunDirectory:
    """The directory of a resumed run; options that name files are compared by file contents.

    Where it raises, since the run cannot be resumed with these options, nothing of the run has changed.
    """
    found = read_run(run)
    done, asked = found.metrics[-1]["step"] if found.metrics else 0, f"`{training.counted}`"
    if training.steps < done:
        raise UserError(f"{run} has {done} steps, more than {asked} {training.steps}; pass {asked} {done} or more")
    starts = found.environment
    last: Mapping[str, Any] = [starts, *starts.get("resumed", [])][-1]
    before: Mapping[str, str] = last.get("inputs", {})
    now: Mapping[str, str] = environment["inputs"]
    accepts = options_named(accept_changes, settings)
    changed = refuse_changes(before, now, accepts) if before else []
    by_digest = {name for name in before if before[name] == now.get(name)} | {*changed}
    may_differ = (*training.may_differ, *MOVED, *by_digest)
    alike = not config_file.differences(found.config, settings, ignore=may_differ)  # else that is the reason
    # of a run that kept no digest of what its rows mean: whether some may mean something else
    otherwise = last["rows"] != environment.get("rows") if "rows" in last else bool(environment.get("given"))
    if before and alike and not accepts and otherwise:
        raise InputsChanged(
            ["dataset"],
            "the rows of `dataset` are read differently since the run started: their tokens or their loss mask changed",
        )
    about = {**environment, **({"accepted": changed} if changed else {})}
    return RunDirectory.resume(run, settings, command=command, may_differ=may_differ, environment=about)


def gone_back(
    directory: RunDirectory, training: Training, *, quiet: bool
) -> tuple[checkpoint.Checkpoint | None, tuple[str, ...]]:
    """A resumed run, as it was at its last whole checkpoint, and the messages to the user."""
    found = checkpoint.latest(directory.checkpoints)
    if found is None:  # its rows are not to be lost where it had one
        rows = directory.read().metrics
        step = rows[-1]["step"] if rows else 0
        ended = step and directory.report.exists()  # killed before its first checkpoint, it has no report
        if ended or step > min(training.save_every, training.evaluations.every or math.inf):
            raise UserError(
                f"{directory.checkpoints} has no checkpoint, although the run had saved one; restore it, or start a "
                "new run"
            )
        directory.rewind(-1)
        return None, ("the run has no checkpoint yet, and starts from its first step",)
    training.trained.restore(found.path)
    directory.rewind(found.step - (OWED in found.state))
    changes = [re.sub(r"(?<=sha256:)(\w{8})\w{56}", r"\1", change) for change in directory.changes]
    notes = [f"changed options: {'; '.join(changes)}"] if changes and not quiet else []
    notes += [f"skipped damaged checkpoint: {line}; resuming from step {found.step}" for line in found.skipped]
    notes += training.rate.changed(directory.before.get("steps"), found.step)
    if found.step >= training.steps and OWED not in found.state:
        notes.append(f"the run has all its steps, {found.step}; pass a larger `{training.counted}` to train further")
    return found, tuple(notes)


@contextlib.contextmanager
def kept_batch(step: int, batch: Sequence[Example], run: Path, checkpoints: Path) -> Iterator[None]:
    """Keep the batch of a step whose update fails, as `failed-step-000012.json` in the run, which the error names."""
    try:
        yield
    except ProcessLost:  # it says nothing of the batch
        raise
    except TrainingError as error:
        where = _kept(step, str(error), batch, run)
        raise TrainingError(f"step {step}: {error}; {where}; {_last(checkpoints)}") from error
    except PosttrainError:
        raise
    except Exception as error:
        error.add_note(f"in the update of step {step}; {_kept(step, described(error), batch, run)}")
        raise


@contextlib.contextmanager
def going_on(run: Path) -> Iterator[None]:
    """Open a resumed run. An error of the disk gets a note of the last checkpoint."""
    try:
        yield
    except OSError as error:
        error.add_note(last := _last(run / CHECKPOINTS))
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        hint = "make it writable, or copy it to another disk and `resume` the copy"
        raise UserError(f"{run} cannot be written: {error.strerror}; {hint}; {last}") from error


def _kept(step: int, why: str, batch: Sequence[Example], run: Path) -> str:
    file = run / f"failed-step-{step:06d}.json"
    tokens = [[*example.prefix, *example.continuation] for example in batch]
    try:
        file.write_text(json.dumps({"step": step, "error": why, "token_ids": tokens}), encoding="utf-8")
    except OSError as error:  # such as a full disk
        return f"the batch cannot be written ({error.strerror})"
    return f"the batch is in {file}"


def _last(checkpoints: Path) -> str:
    try:
        found = checkpoint.latest(checkpoints)
    except (CheckpointError, OSError) as error:
        return str(error)
    return f"the last checkpoint is {found.path}" if found else "there is no checkpoint yet"


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
