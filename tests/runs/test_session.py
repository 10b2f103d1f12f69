"""The session with a loop that trains a number: what failures, signals and evaluations cost a run."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import posttrain
from posttrain.data.packing import Example
from posttrain.errors import CheckpointError, RewardError, TrainingError, UserError
from posttrain.runs import Sample, read_run
from posttrain.runs.progress import Progress
from posttrain.runs.session import open_session
from posttrain.runs.training import Evaluations, Training, patience
from posttrain.training import checkpoint
from posttrain.training.schedule import LearningRate

BATCH = [Example((1,), (2, 3), (True, True))]
MEASURED = ("seconds/", "tokens_per_second", "memory_gb")


class Number:
    """Something trained: each update adds to it."""

    def __init__(self):
        self.value = 0

    def save(self, folder: Path) -> None:
        (folder / "number.json").write_text(json.dumps(self.value))

    def restore(self, folder: Path) -> None:
        self.value = json.loads((folder / "number.json").read_text())


def train(*, steps=6, every=2, save_every=100, held=True, before_rollout=None, in_update=None, after_update=None,
          in_evaluation=None, stop_after=0, sampled=True, scores=lambda step: float(step), **where):  # fmt: skip
    """A run of `steps`; what is given is called with the step's number at that place. Returns session and number."""
    number = Number()

    def score(row):
        return row.get("evaluation/score")

    def examine():
        if in_evaluation:
            in_evaluation(session.step)
        return {"evaluation/score": scores(session.step), "evaluation/number": float(number.value)}

    training = Training(
        steps=steps,
        trained=number,
        rate=LearningRate(1.0, 0, "linear", steps),
        evaluations=Evaluations(every, held, held, score, patience(stop_after, score)),
        environment={"steps": steps},
        save_every=save_every,
        keep_last=2,
        headline={},
    )
    with open_session("toy", {"steps": steps}, training, **{"quiet": True} | where) as session:
        seen = session.state.get("seen", 0)
        session.evaluate(examine)
        for step in session.steps():
            if sampled:
                with session.rollout() as rollout:
                    rollout.tokens = 4
                    if before_rollout:
                        before_rollout(step)
            with session.update(BATCH):
                number.value += step + 1
                if in_update:
                    in_update(step)
            if after_update:
                after_update(step)
            seen += 1
            metrics = {"number": float(number.value), "seen": float(seen)}
            session.finish_step(metrics, [Sample("p", f"c{step}")], state={"seen": seen})
            session.evaluate(examine)
    return session, number


def last(run: Path) -> checkpoint.Checkpoint:
    """The newest checkpoint of a run that has one."""
    found = checkpoint.latest(run / "checkpoints")
    assert found is not None
    return found


def fail_at(step: int, error: type[Exception] = RewardError, why: str = "the judge is down"):
    def fail(now):
        if now == step:
            raise error(why)

    return fail


def files(run):
    """What a run has written, without the machine's speed."""
    found = read_run(run)
    rows = [{key: value for key, value in row.items() if not key.startswith(MEASURED)} for row in found.metrics]
    kept = last(run)
    return rows, found.samples, (kept.step, kept.state, kept.score, (kept.path / "number.json").read_text())


@pytest.fixture
def whole(tmp_path):
    train(output=tmp_path / "whole")
    return files(tmp_path / "whole")


@pytest.fixture
def said(monkeypatch):
    """What the progress of runs says."""
    lines = []
    monkeypatch.setattr(Progress, "say", lambda self, message: lines.append(message))
    return lines


def test_rows_evaluations_and_learning_rates_are_those_of_the_steps(whole):
    rows, samples, (step, state, score, number) = whole
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5, 6]
    assert [row.get("number") for row in rows] == [None, 1, 3, 6, 10, 15, 21]
    assert [row.get("evaluation/score") for row in rows] == [0, None, 2, None, 4, None, 6]
    assert [round(row["lr"], 6) for row in rows[1:]] == [1.0, 0.833333, 0.666667, 0.5, 0.333333, 0.166667]
    assert [sample["completion"] for sample in samples] == ["c0", "c1", "c2", "c3", "c4", "c5"]
    assert (step, state, score, number) == (6, {"seen": 6}, 6.0, "21")


