"""Completions that are there already get the scores that a run would have given them."""

import json
import os
import subprocess
import sys

import pytest
import torch

from posttrain.cli import main
from posttrain.data import load_tokenizer
from posttrain.engine.scorer import load_scorer
from posttrain.errors import DataError, UserError
from posttrain.models.heads import Calibration, load_reward_model
from posttrain.recipes.score import ScoreCompletions, run
from posttrain.runs import RunDirectory, Sample
from posttrain.types import Message
from tests.recipes.folders import model_folder

ROWS = [
    {"id": "a", "prompt": "20 + 22?", "completion": "<think>x</think>\n#### 42", "answer": "42"},
    {"id": "b", "prompt": "20 + 22?", "completion": "#### 41", "answer": "42"},
    {"id": "c", "messages": [{"role": "user", "content": "20 + 22?"}], "completion": "#### 42 dozen", "answer": 42},
    {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "#### 42"}], "answer": "42"},
    {"id": "e", "prompt": "20 + 22?", "completion": "", "answer": "42"},
]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / "rows.jsonl", ROWS)


def test_scores_by_hand(data):
    scored = run(ScoreCompletions(data, "numbers tags=0.5"), quiet=True)
    assert [row.total for row in scored.rows] == [1.5, 0, 0, 1, 0]
    found = scored.summary()
    assert list(found) == ["n", "mean", "unparsed", "rows"]
    assert (found["n"], found["mean"], found["unparsed"]) == (
        5,
        {"numbers": 0.4, "tags": 0.2},
        {"numbers": 0.4, "tags": 0.0},
    )
    assert found["rows"][0] == {
        "id": "a",
        "scores": {"numbers": 1.0, "tags": 1.0},
        "unparsed": {"numbers": False, "tags": False},
        "parsed": {"numbers": "42", "tags": None},
    }
    assert [row["id"] for row in found["rows"]] == ["a", "b", "c", "rows.jsonl:4", "e"]
    assert [row["scores"]["numbers"] for row in found["rows"]] == [1, 0, 0, 1, 0]
    assert [row["parsed"]["numbers"] for row in found["rows"]] == ["42", "41", "42 dozen", "42", None]


SPANS = """
from posttrain.types import Score, Span

def halves(completion):
    return Score(0.25, spans=(Span(0, 0, 2, 0.5),) if completion else ())
"""


def test_spans_count_in_scores_and_are_written(data, tmp_path):
    (tmp_path / "spans.py").write_text(SPANS)
    reward, output = f"{tmp_path / 'spans.py'}:halves=2", tmp_path / "scored.jsonl"
    found = run(ScoreCompletions(data, reward, output=str(output)), quiet=True)
    assert [row.total for row in found.rows] == [1.5, 1.5, 1.5, 1.5, 0.5]
    assert found.mean == {"halves": pytest.approx(0.65)}
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert rows[0]["spans"] == {"halves": [{"turn": 0, "start": 0, "end": 2, "value": 0.5}]}
    assert rows[0]["scores"] == {"halves": 0.75} and "spans" not in rows[4]


VOTE = """
from posttrain.rewards import reward_function

@reward_function(min_group=2)
def vote(group, completions):
    return [completions.count(each) / len(completions) for each in completions]
"""


def test_rows_of_one_prompt_and_answer_are_compared_wherever_they_stand(tmp_path):
    (tmp_path / "vote.py").write_text(VOTE)
    said = [("a", "1"), ("b", "1"), ("a", "2"), ("a", "1"), ("b", "2"), ("b", "2")]
    rows = [
        {"prompt": "?", "completion": text, "answer": answer, "id": f"r{i}"} for i, (text, answer) in enumerate(said)
    ]
    found = run(ScoreCompletions(write(tmp_path / "r.jsonl", rows), f"{tmp_path / 'vote.py'}:vote tags"), quiet=True)
    assert [row.id for row in found.rows] == [f"r{i}" for i in range(6)]
    assert [row.scores["vote"].value for row in found.rows] == pytest.approx([2 / 3, 1 / 3, 1 / 3, 2 / 3, 2 / 3, 2 / 3])
    alone = write(tmp_path / "alone.jsonl", [*rows, {"prompt": "!", "completion": "a", "answer": "1"}])
    with pytest.raises(UserError, match=r"reward 'vote' compares 2 or more .*; row 7 has 1 with its prompt and answer"):
        run(ScoreCompletions(alone, f"{tmp_path / 'vote.py'}:vote"), quiet=True)


def test_a_function_of_a_group_sees_all_rows_of_a_task_whatever_it_declares(tmp_path):
    (tmp_path / "size.py").write_text("def size(group):\n    return [len(group.episodes) / 10] * len(group.episodes)\n")
    rows = [{"prompt": prompt, "completion": "", "answer": ""} for prompt in "?!?"]
    found = run(ScoreCompletions(write(tmp_path / "r.jsonl", rows), f"{tmp_path / 'size.py'}:size"), quiet=True)
    assert [row.scores["size"].value for row in found.rows] == [0.2, 0.1, 0.2]


