import json
import math
import multiprocessing
import os
import signal
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from posttrain.errors import UserError
from posttrain.runs import run_directory
from posttrain.runs.config_file import dumps, plain
from posttrain.runs.run import Sample, read_run
from posttrain.runs.run_directory import RunDirectory

CONFIG = {"model": "m", "lr": 1e-5, "steps": 6, "seed": 7, "limit": None, "knobs": {"beta": 0.04}}


def log(run: RunDirectory, steps: range) -> None:
    for step in steps:
        run.log_metrics(step, {"loss": 1 / step, "tokens": step * 10})
        run.log_samples(step, [Sample("2+2?", f"{step}", {"exact": 0.5}, 0.5, "4"), Sample("é\u2028", "\ud800")])


def test_a_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", "rl", CONFIG, environment={"device": "cpu"}) as run:
        log(run, range(1, 3))
        assert run.checkpoints == run.path / "checkpoints" and run.report == run.path / "report.html"
    found = read_run(run.path)
    assert found.command == "rl" and found.name == "run"
    assert (run.path / "config.toml").read_text().startswith("# To repeat: posttrain rl --config <this file>\n")
    assert found.config == {key: value for key, value in CONFIG.items() if value is not None}
    assert found.environment["seeds"] == {"seed": 7} and found.environment["device"] == "cpu"
    assert found.metrics == [{"step": 1, "loss": 1.0, "tokens": 10}, {"step": 2, "loss": 0.5, "tokens": 20}]
    assert '"tokens": 10}' in (run.path / "metrics.jsonl").read_text()  # a count stays a whole number
    assert found.samples[0] == {
        "step": 1,
        "prompt": "2+2?",
        "completion": "1",
        "rewards": {"exact": 0.5},
        "reward": 0.5,
        "answer": "4",
        "stop_reason": "",
        "model": "",
        "seat": "",
    }
    assert found.samples[3]["completion"] == "\ud800" and found.samples[3]["step"] == 2


def test_the_default_directory_is_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = []
    for _ in range(3):
        with RunDirectory.create(None, "sft", CONFIG) as run:
            names.append(run.path)
    day = f"{datetime.now():%Y-%m-%d}"
    assert names == [Path("runs") / f"sft-{day}-{n}" for n in (1, 2, 3)]


def test_a_directory_that_is_not_empty_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(UserError, match=r"is not empty; pass a new or empty one$"):
        RunDirectory.create(tmp_path, "rl", CONFIG)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_directory_with_a_run_is_refused_with_what_to_type(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path, "rl", CONFIG).close()
    with pytest.raises(UserError, match=f"type `resume={tmp_path}`"):
        RunDirectory.create(tmp_path, "rl", CONFIG)


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(UserError, match="is a file"):
        RunDirectory.create(tmp_path / "run", "rl", CONFIG)
    with pytest.raises(UserError, match="cannot be created: Not a directory"):
        RunDirectory.create(tmp_path / "run" / "below", "rl", CONFIG)


def test_a_configuration_that_cannot_be_kept_leaves_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^reward: "):
        RunDirectory.create(tmp_path / "run", "rl", {"reward": object()})
    assert not (tmp_path / "run").exists()


def files(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in ("metrics.jsonl", "samples.jsonl", "config.toml")}


@pytest.mark.parametrize("checkpoint", [1, 2, 4])
def test_a_run_that_was_killed_and_resumed_equals_one_that_was_not(tmp_path: Path, checkpoint: int) -> None:
    with RunDirectory.create(tmp_path / "whole", "rl", CONFIG) as whole:
        log(whole, range(1, 7))

    def killed() -> None:
        run = RunDirectory.create(tmp_path / "killed", "rl", CONFIG)
        log(run, range(1, 5))
        with (run.path / "metrics.jsonl").open("ab") as file:
            file.write(b'{"step": 5, "lo')
        os.kill(os.getpid(), signal.SIGKILL)

    child = multiprocessing.get_context("fork").Process(target=killed)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    for events in (tmp_path / "killed").glob("events.out.*"):  # TensorBoard sorts by name, and so by the second
        events.rename(events.with_name("events.out.tfevents.0000000001.earlier"))
    with RunDirectory.resume(tmp_path / "killed", CONFIG) as run:
        run.rewind(checkpoint)
        log(run, range(checkpoint + 1, 7))
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    curve = EventAccumulator(str(tmp_path / "killed"))
    curve.Reload()
    assert [event.step for event in curve.Scalars("loss")] == [1, 2, 3, 4, 5, 6]