@pytest.mark.parametrize("at", [0, 1, 2, 4])
def test_a_reward_that_fails_costs_no_finished_step(tmp_path, whole, at):
    run = tmp_path / "run"
    with pytest.raises(RewardError, match="the judge is down") as failure:
        train(output=run, before_rollout=fail_at(at))
    if at == 0:
        assert checkpoint.latest(run / "checkpoints") is None
        return
    assert last(run).step == at and read_run(run).metrics[-1]["step"] == at
    assert failure.value.__notes__ == [f"step {at} is saved in {run}, `resume` continues from there"]
    train(resume=run)
    assert files(run) == whole


@pytest.mark.parametrize("kind", [TrainingError, CheckpointError, SystemExit])
@pytest.mark.parametrize("place", ["before_rollout", "in_evaluation"])
def test_what_fails_before_an_update_costs_no_finished_step_whatever_its_kind(tmp_path, whole, place, kind):
    run, at = tmp_path / "run", {"before_rollout": 3, "in_evaluation": 4}[place]
    fails: Any = {place: fail_at(at, kind)}  # such as a logit that is not finite, while sampling
    with pytest.raises(kind) as failure:
        train(output=run, **fails)
    assert last(run).step == at and failure.value.__notes__ == [
        f"step {at} is saved in {run}, `resume` continues from there"
    ]
    train(resume=run)
    assert files(run) == whole


def test_a_checkpoint_that_cannot_be_saved_is_tried_once(tmp_path, monkeypatch):
    tried = []

    def full(self, folder):
        tried.append(folder)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Number, "save", full)
    with pytest.raises(CheckpointError, match="no space left"):
        train(output=tmp_path / "run")
    assert len(tried) == 1


@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_update_that_fails_leaves_the_last_checkpoint(tmp_path, whole, at):
    run = tmp_path / "run"
    with pytest.raises(RuntimeError, match="half an update"):
        train(output=run, in_update=fail_at(at, RuntimeError, "half an update"))
    found = checkpoint.latest(run / "checkpoints")
    assert (found.step if found else None) == {1: None, 2: 2, 3: 2}[at]
    assert json.loads((run / f"failed-step-{at + 1:06d}.json").read_text())["token_ids"] == [[1, 2, 3]]
    if found:
        train(resume=run)
        assert files(run) == whole


def test_what_fails_after_an_update_is_no_finished_step(tmp_path, whole):
    with pytest.raises(RuntimeError):
        train(output=tmp_path / "run", after_update=fail_at(3, RuntimeError))
    assert last(tmp_path / "run").step == 2  # not 3, with the weights of 4
    train(resume=tmp_path / "run")
    assert files(tmp_path / "run") == whole


@pytest.mark.parametrize("at", [2, 6])
def test_an_evaluation_that_fails_loses_no_update_and_is_made_up_for(tmp_path, whole, at):
    run = tmp_path / "run"
    with pytest.raises(RewardError):
        train(output=run, in_evaluation=fail_at(at))
    rows, samples, (step, state, score, _) = files(run)
    assert (rows[-1]["step"], step, score) == (at, at, None) and "evaluation/score" not in rows[-1]
    assert state["seen"] == at and samples[-1]["completion"] == f"c{at - 1}"
    with pytest.raises(RewardError):  # and again
        train(resume=run, in_evaluation=fail_at(at))
    assert last(run).step == at
    train(resume=run)
    assert files(run) == whole


@pytest.mark.parametrize("place", ["in_evaluation", "before_rollout"])
def test_a_run_that_failed_in_its_first_step_starts_again(place, tmp_path, whole, said):
    run = tmp_path / "run"
    where: Any = {place: fail_at(0), "output": run}
    with pytest.raises(RewardError):
        train(**where)
    train(resume=run)
    assert files(run) == whole and said == ["the run has no checkpoint yet, and starts from its first step"]


def test_a_run_that_was_killed_while_its_first_checkpoint_was_written_starts_again(tmp_path, whole):
    """Its row is there already."""
    run = tmp_path / "run"
    with pytest.raises(RewardError):
        train(output=run, before_rollout=fail_at(2))
    shutil.rmtree(run / "checkpoints")
    train(resume=run)
    assert files(run) == whole


