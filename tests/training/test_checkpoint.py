import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import posttrain
from posttrain.errors import CheckpointError, ProcessLost
from posttrain.training import checkpoint
from posttrain.training.checkpoint import best, latest, load, load_tensors, save, save_tensors

CONTENT = bytes(range(256)) * 8
HERE = {**os.environ, "PYTHONPATH": str(Path(posttrain.__file__).parents[1])}  # the source that is under test


def write(folder: Path) -> None:
    (folder / "model.bin").write_bytes(CONTENT)
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocab.txt").write_text("a b c")


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def message(caught) -> str:
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_what_was_saved_comes_back(tmp_path):
    state = {"position": 17, "lr": 0.1 + 0.2, "config": {"seed": None, "names": ["a", "b"]}, "done": False}
    folder = save(tmp_path / "run" / "checkpoints", 40, write, state, score=0.25)
    assert folder == tmp_path / "run" / "checkpoints" / "step-000040"
    assert names(folder) == ["checksums.json", "model.bin", "state.json", "tokenizer"]
    assert (folder / "model.bin").read_bytes() == CONTENT
    wanted = checkpoint.Checkpoint(folder, 40, state, 0.25, ())
    assert latest(folder.parent) == best(folder.parent) == load(folder) == wanted
    assert json.loads((folder.parent / "best.json").read_text()) == {"name": "step-000040", "score": 0.25}


def test_no_checkpoints_is_none_and_not_an_error(tmp_path):
    assert latest(tmp_path / "nowhere") is None and best(tmp_path / "nowhere") is None
    (tmp_path / "step-1.txt").write_text("")
    (tmp_path / "step-000002").write_text("")  # a file
    assert latest(tmp_path) is None
    save(tmp_path, 3, write, {})
    assert best(tmp_path) is None  # it has no score
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        load(tmp_path / "step-000009")


def test_newest_is_by_number_and_not_by_spelling_or_time(tmp_path):
    for step in (1_000_000, 999_999, 7):
        save(tmp_path, step, write, {}, keep_last=9)
    found = latest(tmp_path)
    assert found is not None and found.step == 1_000_000


@pytest.mark.parametrize(
    ("scores", "keep_last", "kept", "best_step"),
    [
        ([None, None, None, None], 2, [3, 4], None),
        ([0.1, 0.9, 0.3, 0.2, 0.4], 2, [2, 4, 5], 2),
        ([0.9, 0.9, 0.9], 1, [1, 3], 1),  # equal scores: the first
        ([-2.0, -1.0, -3.0], 1, [2, 3], 2),
        ([0.1, 0.2, 0.3], 2, [2, 3], 3),  # the best is among the last: nothing more is kept
        ([0.5, None, None, None], 1, [1, 4], 1),
    ],
)
def test_last_ones_and_the_best_are_kept(tmp_path, scores, keep_last, kept, best_step):
    for step, score in enumerate(scores, start=1):
        save(tmp_path, step, write, {}, keep_last=keep_last, score=score)
    folders = [f"step-{step:06d}" for step in kept]
    assert names(tmp_path) == ([] if best_step is None else ["best.json"]) + folders
    found = best(tmp_path)
    assert (None if found is None else found.step) == best_step == checkpoint.best_step(tmp_path)
    if best_step:
        pointer = json.loads((tmp_path / "best.json").read_text())
        assert pointer == {"name": f"step-{best_step:06d}", "score": scores[best_step - 1]}


def test_same_step_is_replaced(tmp_path):
    save(tmp_path, 5, write, {"try": 1})
    save(tmp_path, 5, write, {"try": 2})
    assert load(tmp_path / "step-000005").state == {"try": 2}
    assert names(tmp_path) == ["step-000005"]


def test_death_while_the_same_step_is_replaced_loses_nothing(tmp_path, monkeypatch):
    save(tmp_path, 5, write, {"try": 1})
    rename = Path.rename

    def die(self, target):
        if self.name.startswith(".saving-"):
            raise KeyboardInterrupt  # between the two renames
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", die)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 5, write, {"try": 2})
    monkeypatch.undo()
    found = latest(tmp_path)
    assert found is not None and (found.step, found.state) == (5, {"try": 1})
    save(tmp_path, 6, write, {}, keep_last=1)
    assert names(tmp_path) == ["step-000006"]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path, bit: int = 1000) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage", "word"),
    [
        ("model.bin", truncate, "model.bin has 2047 bytes, not 2048"),
        ("model.bin", empty, "model.bin has 0 bytes, not 2048"),
        ("model.bin", flip, "model.bin has another checksum"),
        ("model.bin", Path.unlink, "model.bin is missing"),
        ("tokenizer/vocab.txt", flip, "tokenizer/vocab.txt has another checksum"),
        ("state.json", truncate, "state.json has"),
        ("state.json", Path.unlink, "state.json is missing"),
        ("checksums.json", truncate, "checksums.json cannot be read"),
        ("checksums.json", empty, "checksums.json cannot be read"),
        ("checksums.json", Path.unlink, "checksums.json is missing"),
    ],
)
def test_damage_is_found_and_the_one_before_is_used(tmp_path, name, damage, word):
    for step in (1, 2, 3):
        save(tmp_path, step, write, {}, keep_last=3, score=step / 10)
    damage(tmp_path / "step-000003" / name)
    found = latest(tmp_path)
    assert found is not None and found.step == 2
    assert len(found.skipped) == 1 and found.skipped[0].startswith(f"step-000003: {word}")
    second_best = best(tmp_path)
    assert second_best is not None and second_best.step == 2
    with pytest.raises(CheckpointError, match=r"is damaged: .*use an earlier one") as caught:
        load(tmp_path / "step-000003")
    assert word in message(caught)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(["model.bin", "state.json", "checksums.json"]), bit=st.integers(0, 8 * len(CONTENT) - 1))
