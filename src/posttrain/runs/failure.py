"""Failed updates, whose batch is saved, and disks that fail: the error says where to resume from."""

import contextlib
import errno
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from posttrain.data.packing import Example
from posttrain.errors import CheckpointError, PosttrainError, ProcessLost, TrainingError, UserError, described
from posttrain.runs.run import CHECKPOINTS
from posttrain.training.checkpoint import latest


@contextlib.contextmanager
def kept_batch(step: int, batch: Sequence[Example], run: Path, checkpoints: Path) -> Iterator[None]:
    """Keep the batch of a step whose update fails, as `failed-step-000012.json` in the run.

    What fails otherwise, such as out of memory, is passed on with a note that names the file.

    Raises:
        TrainingError: the one from inside, with the step, that file, and the last checkpoint that is whole.
    """
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
    """Open a resumed run. An error of the disk gets a note of the last checkpoint.

    Raises:
        UserError: the run's folder cannot be written.
    """
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
        found = latest(checkpoints)
    except (CheckpointError, OSError) as error:
        return str(error)
    return f"the last checkpoint is {found.path}" if found else "there is no checkpoint yet"
