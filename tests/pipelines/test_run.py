"""Pipelines that run, with a program in place of posttrain that takes no time (stub.py): order, resume, signals."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain import pipelines
from posttrain.cli import main
from posttrain.pipelines import process
from posttrain.runs.processes import born

STUB = Path(__file__).with_name("stub.py")
TEXT = """
title = "three stages"
[with]
lr = 1e-5
[evaluate]
dataset = "gym:chain_sum"
[[stage]]
name = "cold"
run = "sft"
dataset = "rows.jsonl"
[[stage]]
name = "kept"
run = "best-of-n"
model = "${cold}"
dataset = "gym:chain_sum"
reward = "gym"
[[stage]]
name = "again"
run = "sft"
lr = "${lr}"
dataset = "${kept}"
"""
ALL = ["cold", "cold.evaluate", "kept", "again", "again.evaluate"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    for where in (pipelines, process):
        monkeypatch.setattr(where, "PROGRAM", (sys.executable, str(STUB)))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_text(TEXT)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    return tmp_path


def run(capsys, *words):
    """Exit code, JSON or None, the last line that people see, and which stages were called."""
    capsys.readouterr()
    Path("calls.jsonl").unlink(missing_ok=True)
    code = main(["pipeline", *words, "--json"])
    out, err = capsys.readouterr()
    calls = (
        [json.loads(line) for line in Path("calls.jsonl").read_text().splitlines()]
        if Path("calls.jsonl").exists()
        else []
    )
    return code, json.loads(out.splitlines()[-1]) if out else None, (err.splitlines() or [""])[-1], calls


def test_stages_run_in_order_and_gains_are_paired_by_task(capsys, here):
    code, found, _, calls = run(capsys, "p.toml", "--output", "out", "--with", "lr=2e-5")
    assert code == 0 and [name for _, name, _ in calls] == ALL
    assert (here / "out" / "again.toml").read_text().splitlines() == [
        "lr = 2e-05",
        f'dataset = "{here}/out/kept/output.jsonl"',
    ]
    cold, kept, again = found["stages"]
    assert (cold["tokens"], cold["evaluation"]["accuracy"], cold["gain"]) == (42, 0.25, None)
    assert kept["result"]["kept"] == 3 and kept["gain"] is None
    # tasks were solved by 1/2 and 0 of the samples, then by 1 and 1/2
    value, (low, high), n = again["gain"].values()
    assert (value, n) == (0.5, 2) and -1 < low < 0.5 < high <= 1
    page = (here / "out" / "report.html").read_text()
    assert "three stages" in page and "+0.500 (" in page
    assert main(["pipeline", "--resume", "out"]) == 0
    table = capsys.readouterr().out
    assert "0.250 (0.100 to 0.900)" in table and "4 prompts, 3 kept" in table and "href" not in table


def test_what_is_done_is_skipped_and_what_failed_is_done_again(capsys, here):
    (here / "kept.does").write_text("fail")
    code, found, said, calls = run(capsys, "p.toml", "--output", "out")
    assert (code, found) == (2, None) and [name for _, name, _ in calls] == ALL[:3]
    assert said == (
        "posttrain: stage 'kept' (posttrain best-of-n) ended with exit code 2, after what is said above; correct that, "
        f"then type: posttrain pipeline --resume {here}/out"
    )
    code, _, _, calls = run(capsys, "--resume", "out")
    assert code == 0 and [name for _, name, _ in calls] == ALL[2:]
    assert run(capsys, "--resume", "out")[0::3] == (0, [])
    rows = [json.loads(line) for line in (here / "out" / "stages.jsonl").read_text().splitlines()]
    assert [row["state"] for row in rows if row["stage"] == "kept"] == ["begun", "failed", "begun", "done"]


@pytest.mark.parametrize(
    ("does", "code", "how"), [("signal", 130, "stopped by SIGINT"), ("die", 1, "ended with signal SIGKILL")]
)
def test_a_stage_that_a_signal_ends_is_resumed(capsys, here, does, code, how):
    (here / "again.does").write_text(does)
    found, _, said, _ = run(capsys, "p.toml", "--output", "out")
    assert found == code and how in said and said.endswith(f"posttrain pipeline --resume {here}/out")
    found, _, _, calls = run(capsys, "--resume", "out")
    assert (found, calls[0]) == (0, ["sft", "again", "resume"]) and len(calls) == 2


def test_a_process_that_outlived_its_pipeline_is_ended_first(capsys, here):
    (here / "again.does").write_text("die")
    run(capsys, "p.toml", "--output", "out")
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    journal = here / "out" / "stages.jsonl"
    rows = [json.loads(line) for line in journal.read_text().splitlines()][
        :-1
    ]  # killed before it could say how it ended
    assert rows[-1]["state"] == "begun"
    rows[-1] |= {"pid": left.pid, "born": born(left.pid)}
    journal.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run(capsys, "--resume", "out")[0] == 0
    assert left.wait(10) == -signal.SIGTERM


def test_a_stage_that_changed_is_refused_unless_that_is_accepted(capsys, here):
    assert run(capsys, "p.toml", "--output", "out")[0] == 0
    code, _, said, calls = run(capsys, "--resume", "out", "--with", "lr=3e-5")
    assert (code, calls) == (2, [])
    assert said == (
        "posttrain: stage 'again' has begun and is another one now: lr was 1e-05, now 3e-05; undo that, or type "
        '--accept-changes "again" to do it again, and all that needs it'
    )
    code, _, _, calls = run(capsys, "--resume", "out", "--with", "lr=3e-5", "--accept-changes", "again")
    assert code == 0 and [name for _, name, _ in calls] == ALL[3:]
    assert (here / "out" / "again.old-1").is_dir() and (here / "out" / "again.evaluate.old-1").is_dir()
    (here / "rows.jsonl").write_text('{"prompt": "a", "completion": "c"}\n')
    code, _, said, _ = run(capsys, "--resume", "out")
    assert code == 2 and "stage 'cold' has begun and is another one now: a file that it reads has changed" in said
    (here / "kept.does").write_text("fail")
    assert run(capsys, "--resume", "out", "--accept-changes", "cold")[0] == 2
    code, _, _, calls = run(capsys, "--resume", "out")  # those that need the changed one are others, too
    assert code == 0 and [name for _, name, _ in calls] == ALL[2:]


def test_a_dry_run_plans_what_can_be_planned_and_writes_nothing(capsys, here):
    before = sorted(here.iterdir())
    assert main(["pipeline", "p.toml", "--dry-run"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told == [
        "cold: sft of tiny, about 1.5 minutes, 2.0 GB of memory, 1.0 GB of disk; it is small",
        "cold.evaluate: evaluate, after cold",
        "kept: best-of-n, after cold",
        "again: sft, after kept",
        "again.evaluate: evaluate, after again",
        "in all: checkpoints of 2 stages to train take up to 2.0 GB and 1.5 GB are free; make room, or keep fewer "
        "(keep_last)",
    ]
    assert sorted(path for path in here.iterdir() if path.name != "calls.jsonl") == before
    (here / "again.does").write_text("fail")
    run(capsys, "p.toml", "--output", "out")
    code, found, _, calls = run(capsys, "--resume", "out", "--dry-run")
    assert code == 0 and found["stages"]["kept"] == "done" and found["stages"]["again"]["command"] == "sft"
    assert found["disk_bytes"] == 1e9 and found["warnings"] == [] and calls == [["sft", "again", "begin"]]
    (here / "again.does").write_text("fail")
    code, _, said, _ = run(capsys, "--resume", "out", "--dry-run")
    assert code == 2 and said.endswith("p.toml: it cannot be")


def test_a_mistake_in_a_stage_may_be_corrected(capsys, here):
    (here / "again.does").write_text("fail")
    assert run(capsys, "p.toml", "--output", "out")[0] == 2
    code, _, _, calls = run(capsys, "--resume", "out", "--with", "lr=3e-5")
    assert code == 0 and calls[0] == ["sft", "again", "begin"]


def test_an_unknown_stage_and_a_used_directory_are_said(capsys, here):
    assert run(capsys, "p.toml", "--output", "out")[0] == 0
    code, _, said, calls = run(capsys, "p.toml", "--output", "out")
    assert code == 2 and "is not empty; pass a new or empty one, or type --resume out" in said and not calls
    code, _, said, _ = run(capsys, "--resume", "out", "--accept-changes", "colt")
    assert code == 2 and "unknown stage in --accept-changes: 'colt'; did you mean 'cold'" in said
