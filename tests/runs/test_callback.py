import signal
from typing import Any

import pytest

from posttrain.errors import CallbackError, UserError
from posttrain.runs.callback import Callback, load_callback
from tests.runs.test_session import files, last, train


class Notes(Callback):
    def __init__(self, stop_at=None):
        self.notes, self.stop_at = [], stop_at

    def on_run_start(self, session):
        self.notes.append(("start", session.step))

    def on_step(self, session, step, metrics):
        self.notes.append(("step", step, metrics["number"]))
        if step == self.stop_at:
            session.stop("enough")

    def on_evaluation(self, session, step, metrics):
        self.notes.append(("evaluation", step, metrics["evaluation/score"]))

    def on_checkpoint(self, session, step, folder):
        self.notes.append(("checkpoint", step, folder.name))

    def on_run_end(self, session):
        self.notes.append(("end", session.step))


def test_every_event_is_told_in_its_order(tmp_path):
    notes = Notes()
    train(output=tmp_path / "run", steps=3, callbacks=[notes])
    assert notes.notes == [
        ("start", 0),
        ("evaluation", 0, 0.0),
        ("step", 1, 1.0),
        ("checkpoint", 2, "step-000002"),
        ("step", 2, 3.0),
        ("evaluation", 2, 2.0),
        ("checkpoint", 3, "step-000003"),
        ("step", 3, 6.0),
        ("evaluation", 3, 3.0),
        ("end", 3),
    ]


def test_the_last_checkpoint_comes_before_the_end_of_the_run(tmp_path):
    notes = Notes()
    train(output=tmp_path / "run", steps=3, held=False, every=0, callbacks=[notes])
    assert notes.notes[-3:] == [("step", 3, 6.0), ("checkpoint", 3, "step-000003"), ("end", 3)]


@pytest.mark.parametrize("place", ["before_rollout", "in_update", "in_evaluation"])
def test_a_run_that_a_signal_ends_tells_of_its_end(tmp_path, place):
    notes = Notes()
    where: Any = {place: lambda step: step == 2 and signal.raise_signal(signal.SIGTERM)}
    session, _ = train(output=tmp_path / "run", callbacks=[notes], **where)
    assert session.interrupted == "SIGTERM" and notes.notes[-1] == ("end", session.step)
    assert ("checkpoint", session.step, f"step-{session.step:06d}") in notes.notes


def test_a_callback_needs_to_give_no_reason(tmp_path, capsys):
    class Stops:
        def on_step(self, session, step, metrics):
            session.stop("")

    session, _ = train(output=tmp_path / "run", callbacks=[Stops()])
    assert session.step == 1 and "stopped after step 1: requested by a callback" in capsys.readouterr().err


def test_a_callback_can_end_the_run(tmp_path, capsys):
    session, _ = train(output=tmp_path / "run", callbacks=[Notes(stop_at=3)])
    assert (session.step, session.stopped, session.interrupted) == (3, "enough", "")
    assert last(tmp_path / "run").step == 3
    assert "stopped after step 3: enough" in capsys.readouterr().err


@pytest.mark.parametrize("event", ["on_run_start", "on_step", "on_evaluation", "on_checkpoint", "on_run_end"])
def test_a_callback_that_raises_ends_the_run_with_all_of_it_saved(tmp_path, event):
    train(output=tmp_path / "whole")

    def fail(self, session, *more):
        if event == "on_run_start" or session.step > 2:
            raise KeyError("mine")

    broken = type("Broken", (), {event: fail})()
    with pytest.raises(CallbackError, match=rf"the callback Broken.{event} raised KeyError: 'mine'"):
        train(output=tmp_path / "run", callbacks=[broken])
    if event != "on_run_start":
        train(resume=tmp_path / "run")
        assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_a_callback_comes_from_a_file(tmp_path):
    (tmp_path / "watch.py").write_text(
        "class Watch:\n    def on_step(self, session, step, metrics): pass\n"
        "class Empty: pass\n"
        "class Needy(Watch):\n    def __init__(self, x): pass\n"
        "def function(): pass\n"
    )
    assert type(load_callback(f"{tmp_path}/watch.py:Watch")).__name__ == "Watch"
    for name, message in {
        "Empty": "has none of the methods on_run_start, ",
        "Needy": "cannot be created without arguments",
        "function": "is a function; expected a class",
        "Wach": "did you mean 'Watch'",
    }.items():
        with pytest.raises(UserError, match=message):
            load_callback(f"{tmp_path}/watch.py:{name}")


@pytest.mark.parametrize(
    ("error", "said"), [(AssertionError(), r"AssertionError\n"), (SystemExit(0), r"SystemExit: 0\n")]
)
def test_whatever_a_callback_raises_is_named(tmp_path, error, said):
    class Broken:
        def on_step(self, session, step, metrics):
            raise error

    with pytest.raises(CallbackError, match=f"the callback Broken.on_step raised {said}"):
        train(output=tmp_path / "run", callbacks=[Broken()])
    assert last(tmp_path / "run").step == 1
