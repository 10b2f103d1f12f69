"""Suites: predictions written by hand, scored by each; where data is looked for; what is refused before sampling."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from posttrain.data import ChatFormat
from posttrain.engine.policy import load_policy
from posttrain.engine.scripted import ScriptedEngine
from posttrain.errors import DataError, UserError
from posttrain.evaluation.suites import SUITES
from posttrain.options.evaluation import Evaluate, Solve
from posttrain.recipes import evaluate as recipe
from posttrain.recipes.evaluate import run
from posttrain.recipes.evaluate.suites import asked, rows_of
from posttrain.statistics import paired_difference_interval, wilson_interval
from tests.data.families import of_family
from tests.recipes.folders import model_folder

PREDICTIONS = Path(__file__).parents[1] / "evaluation" / "predictions"
CHAT = ChatFormat(of_family("smollm2"))
ASKED = {"gsm8k": "question", "math500": "problem", "humaneval": "prompt", "mbpp": "text", "ifeval": "prompt"}


def rows(name):
    return [json.loads(line) for line in (PREDICTIONS / f"{name}.jsonl").read_text().splitlines()]


def scripted(said):
    """An engine that says of each prompt what is said of the question in it."""

    def script(request):
        prompt = CHAT.decode(request.token_ids)
        (text,) = {answer for question, answer in said.items() if question in prompt}
        return [*CHAT.tokenizer.encode(text), max(CHAT.stop_ids)]

    return ScriptedEngine(script, CHAT.stop_ids)


def predicted(*names):
    return {row[ASKED.get(name, "problem")].strip(): row["prediction"] for name in names for row in rows(name)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(model_folder(tmp_path_factory.mktemp("suites") / "model", context=8192))


@pytest.fixture
def engines(monkeypatch):
    waiting = []

    def load(*args, **kwargs):
        return replace(load_policy(*args, **kwargs), engine=waiting.pop(0))

    monkeypatch.setattr(recipe, "load_policy", load)
    return waiting


def evaluated(folder, engines, tmp_path, names, dataset=PREDICTIONS, **others):
    engines.append(scripted(predicted(*names.split())))
    config = Evaluate(model=folder, suite=names, dataset=str(dataset), precision="float32", **others)
    return run(config, output=tmp_path / "run", quiet=True)


# accuracy, share without an answer, tasks
BY_HAND = {
    "gsm8k": (2 / 4, 1 / 4, 4),  # by ####, by the last number; another number; none
    "math500": (3 / 5, 1 / 5, 5),  # 0.5, x+x and 42; -2; not in a box
    "humaneval": (2 / 4, 1 / 4, 4),  # whole, and a continuation; wrong; prose
    "mbpp": (2 / 3, 0, 3),  # with a setup; one of two tests; the fourth is of no test split
    "ifeval": (1 / 4, 0, 4),
    "processbench": (4 / 7, 1 / 7, 7),
}


@pytest.mark.parametrize("name", SUITES)
def test_predictions_by_hand(folder, engines, tmp_path, name):
    found = evaluated(folder, engines, tmp_path, name)
    accuracy, unparsed, n = BY_HAND[name]
    numbers = found.summary()["suites"][name]
    assert (numbers["accuracy"], numbers["n"]) == (pytest.approx(accuracy), n)
    assert numbers["unparsed"] == pytest.approx(unparsed)
    assert numbers["ci95"] == list(wilson_interval(round(accuracy * n), n)) and numbers["decoding"] == "greedy"
    assert found.suites[name].model is found.model


def test_the_further_measures_of_the_predictions(folder, engines, tmp_path):
    found = evaluated(folder, engines, tmp_path, "ifeval processbench").summary()["suites"]
    measures = {name: {key: one["value"] for key, one in found[name]["measures"].items()} for name in found}
    # of 8 instructions 5 are followed as they stand; without a first line and without asterisks two more
    assert measures["ifeval"] == pytest.approx(
        {"instruction-level strict": 5 / 8, "prompt-level loose": 3 / 4, "instruction-level loose": 7 / 8}
    )
    assert measures["processbench"] == pytest.approx({"F1 gsm8k": 1 / 2, "F1 math": 2 / 3, "F1": (1 / 2 + 2 / 3) / 2})


def test_several_suites_are_one_table_one_report_and_one_run(folder, engines, tmp_path):
    found = evaluated(folder, engines, tmp_path, "gsm8k ifeval", limit=2)
    lines = found.lines()
    assert lines[0] == "Suites" and lines[1].split()[:3] == ["suite", "measure", "model"]
    assert [line.split()[0] for line in lines[2:7]] == ["gsm8k", *["ifeval"] * 4]
    assert "prompt-level strict" in lines[3] and "0.500 (0.095 to 0.905)" in lines[3]
    page = found.report.read_text()
    assert "Suites" in page and "instruction-level loose" in page
    metrics = json.loads((found.run / "metrics.jsonl").read_text())
    assert metrics["gsm8k/greedy/accuracy"] == 1.0 and metrics["ifeval/greedy/prompt-level loose"] == 0.5
    tasks = {json.loads(line)["task"] for line in (found.run / "samples.jsonl").read_text().splitlines()}
    assert tasks == {"gsm8k/1", "gsm8k/2", "ifeval/1", "ifeval/2"}
    assert "<table>" in found._repr_html_()


def test_a_baseline_is_paired_in_every_measure(folder, engines, tmp_path):
    better = predicted("ifeval") | {row["prompt"]: "An apple." for row in rows("ifeval")[:2]}
    engines.append(scripted(better))
    found = evaluated(folder, engines, tmp_path, "ifeval", baseline=folder)
    over = found.summary()["suites"]["ifeval"]["difference"]["greedy"]
    # 'An apple.' has no comma, and no rain: of the second prompt one instruction of two is followed, as before
    assert over["value"] == 0.0 and over["n"] == 4
    assert over["ci95"] == list(paired_difference_interval([1, 0, 0, 0], [1, 0, 0, 0]))
    assert over["instruction-level strict"]["value"] == 0.0 and over["prompt-level loose"]["n"] == 4
    assert any("over the baseline" in line for line in found.lines()[:2])
    assert sum("+0.000 (" in line for line in found.lines()) == 4


def test_options_that_are_given_go_before_those_of_the_suite():
    plain, *_ = asked(Evaluate(suite="gsm8k"))
    assert plain.config.greedy and plain.config.max_new_tokens == 512 and plain.config.reward == "last_number"
    given, *_ = asked(Evaluate(suite="gsm8k", samples=4, max_new_tokens=256, reward="numbers"))
    assert not given.config.greedy and given.config.max_new_tokens == 256 and given.config.reward == "numbers"
    assert given.config.decodings() == {"sampled": (4, 1.0)}
    passes, *_ = asked(Evaluate(suite="humaneval", pass_at="1,10"))
    assert passes.config.decodings() == {"sampled": (10, 1.0)}
    solve, *_ = asked(Solve(suite="gsm8k"))
    assert list(solve.config.decodings()) == ["sampled"]
    assert asked(Evaluate())[0].config.max_new_tokens == 256


def test_rows_are_taken_of_each_split_in_turn(tmp_path):
    for name in ("gsm8k", "math", "olympiadbench", "omnimath"):
        rows_ = [{"id": f"{name}-{n}", "problem": "p", "steps": ["s"], "label": n - 1} for n in range(3)]
        (tmp_path / f"{name}.json").write_text(json.dumps(rows_))
    (one,) = asked(Evaluate(suite="processbench", dataset=str(tmp_path), limit=6))
    ids = [row["id"].removeprefix("processbench/") for row in rows_of(one.suite, one)]
    assert ids == ["gsm8k-0", "math-0", "olympiadbench-0", "omnimath-0", "gsm8k-1", "math-1"]
    (one,) = asked(Evaluate(suite="processbench", dataset=str(tmp_path), split="math"))
    assert [row["id"] for row in rows_of(one.suite, one)] == [f"processbench/math-{n}" for n in range(3)]


def test_rows_are_taken_of_each_kind_in_turn(tmp_path):
    rows_ = [{"id": f"math-{n}", "problem": "p", "steps": ["s"], "label": n} for n in (3, 2, 1, 0, -1, -1)]
    (tmp_path / "math.json").write_text(json.dumps(rows_))
    (one,) = asked(Evaluate(suite="processbench", dataset=str(tmp_path), split="math", limit=3))
    assert [row["answer"] for row in rows_of(one.suite, one)] == [3, -1, 2]


def test_data_is_looked_for_by_the_suites_name_at_any_depth(tmp_path):
    (tmp_path / "math").mkdir()
    (tmp_path / "math" / "MATH500.jsonl").write_text(json.dumps({"problem": "p", "answer": "1"}))
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "test.jsonl").write_text(json.dumps({"question": "q", "answer": "#### 1"}))
    (tmp_path / "gsm8k" / "train.jsonl").write_text(json.dumps({"question": "other", "answer": "#### 2"}))
    first, second = asked(Evaluate(suite="math500 gsm8k", dataset=str(tmp_path)))
    assert [row["prompt"] for one in (first, second) for row in rows_of(one.suite, one)] == ["p", "q"]
    (alone,) = asked(Evaluate(suite="gsm8k", dataset=str(tmp_path / "gsm8k")))
    assert [row["prompt"] for row in rows_of(alone.suite, alone)] == ["q"]


OWN = """
import posttrain as pt