def test_a_group_that_is_larger_than_what_is_scored_together_stays_one(tmp_path):
    (tmp_path / "vote.py").write_text(VOTE)
    rows = [{"prompt": f"{i // 90}?", "completion": str(i % 3 == 0), "answer": ""} for i in range(180)]
    found = run(ScoreCompletions(write(tmp_path / "r.jsonl", rows), f"{tmp_path / 'vote.py'}:vote"), quiet=True)
    assert [row.scores["vote"].value for row in found.rows[:3]] == pytest.approx([1 / 3, 2 / 3, 2 / 3])


def test_more_rows_than_are_scored_together_keep_their_order(tmp_path):
    rows = [{"prompt": "?", "completion": f"#### {i}", "answer": str(i), "id": i} for i in range(150)]
    found = run(ScoreCompletions(write(tmp_path / "r.jsonl", rows), "numbers"), quiet=True)
    assert [row.id for row in found.rows] == [str(i) for i in range(150)] and found.mean == {"numbers": 1.0}
    assert "and 130 more; --output FILE.jsonl writes all of them" in found.tables()[1].note


def test_the_command_on_a_terminal_and_for_a_machine(data, tmp_path, capsys):
    words = ["score", "--dataset", data, "--reward", "numbers"]
    assert main([*words, "--output", str(tmp_path / "out.jsonl")]) == 0
    said = capsys.readouterr()
    assert "score 5/5" in said.err and "mean of the weighted sum 0.400" in said.out
    line = next(line for line in said.out.splitlines() if line.startswith("b "))
    assert line.split() == ["b", "numbers", "0.000", "41", "expected", "42"]
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(written) == 5 and written[1]["explanation"] == {"numbers": "expected 42"}
    assert (written[0]["completion"], written[0]["reward"]) == (ROWS[0]["completion"], 1.0)
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["mean"] == {"numbers": 0.4}


def test_what_a_model_wrote_cannot_move_the_cursor(tmp_path, capsys):
    row = {"prompt": "?", "completion": "#### \x1b[2J\u202e" + "x" * 300, "answer": "4", "id": "\x1b]0;t\x07"}
    assert main(["score", "--dataset", write(tmp_path / "r.jsonl", [row]), "--reward", "numbers"]) == 0
    out = capsys.readouterr().out
    assert "\\x1b[2J" in out and not {"\x1b", "\u202e", "\x07"} & set(out)
    assert max(map(len, out.splitlines())) < 150


def test_a_run_is_read_from_its_samples(tmp_path):
    """Their prompt is `role: content`; a content of several lines stays one message."""
    (tmp_path / "seen.py").write_text(
        "def seen(episode, answer):\n"
        "    said = [(m.role, m.content) for m in episode.task.prompt]\n"
        "    assert said == [('system', 'Be\\nbrief.'), ('user', '1+1?\\n2?')], said\n"
        "    assert answer in ('2', None) and str(episode.stop_reason) == 'length'\n"
        "    return 1.0 if answer else 0.5\n"
    )
    sample = Sample("system: Be\nbrief.\nuser: 1+1?\n2?", "#### 2", {"numbers": 1.0}, 1.0, "2", "length")
    with RunDirectory.create(tmp_path / "run", "rl", {"reward": "numbers"}) as directory:
        directory.log_samples(1, [sample, Sample(sample.prompt, "", {"numbers": 1.0}, 1.0, "", "length")])
    for dataset in (tmp_path / "run", tmp_path / "run" / "samples.jsonl"):
        found = run(ScoreCompletions(str(dataset), f"{tmp_path / 'seen.py'}:seen"), quiet=True)
        assert [row.scores["seen"].value for row in found.rows] == [1.0, 0.5]


def test_messages_of_trl_and_columns_under_other_names(tmp_path):
    chat = {"prompt": [{"role": "user", "content": "?"}], "completion": [{"role": "assistant", "content": "#### 7"}]}
    data = write(tmp_path / "a.jsonl", [chat | {"answer": 7}])
    assert run(ScoreCompletions(data, "numbers"), quiet=True).mean == {"numbers": 1.0}
    data = write(tmp_path / "b.jsonl", [{"q": "?", "said": "#### 7", "right": "7"}] * 3)
    words = {"columns": "prompt=q completion=said answer=right", "limit": 2}
    found = run(ScoreCompletions(data, "numbers", **words), quiet=True).summary()
    assert (found["n"], found["mean"]) == (2, {"numbers": 1.0})


def test_a_custom_reward_sees_the_other_columns_alone(tmp_path):
    (tmp_path / "r.py").write_text("def r(completion, task):\n    return float(list(task.metadata) == ['level'])\n")
    data = write(tmp_path / "a.jsonl", [ROWS[0] | {"level": 1}, ROWS[3] | {"level": 2}])
    assert run(ScoreCompletions(data, f"{tmp_path / 'r.py'}:r"), quiet=True).mean == {"r": 1.0}


