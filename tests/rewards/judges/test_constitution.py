import json

import pytest

from posttrain.errors import UserError
from posttrain.rewards.judges.constitution import read_constitution


def test_the_packaged_one_has_all_that_it_is_used_for():
    found = read_constitution("default", "preference", "critique", "revision")
    assert len(found.principles) >= 5 and len(found.examples) == 2


def test_toml_and_json_say_the_same(tmp_path):
    row = {"name": "a", "critique": "What is wrong?", "revision": "Write it again."}
    (tmp_path / "c.json").write_text(json.dumps({"principles": [row]}))
    (tmp_path / "c.toml").write_text("[[principles]]\n" + "".join(f'{key} = "{text}"\n' for key, text in row.items()))
    found = [read_constitution(str(tmp_path / name), "critique") for name in ("c.json", "c.toml")]
    assert found[0] == found[1] and found[0].principles[0].revision == "Write it again."


ROW = {"name": "a", "preference": "p"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({}, "has no principles; expected [[principles]]"),
        ({"principles": []}, "has no principles"),
        ({"principles": "be good"}, "'principles' of the constitution c.json must be a list of tables; got 'be good'"),
        ({"principles": ["be good"]}, "principle 1 of the constitution c.json must be a table; got 'be good'"),
        ({"principles": [{"name": "a"}]}, "principle 1 of the constitution c.json has no 'preference'"),
        ({"principles": [ROW, {"preference": "p"}]}, "principle 2 of the constitution c.json has no 'name'"),
        ({"principles": [{**ROW, "critic": "x"}]}, "unknown field of principle 1 of the constitution c.json: 'critic'"),
        ({"principles": [{**ROW, "critique": 3}]}, "'critique' of principle 1 of the constitution c.json must be text"),
        ({"principles": [ROW, ROW]}, "has two principles called 'a'"),
        (
            {"principles": [ROW], "examples": [{"prompt": "x"}]},
            "example 1 of the constitution c.json has no 'response'",
        ),
        (
            {
                "principles": [ROW],
                "examples": [dict.fromkeys(("prompt", "response", "critique", "revision", "principle"), "b")],
            },
            "unknown principle of an example in c.json: 'b'",
        ),
    ],
)
def test_a_constitution_that_cannot_be_used_is_one_clear_line(tmp_path, monkeypatch, content, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.json").write_text(json.dumps(content))
    with pytest.raises(UserError) as caught:
        read_constitution("c.json", "preference")
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_none_is_told(tmp_path):
    (tmp_path / "c.toml").write_text("principles = [")
    for name in (str(tmp_path / "c.toml"), str(tmp_path / "none.toml"), "defualt"):
        with pytest.raises(UserError, match="cannot read the constitution"):
            read_constitution(name)
