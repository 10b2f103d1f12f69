"""A pipeline of real commands that waits for people: stopped while it waits, resumed, and answered while it waits."""

import json
import signal
import subprocess
import sys
import time

from posttrain.annotation.store import projects, work
from posttrain.annotation.store.database import open_store
from tests.annotation.worlds import add_user

TEXT = """
[with]
enough = 1.0
[[stage]]
name = "asked"
run = "annotate import"
dataset = "items.jsonl"
store = "annotation.db"
project = "p"
kind = "compare"
annotators_per_item = 1
[[stage]]
name = "answers"
run = "annotate export"
after = "${asked}"
store = "annotation.db"
project = "p"
to = "pairs"
wait = "${enough}"
"""


def start(folder, *words):
    command = [sys.executable, "-m", "posttrain", "pipeline", *words, "--json"]
    told = (folder / "told").open("w")
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=told, text=True)


def wait_until_said(folder, process, text):
    while text not in (said := (folder / "told").read_text()):
        assert process.poll() is None, said
        time.sleep(0.05)


def compare(store, user, better):
    with store.write() as connection:
        given = work.next_for(connection, projects.find(connection, "p"), user)
        answer = {"better": better, "strength": 3}
        work.answer(connection, given, answer, sending=f"sent {given.id}", version=0, seconds=1)
        return given.item.name


def test_a_pipeline_that_waits_for_people_is_stopped_resumed_and_answered(tmp_path):
    (tmp_path / "p.toml").write_text(TEXT)
    items = [{"item": f"q{n}", "prompt": "Which?", "completions": ["this", "that"]} for n in range(2)]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    process = start(tmp_path, "p.toml", "--output", "out")
    wait_until_said(tmp_path, process, "0 of 2 items annotated (0 of 2 annotations, 0 people); waiting for 100%")
    store = open_store(str(tmp_path / "annotation.db"))
    ann = add_user(store, "ann", "p")
    first = compare(store, ann, 1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    again = f"stopped by SIGTERM in stage 'answers'; to go on, type: posttrain pipeline --resume {tmp_path}/out"
    assert again in (tmp_path / "told").read_text()
    process = start(tmp_path, "--resume", "out")
    wait_until_said(tmp_path, process, "1 of 2 items annotated (1 of 2 annotations, 1 people)")
    assert not (tmp_path / "out" / "answers" / "output.jsonl").exists()
    second = compare(store, ann, 0)
    store.close()
    told, _ = process.communicate(timeout=30)
    assert process.returncode == 0, (tmp_path / "told").read_text()
    rows = [json.loads(line) for line in (tmp_path / "out" / "answers" / "output.jsonl").read_text().splitlines()]
    assert {row["item"]: row["chosen"] for row in rows} == {first: "that", second: "this"}
    states = [json.loads(line) for line in (tmp_path / "out" / "stages.jsonl").read_text().splitlines()]
    states = [(row["stage"], row["state"]) for row in states]
    assert states == [
        *(("asked", "begun"), ("asked", "done")),
        *(("answers", "begun"), ("answers", "stopped"), ("answers", "begun"), ("answers", "done")),
    ]
    assert [stage["result"] for stage in json.loads(told)["stages"]] == [
        {"project": "p", "items": 2, "there": 0, "skipped": 0, "unasked": 0},
        {"path": f"{tmp_path}/out/answers/output.jsonl", "rows": 2},
    ]