def test_rewind_without_a_checkpoint_drops_everything(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "rl", CONFIG) as run:
        run.log_metrics(0, {"evaluation/accuracy": 0.1})
        log(run, range(1, 3))
        run.rewind(-1)
        run.log_metrics(0, {"evaluation/accuracy": 0.2})
        assert run.read().metrics == [{"step": 0, "evaluation/accuracy": 0.2}] and run.read().samples == []


def test_steps_only_grow_so_that_no_resumed_run_can_forget_to_rewind(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "rl", CONFIG) as run:
        log(run, range(1, 4))
        with pytest.raises(ValueError, match="3 comes after 3"):
            run.log_metrics(3, {"loss": 0.0})
    with RunDirectory.resume(tmp_path, CONFIG) as run, pytest.raises(ValueError, match="2 comes after 3"):
        run.log_metrics(2, {"loss": 0.0})
    assert len(read_run(tmp_path).metrics) == 3


def test_a_metric_called_step_is_refused(tmp_path: Path) -> None:
    with (
        RunDirectory.create(tmp_path, "rl", CONFIG) as run,
        pytest.raises(ValueError, match="step is the row's own key"),
    ):
        run.log_metrics(1, {"step": 2})


def test_resume_of_nothing_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no run at .*nowhere; expected a run directory"):
        RunDirectory.resume(tmp_path / "nowhere", CONFIG)
    assert not (tmp_path / "nowhere").exists()


def test_resume_with_another_configuration_lists_the_differences(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path, "rl", CONFIG).close()
    with pytest.raises(UserError) as caught:
        RunDirectory.resume(tmp_path, CONFIG | {"lr": 2e-5, "limit": 5, "knobs": {"beta": 0.1}, "steps": 9})
    for phrase in (
        "lr was 1e-05, now 2e-05",
        "limit was not set, now 5",
        "knobs.beta was 0.04, now 0.1",
        "steps was 6, now 9",
    ):
        assert phrase in str(caught.value)
    assert read_run(tmp_path).environment["resumed"] == []


def test_what_may_differ_is_kept_from_then_on_and_the_resumption_is_noted(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path, "rl", CONFIG).close()
    RunDirectory.resume(tmp_path, CONFIG | {"steps": 9}, may_differ=("steps",), environment={"device": "cpu"}).close()
    with RunDirectory.resume(tmp_path, CONFIG | {"steps": 9}, environment={"device": "gpu"}) as directory:
        assert (directory.environment["device"], directory.before["device"]) == ("gpu", "cpu")
    with RunDirectory.resume(tmp_path, CONFIG | {"steps": 9}, environment={"device": "tpu"}) as directory:
        assert directory.before["device"] == "gpu"
    run = read_run(tmp_path)
    assert run.config["steps"] == 9
    assert [resumed["device"] for resumed in run.environment["resumed"]] == ["cpu", "gpu", "tpu"]
    assert not list(tmp_path.glob(".*.new"))


def edited(run: Path, **changes: Any) -> dict[str, Any]:
    """Change the file of a run's configuration; returns what it says then."""
    config = read_run(run).config | changes
    (run / "config.toml").write_text(dumps(config))
    return config


