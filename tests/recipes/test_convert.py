"""A file of feedback becomes another one, whole, or none."""

import json

import pytest

from posttrain.cli import main
from posttrain.data import load_preferences
from posttrain.errors import DataError, UserError
from posttrain.recipes.convert import Convert, run


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def hh(question, chosen, rejected):
    return {
        name: f"\n\nHuman: {question}\n\nAssistant: {text}"
        for name, text in (("chosen", chosen), ("rejected", rejected))
    }


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / "hh.jsonl", hh("a", "b", "c"), hh("d", "same", "same"), hh("e", "f", "g"))


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_file_there_and_back(data, tmp_path):
    lines, found = run(Convert(data, "conversations", str(tmp_path / "out.jsonl")))
    assert (found["written"], found["path"]) == (2, tmp_path / "out.jsonl")
    assert [line.partition(": ")[2] for line in found["left_out"]] == ["'chosen' and 'rejected' are the same"]
    assert "hh.jsonl line 2" in found["left_out"][0] and "1 left out: " in lines[1]
    run(Convert(str(tmp_path / "out.jsonl"), "transcripts", str(tmp_path / "back.jsonl")))
    assert read(tmp_path / "back.jsonl") == [hh("a", "b", "c"), hh("e", "f", "g")]
    assert {path.name for path in tmp_path.iterdir()} == {"hh.jsonl", "out.jsonl", "back.jsonl"}


def test_rows_that_cannot_be_said_are_left_out_and_named(tmp_path):
    rows = [{"prompt": text, "chosen": "b", "rejected": "c"} for text in ("a", " a", "x\n\nHuman: a", "b ", "c ")]
    lines, found = run(Convert(write(tmp_path / "in.jsonl", *rows), "transcripts", str(tmp_path / "out.jsonl")))
    assert found["written"] == 1 and len(found["left_out"]) == 4
    assert lines[1].startswith("4 left out: ") and lines[1].endswith("; and 1 more")
    nothing = write(tmp_path / "none.jsonl", rows[1])
    with pytest.raises(DataError, match=r"nothing was written: .*none.jsonl line 1"):
        run(Convert(nothing, "transcripts", str(tmp_path / "none-out.jsonl")))
    assert not list(tmp_path.glob("*none-out*"))


def test_a_response_that_won_twice_is_demonstrated_once_and_judged_twice(tmp_path):
    row = {"prompt": "p", "responses": ["best", "x", "y"], "scores": [2, 1, 1]}
    data = write(tmp_path / "in.jsonl", row)
    assert run(Convert(data, "demonstrations", str(tmp_path / "a.jsonl")))[1]["written"] == 1
    assert run(Convert(data, "judgements", str(tmp_path / "b.jsonl")))[1]["written"] == 4


def test_options_of_reading_hold(tmp_path):
    data = write(tmp_path / "in.jsonl", *({"q": n, "good": "b", "rejected": "c"} for n in "xyz"))
    words = {"columns": "prompt=q chosen=good", "limit": 2, "system": "Be brief.", "prompt_template": "<{prompt}>"}
    run(Convert(data, "pairs", str(tmp_path / "out.jsonl"), **words))
    found = load_preferences(str(tmp_path / "out.jsonl")).items
    assert [[m.content for m in one.prompt] for one in found] == [["Be brief.", "<x>"], ["Be brief.", "<y>"]]
    (tmp_path / "parts").mkdir()
    write(tmp_path / "parts" / "test.jsonl", hh("a", "b", "c"))
    write(tmp_path / "parts" / "train.jsonl", hh("d", "e", "f"), hh("g", "h", "i"))
    _, found = run(Convert(str(tmp_path / "parts"), "pairs", str(tmp_path / "test-out.jsonl"), split="test"))
    assert found["written"] == 1


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"dataset": ""}, "--dataset is required"),
        ({"to": "pair"}, "did you mean 'pairs'"),
        ({"output": ""}, "an output file is required: `output=NAME.jsonl`"),
        ({"output": "there.jsonl"}, "exists already"),
        ({"output": "nowhere/out.jsonl"}, "there is no folder nowhere"),
    ],
)
def test_mistakes_are_one_line(changes, what, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.jsonl").write_text("mine")
    with pytest.raises(UserError, match=what):
        run(Convert(**{"dataset": data, "output": "out.jsonl"} | changes))
    assert (tmp_path / "there.jsonl").read_text() == "mine"


def test_a_write_that_fails_leaves_nothing(data, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("posttrain.recipes.convert.jsonl.append", full)
    with pytest.raises(UserError, match=r"cannot write .*out.jsonl: No space left on device"):
        run(Convert(data, "pairs", str(tmp_path / "out.jsonl")))
    assert {path.name for path in tmp_path.iterdir()} == {"hh.jsonl"}


def test_an_interruption_leaves_nothing_and_promises_nothing(data, tmp_path, monkeypatch, capsys):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("posttrain.recipes.convert.jsonl.append", stopped)
    assert main(["convert", "--dataset", data, "--output", str(tmp_path / "out.jsonl")]) == 130
    said = capsys.readouterr().err
    assert "interrupted" in said and "--resume" not in said
    assert {path.name for path in tmp_path.iterdir()} == {"hh.jsonl"}


def test_the_command(data, tmp_path, capsys):
    assert (
        main(["convert", "--dataset", data, "--to", "judgements", "--output", str(tmp_path / "o.jsonl"), "--json"]) == 0
    )
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["written"], said["layout"], len(said["left_out"])) == (4, "judgements", 1)
