"""What a run leaves behind when a step fails: the batch that did it, and where to go on from."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from posttrain.data.packing import Example
from posttrain.errors import CheckpointError, TrainingError
from posttrain.training.checkpoint import latest


@contextlib.contextmanager
def kept_batch(step: int, batch: Sequence[Example], run: Path, checkpoints: Path) -> Iterator[None]:
    """Keep the batch of a step whose loss or gradient is not finite, as `failed-step-000012.json` in the run.

    Raises:
        TrainingError: the one from inside, with the step, that file, and the last checkpoint that is whole.
    """
    try:
        yield
    except TrainingError as error:
        file = run / f"failed-step-{step:06d}.json"
        tokens = [[*example.prefix, *example.continuation] for example in batch]
        file.write_text(json.dumps({"step": step, "error": str(error), "token_ids": tokens}), encoding="utf-8")
        raise TrainingError(f"step {step}: {error}; the batch is in {file}; {_last(checkpoints)}") from error


def _last(checkpoints: Path) -> str:
    try:
        found = latest(checkpoints)
    except CheckpointError as error:
        return str(error)
    return f"the last good checkpoint is {found.path}" if found else "there is no checkpoint yet"
