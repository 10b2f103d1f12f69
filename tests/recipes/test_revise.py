"""Critique and revision through the command line, against a scripted server."""

import json
import shlex
from pathlib import Path

import pytest

from posttrain.cli import main
from posttrain.data import load_demonstrations, load_preferences
from posttrain.engine import openai_chat
from tests.fake_openai import error, fake_openai

pytest.importorskip("openai")

CONSTITUTION = {
    "principles": [{"name": n, "critique": f"CRITIQUE {n}", "revision": f"REVISE {n}"} for n in ("a", "b")],
    "examples": [{"prompt": "EX", "response": "ER", "critique": "EC", "revision": "EV", "principle": "b"}],
}


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.setattr(openai_chat, "PAUSE_S", 0.001)
    monkeypatch.setattr(openai_chat, "ATTEMPTS", 2)
    monkeypatch.chdir(tmp_path)
    Path("c.json").write_text(json.dumps(CONSTITUTION))
    rows = [{"id": f"t{n}", "prompt": f"ask {n}"} for n in range(3)] + [
        {"id": "g", "prompt": "g", "completion": "GIVEN"}
    ]
    Path("prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def posttrain(capsys):
    def run(*words):
        capsys.readouterr()
        code = main(["revise", *map(str, words), "--quiet", "--json"])
        return code, *capsys.readouterr()

    return run


def says(body) -> str:
    """What it is asked for, with the answer that stands there."""
    last = body["messages"][-1]["content"]
    if last.startswith("CRITIQUE"):
        return "It is bad."
    if last.startswith("REVISE"):
        return f"{body['messages'][-4]['content']} better"
    return f"first to {last}"


def read(name):
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


WORDS = ["--dataset", "prompts.jsonl", "--constitution", "c.json", "--output", "out.jsonl", "--pairs", "pairs.jsonl"]


def test_answers_are_criticised_and_revised_as_turns_behind_the_examples(posttrain):
    with fake_openai(answer=says) as server:
        code, out, _ = posttrain(*WORDS, "--judge", f"m={server.url}", "--rounds", "2", "--system", "Be kind.")
    found = json.loads(out)
    assert code == 0 and (found["prompts"], found["revised"], found["pairs"], found["left_out"]) == (4, 4, 4, 0)
    assert len(server.asked) == 3 * 5 + 4 and found["prompt_tokens"] == 100 * len(server.asked)
    rows = {row["id"]: row for row in read("out.jsonl")}
    assert rows["t1"]["original"] == "first to ask 1" and rows["g"]["original"] == "GIVEN"
    assert rows["t1"]["messages"][-1]["content"] == "first to ask 1 better better"
    assert [one["revision"] for one in rows["g"]["rounds"]] == ["GIVEN better", "GIVEN better better"]
    asked = [[m["content"] for m in body["messages"]] for body in server.asked]
    shots = ["Be kind.", "EX", "ER", "CRITIQUE b", "EC", "REVISE b", "EV"]
    (first,) = [said for said in asked if said[-2:-1] == ["GIVEN"]]
    assert first[:-1] == [*shots, "g", "GIVEN"] and first[-1] in ("CRITIQUE a", "CRITIQUE b")
    revised = next(said for said in asked if said[-4:-3] == ["GIVEN"])
    assert revised[-3:] == [first[-1], "It is bad.", first[-1].replace("CRITIQUE", "REVISE")]
    assert [one[-1].content for one in load_demonstrations("out.jsonl")][-1] == "GIVEN better better"
    assert {(one.chosen, one.rejected) for one in load_preferences("pairs.jsonl")} > {("GIVEN better better", "GIVEN")}


def test_principles_are_sampled_by_the_seed_and_the_row_alone(posttrain):
    drawn = {}
    with fake_openai(answer=says) as server:
        for name, more in (("x", []), ("y", ["--judge-concurrency", "1"]), ("z", ["--seed", "7"])):
            words = [
                "--dataset",
                "prompts.jsonl",
                "--constitution",
                "c.json",
                "--output",
                f"{name}.jsonl",
                "--rounds",
                "3",
            ]
            assert posttrain(*words, "--judge", f"m={server.url}", *more)[0] == 0
            drawn[name] = [[one["principle"] for one in row["rounds"]] for row in read(f"{name}.jsonl")]
    assert drawn["x"] == drawn["y"] != drawn["z"] and {"a", "b"} == {n for row in drawn["x"] for n in row}


def test_a_round_that_is_cut_leaves_the_rounds_before_it(posttrain):
    def cut(body):  # the revision of the second round
        revised = sum(message["content"].endswith(" better") for message in body["messages"])
        said = says(body)
        return {"content": "cut", "finish_reason": "length"} if said.endswith("better better") and revised else said

    with fake_openai(answer=cut) as server:
        code, out, _ = posttrain(*WORDS, "--judge", f"m={server.url}", "--rounds", "2")
    found, rows = json.loads(out), read("out.jsonl")
    assert (
        code == 0
        and (found["revised"], found["left_out"]) == (4, 0)
        and [len(row["rounds"]) for row in rows] == [1] * 4
    )
    assert all(row["messages"][-1]["content"] == f"{row['original']} better" for row in rows)


def test_what_is_truncated_or_empty_is_left_out_and_what_is_unchanged_is_no_pair(posttrain):
    def some(body):
        said = [message["content"] for message in body["messages"]]
        if "ask 0" in said and said[-1].startswith("REVISE"):
            return {"content": "cut", "finish_reason": "length"}
        if "ask 1" in said and said[-1].startswith("CRITIQUE"):
            return "  "
        return "GIVEN" if "GIVEN" in said else says(body)

    with fake_openai(answer=some) as server:
        code, out, _ = posttrain(*WORDS, "--judge", f"m={server.url}")
    found = json.loads(out)
    assert code == 0 and (found["revised"], found["left_out"], found["unchanged"], found["pairs"]) == (2, 2, 1, 1)
    assert [row["id"] for row in read("out.jsonl")] == ["t2", "g"] and [row["id"] for row in read("pairs.jsonl")] == [
        "t2"
    ]


def test_a_failed_run_goes_on_and_asks_nothing_twice(posttrain, monkeypatch):
    monkeypatch.setattr("posttrain.recipes.revise.TOGETHER", 1)
    with fake_openai(answer=says) as server:
        words = [*WORDS, "--judge", f"m={server.url}"]
        server.fault = lambda body: error(503) if len(server.asked) > 4 else None
        code, _, err = posttrain(*words)
        assert code == 1 and "HTTP 503" in err and not Path("out.jsonl").exists()
        server.fault = lambda body: None
        server.asked.clear()
        code, out, _ = posttrain(*words)
        assert code == 0 and len(server.asked) == 7 and json.loads(out)["prompt_tokens"] == 1100
    assert json.loads(out)["notes"] == ["1 of 4 prompts were done before"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "--judge is required: the model that answers and revises"),
        ("--judge 'a=http://h/v1#m b=http://h/v1#n'", "one model answers and revises; --judge names a, b"),
        ("--judge m=policy", "posttrain revise has no policy to ask"),
        ("--judge m=http://h/v1#m --pairs out.jsonl", "--output and --pairs must be different files"),
        ("--judge m=http://h/v1#m --judge-prompt quality", "--judge-prompt is for verdicts"),
        ("--judge m=http://h/v1#m --constitution d.json", "principle 1 of the constitution d.json has no 'revision'"),
    ],
)
def test_what_cannot_work_is_one_line_before_anything_is_asked(posttrain, words, told):
    Path("d.json").write_text('{"principles": [{"name": "a", "critique": "c"}]}')
    code, out, err = posttrain(*WORDS, *shlex.split(words))
    assert code == 2 and out == "" and told in err and err.count("\n") == 1
