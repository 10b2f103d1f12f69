"""Trackers, each with its real library and without a network; and what one costs that is down or hangs."""

import json
import sqlite3
import struct
import threading
import time
from pathlib import Path

import pytest

from posttrain.errors import RewardError, UserError
from posttrain.runs import read_run
from posttrain.runs.trackers import TRACKERS, Sender, TrackedRun, Tracking, open_trackers
from tests.runs.test_session import fail_at, train


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def patient(monkeypatch):
    """On a busy machine a library may take longer than a run waits for it."""
    monkeypatch.setattr("posttrain.runs.trackers.LAST_WAIT_S", 120.0)


def interrupted_and_resumed(run, tracker):
    """A run that fails in its fourth step and goes on, without being told again how it is tracked."""
    tracking = Tracking((tracker,), project="p", name="n", tags=("first", "small"))
    with pytest.raises(RewardError):
        train(output=run, before_rollout=fail_at(3), tracking=tracking)
    kept = json.loads((run / "trackers.json").read_text())
    train(resume=run)
    assert json.loads((run / "trackers.json").read_text()) == kept  # the same run there
    return kept["ids"][tracker], {row["step"]: row for row in read_run(run).metrics}


def test_mlflow_has_the_rows_of_a_run_that_went_on_as_one_run(patient, tmp_path):
    from mlflow.tracking import MlflowClient

    identity, rows = interrupted_and_resumed(tmp_path / "run", "mlflow")
    client = MlflowClient()
    experiment = client.get_experiment_by_name("p")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_id, found.info.run_name, found.info.status) == (identity, "n", "FINISHED")
    assert found.data.params == {"steps": "6"}
    assert {"first", "small"} <= found.data.tags.keys()
    points = {point.step: point.value for point in client.get_metric_history(identity, "number")}
    assert points == {step: row["number"] for step, row in rows.items() if step}
    scores = {point.step: point.value for point in client.get_metric_history(identity, "evaluation/score")}
    assert scores == {0: 0.0, 2: 2.0, 4: 4.0, 6: 6.0}


def test_trackio_has_the_rows_of_a_run_that_went_on_as_one_run(patient, tmp_path, capfd):
    _, rows = interrupted_and_resumed(tmp_path / "run", "trackio")
    assert capfd.readouterr().out == ""  # standard output is for answers
    with sqlite3.connect(next((tmp_path / "trackio").glob("p*.db"))) as database:
        found = database.execute("select run_id, run_name, step, metrics from metrics order by step, id").fetchall()
        configs = database.execute("select config from configs").fetchall()
    assert {name for _, name, _, _ in found} == {"n"} and len({identity for identity, *_ in found}) == 1
    assert {step: json.loads(text).get("number") for _, _, step, text in found} == {
        step: row.get("number") for step, row in rows.items()
    }
    assert any(json.loads(text).get("tags") == "first, small" for (text,) in configs)


def records_of(log: bytes) -> list[bytes]:
    """The records of wandb's offline file: LevelDB's log format, behind a header of seven bytes."""
    found, at = [], 7
    while at < len(log):
        left = 2**15 - at % 2**15
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", log[at : at + 7])
        data = log[at + 7 : at + 7 + length]
        if kind in (1, 2):  # whole, or the first part
            found.append(b"")
        found[-1] += data
        at += 7 + length
    return found