def test_no_single_flipped_bit_changes_what_is_loaded(tmp_path, name, bit):
    folder = save(tmp_path, 1, write, {"numbers": [1, 2, 3]}, score=0.5)
    before = load(folder)
    flip(folder / name, bit)
    try:
        after = load(folder)
    except CheckpointError:
        return
    assert name == "checksums.json" and after == before  # white space there says nothing


def test_all_damaged_is_an_error_that_names_each(tmp_path):
    for step in (1, 2):
        save(tmp_path, step, write, {})
        truncate(tmp_path / f"step-{step:06d}" / "model.bin")
    with pytest.raises(CheckpointError) as caught:
        latest(tmp_path)
    assert "step-000002: model.bin has" in message(caught) and "step-000001: model.bin has" in message(caught)


def test_damaged_later_step_does_not_push_out_what_the_run_goes_on_from(tmp_path):
    for step in (10, 20, 30):
        save(tmp_path, step, write, {}, keep_last=3)
    truncate(tmp_path / "step-000030" / "model.bin")
    save(tmp_path, 25, write, {}, keep_last=2)
    assert names(tmp_path) == ["step-000020", "step-000025", "step-000030"]
    found = latest(tmp_path)
    assert found is not None and found.step == 25 and len(found.skipped) == 1
    save(tmp_path, 30, write, {"again": True}, keep_last=2)
    assert load(tmp_path / "step-000030").state == {"again": True}


def raise_in_write(error: BaseException):
    def fail(folder: Path) -> None:
        write(folder)
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), ["no space left", "more than", "are free", "then resume"]),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), ["no space left", "at least 2053 bytes and a quota is used up"]),
        (RuntimeError("I/O error: No space left on device (os error 28)\nmore"), ["no space left"]),
        (PermissionError(errno.EACCES, "Permission denied"), ["Permission denied"]),
        (RuntimeError("first\nsecond"), [": first; fix that, then resume"]),
        (RuntimeError(), [": RuntimeError; fix that, then resume"]),
    ],
)
def test_failed_save_leaves_earlier_checkpoints_and_nothing_else(tmp_path, error, words):
    root = tmp_path / "checkpoints"
    with pytest.raises(CheckpointError) as caught:
        save(root, 1, raise_in_write(error), {})
    for word in (*words, "checkpoint of step 1 not saved", str(root)):
        assert word in message(caught)
    assert names(root) == [] and "earlier" not in message(caught)
    save(root, 1, write, {}, keep_last=1)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match="earlier checkpoints are unchanged"):
        save(root, 2, raise_in_write(error), {}, keep_last=1)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    assert names(root) == ["step-000001"]


@pytest.fixture
def free(monkeypatch):
    """Say how many bytes of the disk are free."""

    def say(number: int) -> None:
        usage = shutil.disk_usage("/")._replace(free=number)
        monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda _: usage)

    return say


def test_need_of_space_is_at_least_the_last_checkpoint(tmp_path, free):
    folder = save(tmp_path, 1, write, {})
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    def full(_folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    free(size - 1)
    with pytest.raises(CheckpointError, match=f"needs at least {size} bytes and {size - 1} are free"):
        save(tmp_path, 2, full, {})
    free(size)  # they did not suffice
    with pytest.raises(CheckpointError, match=f"needs more than {size} bytes and {size} are free"):
        save(tmp_path, 2, full, {})


def test_need_of_space_is_at_least_what_was_written_of_the_first(tmp_path, free):
    free(100)
    with pytest.raises(CheckpointError, match="needs at least 2053 bytes and 100 are free"):
        save(tmp_path, 1, raise_in_write(OSError(errno.ENOSPC, "No space left on device")), {})


def test_space_is_checked_before_writing_where_the_size_is_known(tmp_path, free):
    free(999)
    with pytest.raises(CheckpointError, match="needs at least 1000 bytes and 999 are free"):
        save(tmp_path, 1, lambda _: pytest.fail("written all the same"), {}, expected_bytes=1000)
    save(tmp_path, 1, write, {}, expected_bytes=999)


def test_state_that_json_cannot_hold_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(CheckpointError, match="not JSON serializable"):
        save(tmp_path, 1, write, {"tensor": torch.zeros(1)})  # type: ignore[dict-item]
    assert names(tmp_path) == []


def test_ctrl_c_while_saving_passes_through_and_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 1, raise_in_write(KeyboardInterrupt()), {})
    assert names(tmp_path) == []


