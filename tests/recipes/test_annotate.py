"""`posttrain annotate`, as a user types it."""

import json

import pytest

from posttrain.annotation.aggregation import METHODS
from posttrain.cli import main
from tests.annotation.said import SEED


@pytest.fixture
def example(tmp_path):
    rows = [{"item": r.item, "annotator": r.annotator, "ranking": r.groups, "failed": []} for r in SEED]
    path = tmp_path / "judgements.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("method", METHODS)
def test_the_example_as_json(example, method, capsys):
    assert main(["annotate", "consensus", example, "--method", method, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (item,) = found["items"]
    assert item["item"] == "hot" and item["order"] == [[1], [0], [2]] and item["failed"] == []
    assert item["pairs"] == [[1, 0], [1, 2], [0, 2]]
    assert {one["annotator"]: one["agreement"] for one in found["annotators"]} == {"H1": 1, "H2": 1, "H3": 0}
    assert found["kendall_w"] == pytest.approx(1 / 9) and found["alpha"] == pytest.approx(-5 / 27)
    assert ("strengths" in item) == (method in ("bradley-terry", "plackett-luce"))
    if "strengths" in item:
        assert item["strengths"].keys() == item["standard_errors"].keys() == {"0", "1", "2"}


def test_the_example_for_people(example, capsys):
    assert main(["annotate", "consensus", example]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "hot: 1 > 0 > 2"
    assert "Krippendorff's alpha -0.185, Kendall's W 0.111" in lines
    assert lines[-1].startswith("H3: agrees with the consensus in 0.000 of 3 comparisons, with the others in 0.00 (")


def test_ties_fails_and_many_items_for_people(tmp_path, capsys):
    path = tmp_path / "said.jsonl"
    rows = [{"item": n, "annotator": "a", "ranking": [[0, 2]], "failed": [1]} for n in range(25)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["annotate", "consensus", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "0: 0 = 2 > 1; failed: 1" and lines[20] == "and 5 more; --json has all"
    assert "Krippendorff's alpha unknown, Kendall's W unknown" in lines


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "say which judgements to read: posttrain annotate consensus FILE.jsonl"),
        (["nothing.jsonl"], "there is no file or folder 'nothing.jsonl'"),
        (["nothing.jsonl", "--method", "dawid"], "did you mean 'dawid-skene'?"),
    ],
)
def test_what_people_type_wrong(words, message, capsys):
    assert main(["annotate", "consensus", *words]) == 2
    assert message in capsys.readouterr().err


def test_without_the_extra_the_error_says_what_to_install(example, capsys, monkeypatch):
    import sys

    for name in [name for name in sys.modules if name.startswith("posttrain.annotation.aggregation.dawid")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "crowdkit.aggregation", None)
    assert main(["annotate", "consensus", example, "--method", "dawid-skene"]) == 2
    assert "type: pip install 'posttrain[annotate]'" in capsys.readouterr().err
