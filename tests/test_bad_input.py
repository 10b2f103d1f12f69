"""What people get wrong, and what machines do to them: each is one line on standard error, and never a traceback.

Everything goes through `main`, with a model folder that takes no time.
"""

import errno
import io
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
from safetensors.torch import load_file, save_file
from tensorboard.summary.writer import record_writer
from tensorboard.summary.writer.record_writer import RecordWriter

from posttrain.bindings.sampling import read_tasks
from posttrain.cli import main
from posttrain.options.online import OnlineOptions
from posttrain.rewards import parse_rewards
from posttrain.runs import RunDirectory
from posttrain.training import checkpoint
from tests.recipes.folders import model_folder

Fails = Callable[..., str]


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "good")


@pytest.fixture
def here(tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, demonstrations and tasks, in which the command is typed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(saved)
    rows = [{"prompt": f"{i}+{i}", "completion": str(2 * i), "answer": str(2 * i)} for i in range(4)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def words(command: str, more: str = "") -> list[str]:
    """A command that works, with more options behind."""
    fine = {
        "sft": "sft --dataset rows.jsonl --model model --examples-per-step 2 --precision float32",
        "rl": "rl --dataset rows.jsonl --model model --reward exact --steps 2 --prompts-per-step 2 "
        "--completions-per-prompt 2 --max-new-tokens 3 --precision float32",
        "evaluate": "evaluate --dataset rows.jsonl --model model --reward exact --max-new-tokens 3 --precision float32",
    }
    return f"{fine[command]} {more}".split()


@pytest.fixture
def fails(here: Path, capsys: pytest.CaptureFixture[str]) -> Fails:
    """Run a command that must fail with one line, which is returned without the program's name."""

    def fails(typed: list[str], code: int = 2) -> str:
        capsys.readouterr()
        found = main(typed)
        out, err = capsys.readouterr()
        lines = [line for line in err.splitlines() if line.startswith("posttrain: ")]
        assert found == code, err
        assert out == "" and "Traceback" not in err and len(lines) == 1, err
        assert err.endswith(lines[0] + "\n")
        return lines[0].removeprefix("posttrain: ")

    return fails


DATA = ["sft", "rl", "evaluate"]


@pytest.mark.parametrize("command", DATA)
def test_missing_file(fails, command):
    assert fails(words(command, "--dataset nowhere.jsonl")).startswith("there is no file or folder 'nowhere.jsonl'")


@pytest.mark.parametrize("command", DATA)
def test_empty_file(fails, here, command):
    (here / "empty.jsonl").write_text("\n")
    assert fails(words(command, "--dataset empty.jsonl")).startswith("'empty.jsonl' has no rows; expected at least one")


@pytest.mark.parametrize("command", DATA)
def test_malformed_row(fails, here, command):
    (here / "torn.jsonl").write_text('{"prompt": "1", "completion": "1", "answer": "1"}\n{"prompt": "2", \n')
    assert fails(words(command, "--dataset torn.jsonl")).startswith("torn.jsonl line 2: not JSON")


@pytest.mark.parametrize("command", DATA)
def test_row_without_a_field(fails, here, command):
    (here / "other.jsonl").write_text('{"problem": "1", "completion": "1", "answer": "1"}\n')
    found = fails(words(command, "--dataset other.jsonl"))
    assert found.startswith("other.jsonl line 1: field 'prompt' is missing; this row has: problem, completion, answer")
    assert found.endswith("map it with --columns prompt=problem")


@pytest.mark.parametrize("command", DATA)
def test_unknown_column(fails, command):
    found = fails(words(command, "--columns prompt=promt"))
    assert found == "unknown column 'promt'; did you mean 'prompt'? The data has: answer, completion, prompt"


BEST_OF_N = (
    "best-of-n --dataset rows.jsonl --model model --reward exact --max-new-tokens 3 --precision float32 "
    "--completions-per-prompt 2 --output best.jsonl"
)


@pytest.fixture
def unreadable(here, monkeypatch):
    """Tasks of which the second has an answer that is no number; loading a model fails the test."""
    rows = [{"prompt": "1?", "answer": "3/4"}, {"prompt": "2?", "answer": "three quarters"}, {"prompt": "3?"}]
    (here / "gold.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name in ("bindings.backend.trained_policy", "recipes.evaluate.load_policy"):
        monkeypatch.setattr(f"posttrain.{name}", lambda *_, **__: pytest.fail("weights were loaded"))
    return "gold.jsonl row 2 (gold.jsonl:2) has the answer 'three quarters': reward 'numbers' needs a number"


@pytest.mark.parametrize("typed", [words("rl"), words("evaluate"), BEST_OF_N.split()], ids=lambda typed: typed[0])
def test_an_answer_that_cannot_be_read_is_told_before_weights_are_loaded(fails, unreadable, typed):
    found = fails([*typed, "--dataset", "gold.jsonl", "--reward", "numbers"])
    assert found.startswith(unreadable) and "; 2 of 3 rows are like that; " in found


def test_so_are_held_out_answers_and_those_that_only_gold_rewards_read(fails, unreadable):
    heldout = "--eval-every 1 --eval-dataset gold.jsonl"
    assert fails(words("rl", f"--reward numbers {heldout}")).startswith(unreadable)
    assert fails(words("rl", f"--reward tags --gold numbers {heldout}")).startswith(unreadable)
    found = fails([*BEST_OF_N.split(), *["--dataset", "gold.jsonl", "--reward", "tags", "--gold", "numbers"]])
    assert found.startswith(unreadable)


def test_training_answers_need_not_be_readable_for_gold_rewards_that_only_evaluations_read(here, unreadable):
    (here / "heldout.jsonl").write_text(json.dumps({"prompt": "4?", "answer": "4"}))
    options = OnlineOptions(dataset="gold.jsonl", eval_dataset="heldout.jsonl", eval_every=1)
    tasks, heldout, _ = read_tasks(options, None, parse_rewards("numbers"))
    assert (len(tasks), len(heldout)) == (3, 1)


def test_completions_without_the_right_answer_cannot_be_scored(fails, here):
    (here / "said.jsonl").write_text(json.dumps({"prompt": "1", "completion": "#### 2"}))
    found = fails(["score", "--dataset", "said.jsonl", "--reward", "math"])
    assert found.startswith("said.jsonl row 1 (said.jsonl:1): reward 'math' needs task.answer")
    found = fails(["score", "--dataset", "said.jsonl", "--reward", "code"])
    assert found.startswith(
        "said.jsonl row 1 (said.jsonl:1): reward 'code' finds no tests: it needs a column 'test_list'"
    )


def test_without_bubblewrap_programs_are_not_run(fails, here, monkeypatch):
    def refused():
        return "", "bubblewrap is not installed; install it"

    monkeypatch.setattr("posttrain.sandbox.isolation._isolation_here", refused)
    (here / "said.jsonl").write_text(json.dumps({"prompt": "1", "completion": "x", "test_list": ["assert f(1)"]}))
    found = fails(["score", "--dataset", "said.jsonl", "--reward", "code"])
    assert found.startswith("programs cannot be isolated on this machine: bubblewrap is not installed; install it")
    assert "sandbox=none" in found


def test_unknown_algorithm(fails):
    assert fails(words("rl", "--algorithm grop")).startswith("unknown algorithm 'grop'; did you mean 'grpo'?")


@pytest.mark.parametrize("command", DATA)
def test_unknown_option(fails, command):
    found = fails(words(command, "--dataste x"))
    assert found == (f"unknown option '--dataste'; did you mean '--dataset'? posttrain {command} --help-all lists all")


@pytest.mark.parametrize("command", DATA)
def test_unknown_key_in_the_configuration(fails, here, command):
    (here / "my.toml").write_text("dataste = 'x'\n")
    found = fails(words(command, "--config my.toml"))
    assert found.startswith("unknown key in my.toml: 'dataste'; did you mean 'dataset'?")


def test_unknown_knob_in_the_configuration(fails, here):
    (here / "my.toml").write_text("[knobs]\nclip_lo = 1\n")
    found = fails(words("rl", "--config my.toml"))
    assert found.startswith("unknown key in my.toml, table [knobs]: 'clip_lo'; did you mean 'clip_low'?")


def test_configuration_that_is_not_toml(fails, here):
    (here / "my.toml").write_text("dataset: x\n")
    assert fails(words("sft", "--config my.toml")).startswith("my.toml is not TOML: ")
    for text, advice in (("2", "; leave out the quotes"), ("two", ""), ("true", "")):
        (here / "my.toml").write_text(f'epochs = "{text}"\n')
        said = fails(words("sft", "--config my.toml"))
        assert said.endswith(f"'epochs' must be a number; got '{text}', which is text{advice}"), said


@pytest.fixture
def copied(here: Path, saved: Path) -> Path:
    """A model folder to break."""
    return shutil.copytree(saved, here / "broken")


@pytest.mark.parametrize("command", DATA)
def test_model_folder_that_is_not_there(fails, command):
    assert fails(words(command, "--model ./nowhere")).startswith("no model './nowhere': it is no folder here")


@pytest.mark.parametrize("command", DATA)
def test_model_folder_without_tokenizer(fails, copied, command):
    for path in [*copied.glob("tokenizer*"), *copied.glob("*.jinja")]:
        path.unlink()
    assert fails(words(command, "--model broken")).startswith("the model folder 'broken' has no tokenizer (none of ")


@pytest.mark.parametrize("command", DATA)
def test_tokenizer_without_chat_template(fails, copied, command):
    (copied / "chat_template.jinja").unlink()
    assert fails(words(command, "--model broken")).startswith("this tokenizer has no chat template")


@pytest.mark.parametrize("command", DATA)
def test_weights_that_are_damaged(fails, copied, command):
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "'broken'" in fails(words(command, "--model broken"))


@pytest.fixture
def long(here: Path) -> None:
    """Prompts that the model, whose context is 256, cannot hold."""
    row = {"prompt": "a" * 300, "completion": "b", "answer": "b"}
    (here / "long.jsonl").write_text("\n".join([json.dumps(row)] * 4))


@pytest.mark.parametrize("command", DATA)
def test_prompt_over_the_context(fails, long, command):
    assert "256" in fails(words(command, "--dataset long.jsonl"))


def test_prompts_longer_than_allowed(fails):
    found = fails(words("rl", "--max-prompt-tokens 10"))
    assert found == (
        "all 4 prompts are longer than 10 tokens, the smaller of --max-prompt-tokens 10 and what the model's context "
        "of 256 leaves room for"
    )


def test_examples_longer_than_allowed(fails):
    assert fails(words("sft", "--max-tokens 10")).startswith(
        "all 4 examples are longer than 10 tokens, the smaller of --max-tokens 10 and the model's context 256"
    )


def test_group_of_one(fails):
    found = fails(words("rl", "--completions-per-prompt 1"))
    assert "it needs 2 or more of them; got 1: type --completions-per-prompt 2 or more" in found


def test_run_directory_that_is_not_empty(fails, here):
    main(words("sft", "--output run --quiet"))
    found = fails(words("sft", "--output run"))
    assert found == (
        "run directory run is not empty; pass a new or empty one, or type --resume run to continue the run in it"
    )


def checkpoints(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir() if path.is_dir())


@pytest.mark.parametrize("command", ["sft", "rl"])
def test_no_disk_space_at_a_checkpoint(fails, here, monkeypatch, command):
    """Not the user's mistake, so exit code 1; the checkpoint before survives, and is gone on from."""
    write, steps = checkpoint.save_file, [0]

    def full(tensors: dict[str, Any], path: Path) -> None:
        if "step" not in path.parent.name and path.name == "optimizer.safetensors":
            steps[0] += 1
            if steps[0] == 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", full)
    found = fails(words(command, "--steps 3 --save-every 1 --output run"), code=1)
    assert found.startswith("checkpoint of step 2 not saved in run/checkpoints: no space left; it needs more than ")
    assert "free some space there, then resume (earlier checkpoints are unchanged)" in found
    assert found.endswith("step 1 is saved in run, --resume continues from there")
    assert checkpoints(here / "run") == ["step-000001"]
    assert main([command, "--resume", "run", "--quiet"]) == 0
    assert checkpoints(here / "run") == ["step-000002", "step-000003"]


@pytest.fixture
def not_finite(here: Path, saved: Path) -> str:
    """A model of which one weight is NaN."""
    shutil.copytree(saved, here / "torn")
    tensors = load_file(here / "torn" / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][3, 2] = math.nan
    save_file(tensors, here / "torn" / "model.safetensors", metadata={"format": "pt"})
    return "model.layers.1.mlp.down_proj.weight"


PAIRED = "--dataset pairs.jsonl --model model --pairs-per-step 1 --precision float32"


@pytest.mark.parametrize(
    "typed",
    [
        *map(words, DATA),
        f"preference {PAIRED}".split(),
        f"reward-model {PAIRED}".split(),
        BEST_OF_N.split(),
        ["generate", "--model", "model", "--prompt", "1", "--max-new-tokens", "3"],
    ],
    ids=lambda typed: typed[0],
)
def test_weights_that_are_not_finite_are_refused_before_anything_is_written(fails, here, not_finite, typed):
    (here / "pairs.jsonl").write_text(json.dumps({"prompt": "1", "chosen": "1", "rejected": "2"}))
    before = {path.name for path in here.iterdir()}
    found = fails([*(word if word != "model" else "torn" for word in typed)])
    assert found.startswith("'torn' has numbers that are not finite (NaN or infinity) in 1 of its weights: ")
    assert not_finite in found and {path.name for path in here.iterdir()} == before


class FullDisk:
    """A file on a disk with room for so many bytes more; what no longer fits is torn, and closing it fails as well."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.name, self.room = file, file.name, room

    def write(self, data: bytes) -> int:
        self.file.write(data[: self.room])
        self.flush()
        self.room -= len(data)
        return self._or_full(len(data))

    def flush(self) -> None:
        self.file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.file.close()
        self._or_full(0)

    def _or_full(self, done: int) -> int:
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return done


@pytest.mark.parametrize(
    ("command", "which"),
    [("sft", "metrics"), ("rl", "samples"), ("sft", "events")],
)
def test_no_disk_space_while_a_step_is_logged(fails, here, monkeypatch, command, which):
    """One line that names the file; the torn row is dropped when the run goes on, and nothing else is missing."""
    opened = RunDirectory._open

    def full(self: RunDirectory, step: int) -> None:
        opened(self, step)
        name = f"_{which}"
        if which != "events":
            setattr(self, name, FullDisk(getattr(self, name), 600))

    monkeypatch.setattr(RunDirectory, "_open", full)
    if which == "events":
        monkeypatch.setattr(record_writer, "RecordWriter", lambda file: RecordWriter(FullDisk(file, 900)))
    found = fails(words(command, "--steps 6 --save-every 1 --output run"), code=1)
    assert found.startswith("no space left on the disk while run/") and which in found.split(" was ")[0]
    monkeypatch.undo()
    monkeypatch.chdir(here)
    step = int(checkpoints(here / "run")[-1][5:])
    assert found.endswith(f"free some space there; step {step} is saved in run, --resume continues from there")
    assert main([command, "--resume", "run", "--quiet"]) == 0
    rows = [json.loads(line) for line in (here / "run" / "metrics.jsonl").open()]
    assert [row["step"] for row in rows] == list(range(1, 7))


def test_no_disk_space_for_a_new_run_leaves_the_directory_as_it_was(fails, here, monkeypatch):
    written = Path.write_text

    def full(self: Path, *told: Any, **more: Any) -> int:
        if "environment" in self.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(self, *told, **more)

    monkeypatch.setattr(Path, "write_text", full)
    found = fails(words("sft", "--output run"), code=1)
    assert found == "no space left on the disk while run/environment.json was written; free some space there"
    monkeypatch.setattr(Path, "write_text", written)
    assert main(words("sft", "--output run --quiet")) == 0


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], None]:
    """Have the system refuse to write files in whose path a text is: to open them, unless the disk is full."""
    real = io.open

    def refuse(number: int, part: str) -> None:
        def opened(file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
            refused = part in str(file) and set(mode) & set("wax+")
            if refused and number != errno.ENOSPC:
                raise OSError(number, os.strerror(number), str(file))
            found = real(file, mode, *more, **named)
            return FullDisk(found, 0) if refused else found

        monkeypatch.setattr(io, "open", opened)

    return refuse


def kept(run: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("command", "number"), [("sft", errno.EROFS), ("rl", errno.EROFS), ("sft", errno.EACCES)])
def test_a_run_that_cannot_be_written_is_not_gone_on_with(fails, here, disk, command, number):
    assert main(words(command, "--steps 2 --save-every 1 --output run --quiet")) == 0
    before = kept(here / "run")
    disk(number, "run/")
    assert fails([command, "--resume", "run", "--steps", "3"]) == (
        f"run cannot be written: {os.strerror(number)}; make it writable, or copy it to another disk and --resume the "
        "copy; the last checkpoint is run/checkpoints/step-000002"
    )
    assert kept(here / "run") == before


@pytest.mark.parametrize("file", ["environment.json", "events"])
def test_no_disk_space_when_a_run_is_gone_on_with(fails, here, disk, monkeypatch, file):
    assert main(words("sft", "--steps 2 --save-every 1 --output run --quiet")) == 0
    disk(errno.ENOSPC, file)
    found = fails(["sft", "--resume", "run", "--steps", "3"], code=1)
    assert found.startswith("no space left on the disk while run/") and file in found
    assert found.endswith("free some space there; the last checkpoint is run/checkpoints/step-000002")
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert main(["sft", "--resume", "run", "--steps", "3", "--quiet"]) == 0
    assert [json.loads(line)["step"] for line in (here / "run" / "metrics.jsonl").open()] == [1, 2, 3]


GOES_ON = "step 2 is saved in run, --resume continues from there"


@pytest.mark.parametrize(
    ("number", "file", "begins", "ends"),
    [
        (errno.ENOSPC, "best.json", "checkpoint run/checkpoints/step-000002 was saved, but ", f"resume; {GOES_ON}"),
        (errno.ENOSPC, "state.json", "checkpoint of step 2 not saved in run/checkpoints: no space left; it needs ", ""),
        (errno.ENOSPC, "report.html", "no space left on the disk while run/report.html was written; ", GOES_ON),
        (errno.EROFS, "report.html", "run/report.html cannot be written: the disk is read-only; ", GOES_ON),
    ],
)
def test_what_is_saved_is_said_wherever_the_disk_fails(fails, here, disk, monkeypatch, number, file, begins, ends):
    (here / "held.jsonl").write_text('{"prompt": "9", "completion": "18"}')
    held = "--eval-dataset held.jsonl --eval-every 2" if file == "best.json" else ""
    disk(number, file)
    found = fails(words("sft", f"--steps 2 --save-every 2 --output run {held}"), code=1)
    assert found.startswith(begins) and found.endswith(ends) and "earlier checkpoints" not in found
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert main(["sft", "--resume", "run", "--quiet"]) == 0
    assert (here / "run" / "report.html").exists() and checkpoints(here / "run") == ["step-000002"]


def test_a_disk_that_is_full_before_the_first_checkpoint(fails, here, monkeypatch):
    opened = RunDirectory._open

    def full(self: RunDirectory, step: int) -> None:
        opened(self, step)
        setattr(self, "_metrics", FullDisk(self._metrics, 0))  # noqa: B010

    monkeypatch.setattr(RunDirectory, "_open", full)
    assert fails(words("sft", "--steps 2 --output run"), code=1) == (
        "no space left on the disk while run/metrics.jsonl was written; free some space there; run has no checkpoint "
        "yet, "
        "--resume run starts it from the first step"
    )


def test_another_error_of_the_system_is_not_taken_for_a_full_disk(fails, monkeypatch):
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(RunDirectory, "create", fail)
    assert fails(words("sft"), code=1).startswith("unexpected OSError: [Errno 5] ")


@pytest.mark.parametrize("command", ["sft", "rl"])
def test_truncated_checkpoint(here, capsys, command):
    """It is noticed, the one before is used, and the user is told."""
    assert main(words(command, "--steps 2 --save-every 1 --output run --quiet")) == 0
    torn = here / "run" / "checkpoints" / "step-000002" / "masters.safetensors"
    torn.write_bytes(torn.read_bytes()[:-1])
    capsys.readouterr()
    assert main([command, "--resume", "run", "--json"]) == 0
    out, err = capsys.readouterr()
    told = next(line for line in err.splitlines() if "step-000002" in line)
    assert "masters.safetensors has" in told and "resuming from step 1" in told
    assert json.loads(out.splitlines()[-1])["steps"] == 2
    assert [json.loads(line)["step"] for line in (here / "run" / "metrics.jsonl").open()] == [1, 2]


@pytest.mark.parametrize("command", ["sft", "rl"])
def test_every_checkpoint_is_damaged(fails, here, command):
    main(words(command, "--steps 1 --output run --quiet"))
    (here / "run" / "checkpoints" / "step-000001" / "state.json").unlink()
    assert fails([command, "--resume", "run"], code=1).startswith("every checkpoint in run/checkpoints is damaged")


@pytest.mark.parametrize("command", ["sft", "rl"])
def test_a_run_whose_checkpoints_are_gone_cannot_be_resumed(fails, here, command):
    main(words(command, "--steps 1 --output run --quiet"))
    shutil.rmtree(here / "run" / "checkpoints")
    assert fails([command, "--resume", "run"]).startswith(
        "run/checkpoints has no checkpoint, although the run had saved one; restore it"
    )


@pytest.mark.parametrize(
    ("command", "more", "differences"),
    [
        ("sft", "--lr 0.5 --seed 7", "seed was 0, now 7; lr was 5e-05, now 0.5"),
        ("rl", "--lr 0.5 --clip-low 0.1", "lr was 1e-05, now 0.5; knobs.clip_low was 0.2, now 0.1"),
    ],
)
def test_resume_with_another_configuration(fails, command, more, differences):
    main(words(command, "--steps 1 --output run --quiet"))
    assert fails([command, "--resume", "run", *more.split()]) == (
        f"run was started with another configuration: {differences}; resume with the options it was started with, "
        "or start a new run"
    )


def edit(run: Path, old: str, new: str) -> None:
    """Write something else into the run's configuration, as somebody with an editor does."""
    file = run / "config.toml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("command", "more", "old", "new", "difference", "typed"),
    [
        ("sft", "", "lr = 5e-05", "lr = 0.5", "lr was 5e-05, now 0.5", "--lr 5e-05"),
        ("sft", "--decay linear", 'decay = "linear"', "", 'decay was "linear", now "cosine"', "--decay linear"),
        ("rl", "", "clip_low = 0.2", "clip_low = 0.1", "knobs.clip_low was 0.2, now 0.1", "--clip-low 0.2"),
    ],
)
def test_a_configuration_that_was_edited_is_another_one(fails, here, command, more, old, new, difference, typed):
    assert main(words(command, f"--steps 1 --output run --quiet {more}")) == 0
    begun = (here / "run" / "config.toml").read_text()
    edit(here / "run", old, new)
    before = kept(here / "run")
    for words_of_it in ([], ["--steps", "2"]):
        assert fails([command, "--resume", "run", *words_of_it]) == (
            f"run/config.toml has been edited: {difference}; to continue as before, undo that, or type {typed}"
        )
    assert kept(here / "run") == before
    assert main([command, "--resume", "run", "--quiet", *typed.split()]) == 0
    assert (here / "run" / "config.toml").read_text() == begun
    assert main([command, "--resume", "run", "--quiet"]) == 0


def test_what_may_differ_may_be_edited_and_is_said(here, capsys):
    assert main(words("sft", "--steps 1 --output run --quiet")) == 0
    edit(here / "run", "steps = 1\n", "steps = 2\n")
    assert main(["sft", "--resume", "run"]) == 0
    assert "changed options: steps was 1, now 2" in " ".join(capsys.readouterr().err.split())
    assert [json.loads(line)["step"] for line in (here / "run" / "metrics.jsonl").open()] == [1, 2]
    edit(here / "run", "steps = 2\n", "steps = 1\n")  # what it went on with counts
    assert main(["sft", "--resume", "run"]) == 2
    assert "run has 2 steps, more than --steps 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--max-new-tokens 0", "--max-new-tokens must be 1 or more; got 0"),
        ("--max-prompt-tokens 0", "--max-prompt-tokens must be 1 or more; got 0"),
        ("--eval-samples 0", "--eval-samples must be 1 or more; got 0"),
        ("--eval-every -1", "--eval-every must be 0 or more; got -1"),
        ("--temperature nan", "--temperature must be above 0"),
        ("--temperature inf", "--temperature must be above 0"),
        ("--cache-gb -1", "--cache-gb must be above 0; got -1.0"),
        ("--microbatch-tokens 60", "or a smaller --max-new-tokens"),
    ],
)
def test_options_of_rl_that_cannot_be(fails, options, message):
    assert message in fails(words("rl", options))


def test_rl_asks_for_the_data_before_anything_else(fails):
    assert "--dataset" in fails(["rl"])
