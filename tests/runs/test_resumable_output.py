"""Parts that were finished are there again, whole, and only for the same work."""

import pytest

from posttrain.errors import DataError, UserError
from posttrain.runs.jsonl import Chunks


def test_what_was_finished_is_there_again_and_goes_when_all_is_done(tmp_path):
    output = tmp_path / "best.jsonl"
    first = Chunks(output, {"model": "a", "sizes": (1, 2)})
    assert first.done == []
    first.add({"rewards": [0.5], "text": "é\ud800"})
    first.add({"rewards": [1.0]})
    again = Chunks(output, {"model": "a", "sizes": (1, 2)})
    assert again.done == first.done == [{"rewards": [0.5], "text": "é\ud800"}, {"rewards": [1.0]}]
    again.add({"rewards": [2.0]})
    again.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_torn_part_is_not_finished_and_spoils_none_after_it(tmp_path):
    output = tmp_path / "best.jsonl"
    parts = Chunks(output, {})
    parts.add({"n": 1})
    with parts.path.open("ab") as file:
        file.write(b'{"step": 2, "part": {"n"')
    again = Chunks(output, {})
    assert again.done == [{"n": 1}]
    again.add({"n": 2})
    assert Chunks(output, {}).done == [{"n": 1}, {"n": 2}]


def test_a_torn_beginning_is_begun_anew(tmp_path):
    output = tmp_path / "best.jsonl"
    output.with_name("best.jsonl.part").write_bytes(b'{"step": 0, "ab')
    parts = Chunks(output, {"model": "a"})
    parts.add({"n": 1})
    assert Chunks(output, {"model": "a"}).done == [{"n": 1}]


def test_parts_of_other_work_are_named_and_left_alone(tmp_path):
    output = tmp_path / "best.jsonl"
    parts = Chunks(output, {"model": "a", "seed": 1})
    parts.add({"n": 1})
    before = parts.path.read_bytes()
    with pytest.raises(UserError, match=r"best\.jsonl\.part has finished parts of this output with other seed"):
        Chunks(output, {"model": "a", "seed": 2})
    assert parts.path.read_bytes() == before
    parts.path.write_text("no parts at all\n{}\n")
    with pytest.raises(DataError):
        Chunks(output, {"model": "a", "seed": 1})


def test_where_nothing_can_be_written_it_says_so(tmp_path):
    with pytest.raises(UserError, match="cannot write"):
        Chunks(tmp_path / "none" / "best.jsonl", {})