def test_a_file_that_was_edited_is_compared_with_what_the_run_was_doing(tmp_path: Path) -> None:
    began = CONFIG | {"decay": math.inf, "names": ["a", "b"], "seeds": [1], "sampling": {"top_p": 0.5}, "dora": False}
    RunDirectory.create(tmp_path, "rl", began).close()
    RunDirectory.resume(tmp_path, read_run(tmp_path).config).close()  # as it was
    config = edited(tmp_path, lr=2e-5, limit=5, knobs={"beta": 0.1}, decay=1.0, names=["a"], dora=True, steps=9)
    with pytest.raises(UserError) as caught:
        RunDirectory.resume(tmp_path, config, may_differ=("steps",))
    assert str(caught.value) == (
        f"{tmp_path}/config.toml has been edited: lr was 1e-05, now 2e-05; decay was inf, now 1.0; "
        'names was ["a", "b"], now ["a"]; dora was false, now true; knobs.beta was 0.04, now 0.1; limit was not set, '
        "now 5; to continue as before, undo that, or type `lr=1e-05` `decay=inf` `dora=False` `beta=0.04`"
    )
    with pytest.raises(UserError, match=r"was started with another configuration: seed was 7, now 8; resume"):
        RunDirectory.resume(tmp_path, began | {"seed": 8})
    RunDirectory.resume(tmp_path, began | {"steps": 9}, may_differ=("steps",)).close()  # typed, whatever the file says
    assert read_run(tmp_path).config == plain(began | {"steps": 9})
    RunDirectory.resume(tmp_path, edited(tmp_path, steps=12), may_differ=("steps",)).close()
    with pytest.raises(UserError, match=r"edited: steps was 12, now 9; "):
        RunDirectory.resume(tmp_path, edited(tmp_path, steps=9))


def test_a_run_that_kept_no_options_is_gone_on_with_as_its_file_says(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path, "rl", CONFIG).close()
    about = json.loads((tmp_path / "environment.json").read_text())
    del about["options"]
    (tmp_path / "environment.json").write_text(json.dumps(about))
    RunDirectory.resume(tmp_path, edited(tmp_path, lr=2e-5)).close()
    with pytest.raises(UserError, match=r"edited: lr was 2e-05, now 3e-05; "):
        RunDirectory.resume(tmp_path, edited(tmp_path, lr=3e-5))


def test_options_that_were_renamed_are_the_same_option(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path, "rl", {"centring": 0.01}).close()
    RunDirectory.resume(tmp_path, read_run(tmp_path).config).close()
    assert read_run(tmp_path).config == {"center_rewards": 0.01}


def test_a_run_that_another_process_writes_cannot_be_resumed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready, done = context.Event(), context.Event()

    def busy() -> None:
        with RunDirectory.create(tmp_path / "run", "rl", CONFIG):
            ready.set()
            done.wait(20)

    child = context.Process(target=busy)
    child.start()
    try:
        assert ready.wait(20)
        with pytest.raises(UserError, match="is being written by another process"):
            RunDirectory.resume(tmp_path / "run", CONFIG)
    finally:
        done.set()
        child.join()
    RunDirectory.resume(tmp_path / "run", CONFIG).close()


def test_a_worker_that_outlives_a_killed_run_does_not_hold_it(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", "rl", CONFIG)
    context = multiprocessing.get_context("fork")
    done = context.Event()
    worker = context.Process(target=done.wait, args=(20,))
    worker.start()
    try:
        run.close()
        RunDirectory.resume(tmp_path / "run", CONFIG).close()
        asked = context.Process(target=lambda: RunDirectory.resume(tmp_path / "run", CONFIG).close())
        asked.start()
        asked.join()
        assert asked.exitcode == 0
    finally:
        done.set()
        worker.join()


def test_the_environment_is_json_that_people_can_read(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path, "rl", CONFIG, environment={"dtype": Path("x")}).close()
    text = (tmp_path / "environment.json").read_text()
    assert json.loads(text)["dtype"] == "x" and "\n  " in text


def test_the_folder_is_described_at_the_top_of_the_file() -> None:
    text = str(run_directory.__doc__)
    for name in ("config.toml", "environment.json", "metrics.jsonl", "samples.jsonl", "checkpoints/", "report.html"):
        assert name in text
