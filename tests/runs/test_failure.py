import json

import pytest

from posttrain.data.packing import Example
from posttrain.errors import TrainingError, UserError
from posttrain.runs.resuming import kept_batch
from posttrain.training import checkpoint

BATCH = [Example((1, 2), (3,), (True,)), Example.whole([4, 5], [False, True])]


def failed(run):
    with pytest.raises(TrainingError) as error, kept_batch(7, BATCH, run, run / "checkpoints"):
        raise TrainingError("the loss is nan")
    return str(error.value)


def save(run, step):
    return checkpoint.save(run / "checkpoints", step, lambda folder: None, {})


def test_the_batch_is_kept_in_tokens(tmp_path):
    assert failed(tmp_path) == (
        f"step 7: the loss is nan; the batch is in {tmp_path}/failed-step-000007.json; there is no checkpoint yet"
    )
    kept = json.loads((tmp_path / "failed-step-000007.json").read_text())
    assert kept == {"step": 7, "error": "the loss is nan", "token_ids": [[1, 2, 3], [4, 5]]}


def test_the_last_checkpoint_that_is_whole_is_named(tmp_path):
    save(tmp_path, 5)
    (save(tmp_path, 6) / "state.json").unlink()
    assert failed(tmp_path).endswith(f"the last checkpoint is {tmp_path}/checkpoints/step-000005")
    (tmp_path / "checkpoints" / "step-000005" / "state.json").unlink()
    assert "every checkpoint in" in failed(tmp_path)


def test_the_batch_is_kept_whatever_fails_and_the_error_is_what_it_was(tmp_path):
    with pytest.raises(MemoryError) as error, kept_batch(7, BATCH, tmp_path, tmp_path):
        raise MemoryError
    assert error.value.__notes__ == [f"in the update of step 7; the batch is in {tmp_path}/failed-step-000007.json"]
    assert json.loads((tmp_path / "failed-step-000007.json").read_text())["error"] == "MemoryError"


def test_a_batch_that_cannot_be_written_hides_no_error(tmp_path, monkeypatch):
    def full(*given, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    assert failed(tmp_path) == (
        "step 7: the loss is nan; the batch cannot be written (No space left on device); there is no checkpoint yet"
    )


def test_nothing_is_kept_of_steps_that_do_not_fail_so(tmp_path):
    with kept_batch(7, BATCH, tmp_path, tmp_path):
        pass
    with pytest.raises(UserError), kept_batch(7, BATCH, tmp_path, tmp_path):
        raise UserError("too long")
    assert list(tmp_path.iterdir()) == []