def test_a_run_that_has_all_its_steps_says_so(tmp_path, whole, said):
    train(output=tmp_path / "run")
    assert said == []
    train(resume=tmp_path / "run")
    assert files(tmp_path / "run") == whole
    assert [line for line in said if "all its steps" in line] == [
        "the run has all its steps, 6; pass a larger `steps` to train further"
    ]


def test_a_run_is_not_resumed_with_fewer_steps_than_it_has(tmp_path):
    run = tmp_path / "run"
    train(output=run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="has 6 steps, more than `steps` 5; pass `steps` 6 or more"):
        train(resume=run, steps=5)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(("steps", "every", "report"), [(6, 2, False), (3, 0, True)])
def test_rows_of_a_run_whose_checkpoints_are_gone_are_kept(steps, every, report, tmp_path):
    run = tmp_path / "run"
    train(output=run, steps=steps, every=every)
    before = (run / "metrics.jsonl").read_bytes()
    shutil.rmtree(run / "checkpoints")
    if not report:
        (run / "report.html").unlink()
    with pytest.raises(UserError, match="has no checkpoint, although the run had saved one; restore it"):
        train(resume=run, steps=steps, every=every)
    assert (run / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("place", ["before_rollout", "in_evaluation"])
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_sampling_and_evaluations_at_once(tmp_path, whole, sent, place):
    at, after = (3, []) if place == "before_rollout" else (4, [])

    def hang(now):
        if now == at:
            try:
                signal.raise_signal(sent)
                after.append("went on")
            except Exception:  # as a reward may
                after.append("swallowed")

    where: Any = {place: hang, "output": tmp_path / "run"}
    session, _ = train(**where)
    assert after == [] and (session.interrupted, session.step) == (sent.name, at)
    assert last(tmp_path / "run").step == at
    session, _ = train(resume=tmp_path / "run")
    assert session.interrupted == "" and files(tmp_path / "run") == whole


def test_a_signal_in_the_last_evaluation_interrupts_the_run(tmp_path, whole):
    run = tmp_path / "run"
    session, _ = train(output=run, in_evaluation=lambda step: step == 6 and signal.raise_signal(signal.SIGTERM))
    assert (session.step, session.interrupted) == (6, "SIGTERM")
    session, _ = train(resume=run)
    assert session.interrupted == "" and files(run) == whole


@pytest.mark.parametrize("at", [2, 3])
def test_a_signal_in_an_update_lets_it_end(tmp_path, whole, at):
    run = tmp_path / "run"
    session, number = train(output=run, in_update=lambda step: step == at and signal.raise_signal(signal.SIGTERM))
    assert (session.step, number.value) == (at + 1, sum(range(1, at + 2)))
    assert last(run).step == at + 1
    train(resume=run)
    assert files(run) == whole


def test_a_signal_ends_a_run_that_samples_nothing_after_the_update(tmp_path):
    session, _ = train(
        output=tmp_path / "run",
        sampled=False,
        in_update=lambda step: step == 2 and signal.raise_signal(signal.SIGTERM),
    )
    assert (session.step, session.interrupted) == (3, "SIGTERM")
    assert "tokens_per_second" in (row := read_run(tmp_path / "run").metrics[-1]) and "seconds/rollout" not in row


def test_a_run_that_is_gone_on_with_may_have_more_steps_and_other_options_not(tmp_path, whole, said):
    longer, _ = train(resume=tmp_path / "whole", steps=8, quiet=False)
    assert longer.step == 8 and "changed options: steps was 6, now 8" in said
    said.clear()
    train(resume=tmp_path / "whole", steps=8)
    assert not [line for line in said if "other options" in line]
    training = Training(8, Number(), LearningRate(1.0, 0, "linear", 8), Evaluations(0, False, False), {}, 100, 2, {})
    moved = {"steps": 8, "offload_optimizer": True}
    with open_session("toy", moved, training, resume=tmp_path / "whole", quiet=True) as session:
        assert session.step == 8
    with (
        pytest.raises(UserError, match="other"),
        open_session("toy", {"steps": 8, "other": 1}, training, resume=tmp_path / "whole", quiet=True),
    ):
        pass
    train(resume=tmp_path / "whole", steps=9, quiet=True)
    assert not [line for line in said if "changed options" in line]


def test_an_evaluation_that_was_made_is_not_made_again(tmp_path):
    seen = []

    def examine():
        seen.append(session.step)
        return {"evaluation/score": 1.0}

    training = Training(1, Number(), LearningRate(1.0, 0, "linear", 1), Evaluations(1, True, True), {}, 100, 2, {})
    with open_session("toy", {"steps": 1}, training, output=tmp_path / "run", quiet=True) as session:
        session.evaluate(examine)
        session.evaluate(examine)
        for _ in session.steps():
            with session.update(BATCH):
                pass
            session.finish_step({})
            session.evaluate(examine)
            session.evaluate(examine)
    assert seen == [0, 1]


def test_the_last_step_is_evaluated_whichever_it_is(tmp_path):
    train(output=tmp_path / "run", steps=5)
    assert [row["step"] for row in read_run(tmp_path / "run").metrics if "evaluation/score" in row] == [0, 2, 4, 5]


def test_a_run_ends_when_evaluations_are_no_better(tmp_path, capsys):
    session, _ = train(output=tmp_path / "run", stop_after=2, steps=20, scores=lambda step: [1, 5, 4, 5, 9][step // 2])
    assert (session.step, session.stopped, session.interrupted) == (
        6,
        "no improvement for 2 evaluations (`stop_after`)",
        "",
    )
    assert "stopped after step 6: no improvement for 2 evaluations" in capsys.readouterr().err
    best = checkpoint.best(tmp_path / "run" / "checkpoints")
    assert best and best.step == 2
    again, _ = train(resume=tmp_path / "run", stop_after=2, steps=20)
    assert again.step == 6  # it stays finished


@pytest.mark.parametrize("nothing", [math.nan, math.inf])
def test_a_score_that_is_not_finite_chooses_nothing_and_loses_nothing(tmp_path, nothing):
    def scores(step):
        return nothing if step == 4 else float(step == 2)

    train(output=tmp_path / "run", scores=scores)
    best = checkpoint.best(tmp_path / "run" / "checkpoints")
    assert best and best.step == 2 and last(tmp_path / "run").step == 6
    assert [row["evaluation/score"] for row in read_run(tmp_path / "run").metrics[::2]] == [0, 1, None, 0]
    session, _ = train(output=tmp_path / "other", scores=scores, stop_after=2, steps=20)
    assert session.step == 8  # 6 and 8 were no better than 2


def test_without_evaluations_only_due_checkpoints_and_the_last_are_saved(tmp_path):
    train(output=tmp_path / "run", held=False, every=0, save_every=4, steps=5)
    assert [row["step"] for row in read_run(tmp_path / "run").metrics] == [1, 2, 3, 4, 5]
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")) == [
        "step-000004",
        "step-000005",
    ]


def test_a_damaged_checkpoint_is_passed_over_and_said(tmp_path, whole, capsys):
    run = tmp_path / "run"
    with pytest.raises(RewardError):
        train(output=run, before_rollout=fail_at(5))
    (run / "checkpoints" / "step-000005" / "number.json").write_text("99")
    train(resume=run)
    assert "skipped damaged checkpoint: step-000005" in (said := capsys.readouterr().err)
    assert "resuming from step 4" in said
    assert files(run) == whole


HANG = """
import sys, time
from pathlib import Path
from tests.runs.test_session import train
from posttrain.rewards import from_function, Weighted
from posttrain.rewards.reward import apart, score_all
from posttrain.background import finish
from posttrain.types import Episode, Message, Task

def hanging(completion):
    print("ready", flush=True)
    time.sleep(120)
    return 1.0

episode = Episode(Task((Message("user", "?"),)), (Message("user", "?"), Message("assistant", "!")))
def score(step):
    if step == 1:
        finish(score_all(from_function(hanging), apart([episode]), timeout_s=300))
session, _ = train(output=Path(sys.argv[1]), before_rollout=score)
print(session.step, session.interrupted, flush=True)
"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_reward_that_hangs_does_not_delay_a_signal(tmp_path, sent):
    path = f"{Path(posttrain.__file__).parents[1]}{os.pathsep}{Path(__file__).parents[2]}"
    process = subprocess.Popen(
        [sys.executable, "-c", HANG, str(tmp_path / "run")],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    began = time.monotonic()
    process.send_signal(sent)
    said, _ = process.communicate(timeout=60)
    assert time.monotonic() - began < 5
    assert said == f"1 {sent.name}\n" and process.returncode == 0
    assert last(tmp_path / "run").step == 1