def test_wandb_has_the_rows_of_a_run_that_went_on_as_one_run(patient, tmp_path):
    from wandb.proto import wandb_internal_pb2

    identity, rows = interrupted_and_resumed(tmp_path / "run", "wandb")
    found, names = {}, set()
    for file in sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")):
        assert file.name == f"run-{identity}.wandb"
        for data in records_of(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                names.add((record.run.project, record.run.display_name, tuple(record.run.tags)))
            if record.HasField("history"):
                row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                found[row["step"]] = row.get("number")
    assert names == {("p", "n", ("first", "small"))}
    assert found == {step: row.get("number") for step, row in rows.items()}


def test_a_tracker_that_cannot_be_reached_costs_no_step(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr("posttrain.runs.trackers.LAST_WAIT_S", 0.2)
    session, _ = train(output=tmp_path / "run", tracking=Tracking(("mlflow",)))
    assert session.step == 6 and len(read_run(tmp_path / "run").metrics) == 7
    said = capsys.readouterr().err
    assert said.count("tracker mlflow failed") == 1 and "the run continues without it" in said
    for thread in threading.enumerate():  # one that still tries would write into the next test's store
        if thread.name == "tracker mlflow":
            thread.join(60)


def test_mlflow_makes_one_run_however_often_it_must_begin(tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    log, failed = MlflowClient.log_batch, []

    def flaky(self, *batch, **rest):
        if len(failed) < 2:
            failed.append(1)
            raise ConnectionError("no route")
        return log(self, *batch, **rest)

    monkeypatch.setattr(MlflowClient, "log_batch", flaky)
    train(output=tmp_path / "run", tracking=Tracking(("mlflow",)))
    experiment = MlflowClient().get_experiment_by_name("posttrain")
    assert experiment is not None
    found = MlflowClient().search_runs([experiment.experiment_id])
    assert len(failed) == 2 and [run.info.status for run in found] == ["FINISHED"]


class Fake:
    """A tracker that is down for its first calls, or hangs."""

    def __init__(self, down=0, hangs=False):
        self.down, self.hangs, self.rows, self.ended = down, hangs, [], None

    def _answer(self):
        if self.hangs:
            time.sleep(60)
        if self.down:
            self.down -= 1
            raise ConnectionError("no route")

    def start(self, run):
        self._answer()
        return f"{run.project}/{run.name}"

    def log(self, step, metrics):
        self._answer()
        self.rows.append(step)

    def finish(self, status):
        self.ended = status


@pytest.mark.parametrize("down", [0, 1, 3])
def test_what_could_not_be_sent_is_sent_later_in_order(down):
    fake, ids, said = Fake(down), {}, []
    sender = Sender("fake", lambda: fake, TrackedRun("p", "n", (), {}, Path()), ids.__setitem__, said.append)
    for step in range(4):
        sender.log(step, {})
    sender.finish("finished")
    assert (fake.rows, fake.ended, ids) == ([0, 1, 2, 3], "finished", {"fake": "p/n"})
    assert said == (["tracker fake failed (ConnectionError: no route); the run continues without it"] if down else [])


def test_a_tracker_that_hangs_delays_only_the_end_and_that_little(monkeypatch):
    monkeypatch.setattr("posttrain.runs.trackers.LAST_WAIT_S", 0.1)
    fake, said = Fake(hangs=True), []
    sender = Sender("fake", lambda: fake, TrackedRun("p", "n", (), {}, Path()), lambda *kept: None, said.append)
    began = time.monotonic()
    for step in range(100):
        sender.log(step, {})
    assert time.monotonic() - began < 1
    sender.finish("finished")
    assert time.monotonic() - began < 2
    assert said == ["tracker fake did not accept the last rows within 0.1 s; metrics.jsonl has them"]


def test_what_was_asked_for_is_kept_though_the_tracker_was_down_from_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr("posttrain.runs.trackers.LAST_WAIT_S", 0.1)
    monkeypatch.setitem(TRACKERS, "mlflow", lambda: Fake(down=100))
    with pytest.raises(RewardError):
        train(output=tmp_path / "run", before_rollout=fail_at(3), tracking=Tracking(("mlflow",), "p", "n", ("t",)))
    fake = Fake()
    monkeypatch.setitem(TRACKERS, "mlflow", lambda: fake)
    monkeypatch.setitem(TRACKERS, "wandb", lambda: fake)
    train(resume=tmp_path / "run")
    assert (fake.rows, fake.ended) == ([4, 5, 6], "finished")
    kept = json.loads((tmp_path / "run" / "trackers.json").read_text())
    assert kept == {"trackers": ["mlflow"], "project": "p", "name": "n", "tags": ["t"], "ids": {"mlflow": "p/n"}}
    train(
        resume=tmp_path / "run", steps=7, tracking=Tracking(("mlflow", "wandb"), "p")
    )  # another beside, as the same run
    kept = json.loads((tmp_path / "run" / "trackers.json").read_text())
    assert (kept["name"], kept["ids"]) == ("n", {"mlflow": "p/n", "wandb": "p/n"})


def test_trackers_that_begin_at_once_all_keep_their_ids(tmp_path, monkeypatch):
    together = threading.Barrier(3)

    class Punctual(Fake):
        def start(self, run):
            together.wait(30)
            return super().start(run)

    for name in TRACKERS:
        monkeypatch.setitem(TRACKERS, name, Punctual)
    for number in range(20):
        (run := tmp_path / str(number)).mkdir()
        said = []
        senders = open_trackers(Tracking(("wandb", "mlflow", "trackio"), name="n"), run, {}, said.append)
        for sender in senders:
            sender.finish("finished")
        ids = json.loads((run / "trackers.json").read_text())["ids"]
        assert said == [] and ids == dict.fromkeys(("wandb", "mlflow", "trackio"), "posttrain/n")


def test_a_tracker_that_does_not_exist_is_named_with_the_nearest_and_a_missing_package_with_its_extra(monkeypatch):
    with pytest.raises(UserError, match="unknown tracker 'wandbb'; did you mean 'wandb'"):
        Tracking(("wandbb",))
    monkeypatch.setattr("posttrain.runs.trackers.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"type: pip install 'posttrain\[wandb\]'"):
        Tracking(("wandb",))
    assert Tracking(("tensorboard",)).trackers == ("tensorboard",)


def test_tensorboard_alone_needs_no_tracker(tmp_path):
    train(output=tmp_path / "run", tracking=Tracking(("tensorboard",)))
    assert not (tmp_path / "run" / "trackers.json").exists()
    assert list((tmp_path / "run").glob("events.out.tfevents.*"))