class Capitals(pt.Suite):
    options = {"reward": "exact?answer_in=text", "max_new_tokens": 8}

    def row(self, row):
        return {"prompt": row["country"], "answer": row["capital"]} if row["country"] != "Atlantis" else None
"""


def test_a_suite_of_ones_own_is_a_class_of_a_file(folder, engines, tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    lands = [("France", "Paris"), ("Atlantis", "?"), ("Peru", "Lima")]
    data = tmp_path / "capitals.jsonl"
    data.write_text("".join(json.dumps({"country": land, "capital": city}) + "\n" for land, city in lands))
    engines.append(scripted({"France": "Paris", "Peru": "Cusco"}))
    name = f"{tmp_path / 'mine.py'}:Capitals"
    config = Evaluate(model=folder, suite=name, dataset=str(data), greedy=True, precision="float32")
    numbers = run(config, output=tmp_path / "run", quiet=True).summary()["suites"][name]
    assert (numbers["accuracy"], numbers["n"]) == (0.5, 2)
    with pytest.raises(UserError, match="has no data of its own; pass `dataset`"):
        run(Evaluate(suite=name), quiet=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"suite": "gsm9k"}, "unknown suite 'gsm9k'; did you mean 'gsm8k'?"),
        ({"suite": "no.py:Mine"}, "needs the file 'no.py', which does not exist"),
        ({"suite": "gsm8k", "dataset": "no/file.jsonl"}, "there is no file or folder 'no/file.jsonl'"),
        ({"suite": "gsm8k mbpp", "dataset": "{folder}"}, "has no file or folder called 'mbpp', such as mbpp.jsonl"),
        ({"suite": "gsm8k mbpp", "dataset": "{folder}/gsm8k.jsonl"}, "is one data set, and several suites are asked"),
        (
            {"suite": "gsm8k mbpp", "dataset": "{folder}/nowhere"},
            "`dataset` is no folder, and several suites are asked",
        ),
        (
            {"suite": "math500", "dataset": "{folder}/gsm8k.jsonl"},
            "row 1 of the suite 'math500' has no column 'problem'",
        ),
        ({"suite": "gsm8k", "dataset": "{folder}/gsm8k.jsonl", "limit": 0}, "must be 1 or more; got 0"),
        ({"suite": "processbench", "dataset": "{folder}/steps.jsonl"}, "2 rows have one kind alone; raise `limit`"),
        ({"suite": "gsm8k", "environment": "x.py:Y"}, "`suite` and `environment` exclude each other"),
        ({"suite": "mbpp", "dataset": "{folder}/untested.jsonl"}, "reward 'code' finds no tests"),
    ],
)
def test_what_cannot_be_is_said_in_a_line_before_a_model_is_loaded(tmp_path, given, said):
    (tmp_path / "gsm8k.jsonl").write_text(json.dumps({"question": "q", "answer": "#### 1"}))
    steps = [{"id": f"a-{n}", "problem": "p", "steps": ["s"], "label": 0} for n in range(2)]
    (tmp_path / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in steps))
    untested = {"task_id": 11, "text": "Add.", "test_list": [], "test_setup_code": ""}
    (tmp_path / "untested.jsonl").write_text(json.dumps(untested))
    given = {key: value.format(folder=tmp_path) if isinstance(value, str) else value for key, value in given.items()}
    with pytest.raises((UserError, DataError), match=re.escape(said)) as caught:
        run(Evaluate(**given), output=tmp_path / "run", quiet=True)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_without_a_sandbox_nothing_is_sampled(tmp_path, monkeypatch):
    def refuse():
        raise UserError("no bubblewrap; install it")

    monkeypatch.setattr("posttrain.rewards.code.refuse_without_isolation", refuse)
    with pytest.raises(UserError, match="no bubblewrap"):
        run(Evaluate(suite="humaneval", dataset=str(PREDICTIONS)), output=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pass_at": "1,x"}, "whole numbers of 1 or more between commas, such as 1,8,64; got 'x'"),
        ({"pass_at": "0"}, "got '0'"),
        ({"pass_at": "1,8", "samples": 4}, "pass@8 needs `samples=8` or more; got 4"),
        ({"pass_at": "8", "greedy": True}, "leave out `greedy`"),
    ],
)
def test_a_pass_at_that_cannot_be_is_refused(given, said):
    with pytest.raises(UserError, match=re.escape(said)):
        Evaluate(**given)


def test_pass_at_by_hand(folder, engines, tmp_path):
    right = {"a?": 3, "b?": 1, "c?": 0}  # of six samples
    times = dict.fromkeys(right, 0)

    def script(request):
        prompt = CHAT.decode(request.token_ids)
        question = next(one for one in right if one in prompt)
        times[question] += 1
        text = "#### 7" if times[question] <= right[question] else "#### 3"
        return [*CHAT.tokenizer.encode(text), max(CHAT.stop_ids)]

    engines += [ScriptedEngine(script, CHAT.stop_ids), scripted(dict.fromkeys(right, "#### 3"))]
    data = [{"prompt": question, "answer": 7} for question in right]
    config = Evaluate(model=folder, baseline=folder, dataset=data, reward="numbers", pass_at="3,1, 6")
    found = run(replace(config, precision="float32"), output=tmp_path / "run", quiet=True)
    passes = found.summary()["pass_at"]
    # sets of 3 of 6: 20, without any of 3 right ones 1, without the one right one 10
    assert passes["3"] == pytest.approx((19 / 20 + 10 / 20 + 0) / 3)
    assert (passes["1"], passes["6"]) == (pytest.approx(4 / 18), pytest.approx(2 / 3))
    start = found.lines().index("pass@k")
    assert found.lines()[start + 1].split() == ["model", "pass@1", "pass@3", "pass@6"]
    assert "0.483 (" in found.lines()[start + 2] and "0.000 (" in found.lines()[start + 3]
    assert found.lines()[start + 4].startswith("over the baseline") and "+0.483 (" in found.lines()[start + 4]
    assert "by log2 of k" in found.report.read_text()