def test_a_reward_model_gives_what_its_scorer_gives(tmp_path, data):
    folder = model_folder(tmp_path / "model")
    made = load_reward_model(str(folder), dtype=torch.float32, seed=3, members=1)
    made.save(tmp_path / "scorer", padding=0, calibration=Calibration((0.0,), 1.0))
    load_tokenizer(str(folder)).save_pretrained(tmp_path / "scorer")
    words = {"reward_model": str(tmp_path / "scorer"), "precision": "float32", "limit": 2}
    found = run(ScoreCompletions(data, "numbers", **words), quiet=True)
    scorer = load_scorer(str(tmp_path / "scorer"), precision="float32")
    for row, scored in zip(ROWS, found.rows, strict=False):
        ((expected,),) = scorer([[Message("user", row["prompt"]), Message("assistant", row["completion"])]])
        assert scored.scores["reward_model"].value == pytest.approx(expected, rel=1e-4)
        assert scored.total == pytest.approx(expected + scored.scores["numbers"].value, rel=1e-4)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"prompt": "?", "solution": "4"}, r"line 2: field 'completion' is missing.*`columns=.completion=solution.`"),
        ({"completion": "4"}, r"line 2: field 'prompt' is missing"),
        ({"messages": [{"role": "user", "content": "?"}]}, r"line 2: field 'completion' is missing"),
        ({"prompt": "?", "completion": 4}, r"line 2: field 'completion' must be text"),
        ({"prompt": "?", "completion": [{"role": "user", "content": "a"}]}, "must end with an assistant message"),
    ],
)
def test_a_row_that_cannot_be_scored_is_named(row, what, tmp_path):
    with pytest.raises(DataError, match=what):
        run(ScoreCompletions(write(tmp_path / "r.jsonl", [ROWS[0], row]), "numbers"), quiet=True)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"dataset": ""}, "`dataset` is required"),
        ({"dataset": "gym:chain_sum"}, "makes tasks without completions"),
        ({"reward": ""}, "`reward` is required, such as"),
        ({"reward": "number"}, "did you mean 'numbers'"),
        ({"ensemble_aggregation": "worst"}, "`ensemble_aggregation` needs a `reward_model`"),
        ({"output": "there.jsonl"}, "exists already"),
        ({"output": "out.csv"}, "`output=NAME.jsonl`"),
        ({"limit": 0}, "must be 1 or more"),
        ({"dataset": "a" * 300}, "cannot load 'aaa"),
        ({"dataset": "run"}, "the run run has no samples.jsonl"),
    ],
)
def test_mistakes_are_one_line(changes, what, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.jsonl").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("")
    with pytest.raises(UserError, match=what):
        run(ScoreCompletions(**{"dataset": data, "reward": "numbers"} | changes), quiet=True)


def test_where_a_reward_does_not_apply(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "def even(completions, level):\n    return [None if one % 2 else one / 2 for one in level]\n"
        "def never(completions):\n    return [None] * len(completions)\n"
    )
    rows = write(tmp_path / "rows.jsonl", [{"prompt": "a", "completion": "b", "level": level} for level in (2, 1, 4)])
    typed = f"{tmp_path}/mine.py:even=1 {tmp_path}/mine.py:never=1"
    output = tmp_path / "out.jsonl"
    assert main(["score", "--dataset", rows, "--reward", typed, "--output", str(output), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["scores"] for row in found["rows"]] == [{"even": even, "never": None} for even in (1, None, 2)]
    assert (found["mean"], found["not_applicable"]) == ({"even": 1.5, "never": None}, {"even": 1, "never": 3})
    assert [json.loads(line)["reward"] for line in output.read_text().splitlines()] == [1.0, None, 2.0]
    assert main(["score", "--dataset", rows, "--reward", typed]) == 0
    shown = capsys.readouterr().out
    assert "mean of the weighted sum 1.500, without 1 that no reward with a weight applies to" in shown
    assert shown.count("not applicable") == 6 and "; even is not applicable to 1" in shown
    assert main(["score", "--dataset", rows, "--reward", f"{tmp_path}/mine.py:never"]) == 0
    assert "no reward with a weight applies to any" in capsys.readouterr().out


LOOPS = """
import threading
import time


def loop():
    while True:
        time.sleep(0.01)


threading.Thread(target=loop, name="the pump", daemon=False).start()
{more}


def f(completion):
    return 1 / len(completion)
"""
POOL = "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor()\npool.submit(loop)"


@pytest.mark.parametrize(("more", "limit", "code"), [("", 5, 1), (POOL, 2, 0)])
def test_a_module_that_keeps_a_thread_does_not_keep_the_command(data, tmp_path, more, limit, code):
    (tmp_path / "loops.py").write_text(LOOPS.format(more=more))
    script = "import posttrain.__main__ as command; command.PATIENCE_S = 0.1; command.run()"
    words = ["score", "--dataset", data, "--reward", f"{tmp_path}/loops.py:f", "--limit", str(limit), "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == code, done.stderr
    assert "posttrain: ends without the pump" in done.stderr and "Traceback" not in done.stderr
    assert json.loads(done.stdout)["n"] == 2 if code == 0 else "ZeroDivisionError" in done.stderr