def test_names_that_save_itself_needs_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"state\.json is written by save itself"):
        save(tmp_path, 1, lambda folder: (folder / "state.json").write_text("{}") and None, {})


@pytest.mark.parametrize(("step", "options"), [(-1, {}), (1, {"keep_last": 0}), (1, {"score": float("nan")})])
def test_arguments_are_checked_before_anything_is_touched(tmp_path, step, options):
    with pytest.raises(ValueError, match="save needs"):
        save(tmp_path / "new", step, write, {}, **options)
    assert not (tmp_path / "new").exists()


def test_everything_is_on_the_disk_before_the_rename(tmp_path, monkeypatch):
    events: list[str] = []
    sync, rename = checkpoint.sync, Path.rename
    monkeypatch.setattr(checkpoint, "sync", lambda path: (events.append(path.name), sync(path)))
    monkeypatch.setattr(Path, "rename", lambda self, to: (events.append("rename"), rename(self, to)))
    save(tmp_path, 1, write, {})
    at = events.index("rename")
    new = f".saving-000001-{os.getpid()}"
    wanted = ["checksums.json", "model.bin", "state.json", "tokenizer", "vocab.txt", new]
    assert sorted(events[:at]) == sorted(wanted) and events[at - 1] == new
    assert events[at + 1] == tmp_path.name


SAVE = """
import resource, signal, sys, time
from pathlib import Path
from posttrain.errors import CheckpointError, ProcessLost
from posttrain.training.checkpoint import save
root, how = Path(sys.argv[1]), sys.argv[2]

def write(folder):
    (folder / "model.bin").write_bytes(b"half")
    if how == "hang":
        print("writing", flush=True)
        time.sleep(10)
    (folder / "large.bin").write_bytes(bytes(2**20))

if how == "limit":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))
try:
    save(root, 2, write, {})
except CheckpointError as error:
    print(error)
"""


def test_sigkill_in_the_middle_of_writing_leaves_the_earlier_one(tmp_path):
    save(tmp_path, 1, write, {"n": 1})
    command = [sys.executable, "-c", SAVE, str(tmp_path), "hang"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=HERE)
    assert process.stdout is not None and process.stdout.readline() == "writing\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(names(tmp_path)) == 2  # the half-written folder is there
    found = latest(tmp_path)
    assert found is not None and (found.step, found.state, found.skipped) == (1, {"n": 1}, ())
    save(tmp_path, 2, write, {})
    assert names(tmp_path) == ["step-000001", "step-000002"]


def test_file_that_the_system_refuses_to_grow_is_one_line(tmp_path):
    save(tmp_path, 1, write, {})
    command = [sys.executable, "-c", SAVE, str(tmp_path), "limit"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, env=HERE)
    assert "checkpoint of step 2 not saved" in said.stdout and "File too large" in said.stdout
    assert said.stdout.count("\n") == 1 and not said.stderr
    assert names(tmp_path) == ["step-000001"]


def test_tensors_come_back_bit_for_bit(tmp_path):
    wide = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    tensors = {
        "float": wide.requires_grad_(),
        "transposed": wide.detach().clone().T,
        "half": wide.detach().bfloat16(),
        "scalar": torch.tensor(3.0),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "odd": torch.tensor([float("nan"), float("inf"), -0.0]),
    }
    save_tensors(tmp_path / "t.safetensors", tensors)
    loaded = load_tensors(tmp_path / "t.safetensors")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype and loaded[name].shape == tensor.shape
        same = loaded[name].contiguous().view(torch.uint8) if tensor.dim() else loaded[name].view(1).view(torch.uint8)
        kept = tensor.detach().contiguous()
        assert torch.equal(same, (kept if tensor.dim() else kept.view(1)).view(torch.uint8))


@pytest.mark.parametrize("damage", [truncate, empty, Path.unlink])
def test_broken_tensor_file_is_one_line(tmp_path, damage):
    save_tensors(tmp_path / "t.safetensors", {"a": torch.zeros(3)})
    damage(tmp_path / "t.safetensors")
    with pytest.raises(CheckpointError, match="cannot read tensors from") as caught:
        load_tensors(tmp_path / "t.safetensors")
    message(caught)


def test_a_process_that_is_lost_while_a_checkpoint_is_written_is_said_as_it_is(tmp_path):
    """The run goes on with other processes, from an earlier one."""

    def write(folder):
        (folder / "half").write_text("")
        raise ProcessLost("gone")

    with pytest.raises(ProcessLost, match=r"^gone$"):
        checkpoint.save(tmp_path, 3, write, {}, keep_last=1)
    assert list(tmp_path.iterdir()) == []
