import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.errors import DataError
from posttrain.runs import jsonl

# Surrogates, control characters and line separators included.
TEXT = st.text(st.characters() | st.sampled_from('\n\r\x85\u2028\ud800\0"\\'), max_size=6)
ATOMS = st.none() | st.booleans() | st.integers() | TEXT
VALUES = ATOMS | st.lists(ATOMS, max_size=3) | st.dictionaries(TEXT, ATOMS, max_size=3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def write(path: Path, *rows: dict) -> None:
    with path.open("ab") as file:
        for row in rows:
            jsonl.append(file, row)


@given(st.lists(st.dictionaries(TEXT, VALUES, max_size=3), max_size=3))
def test_rows_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, rows: list[dict]) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    write(path, *rows)
    assert jsonl.read(path) == rows
    assert path.read_bytes().count(b"\n") == len(rows)


def test_what_is_appended_is_in_the_file_before_it_is_closed(path: Path) -> None:
    with path.open("ab") as file:
        jsonl.append(file, {"step": 1})
        assert jsonl.read(path) == [{"step": 1}]


def test_numbers_that_are_not_finite_become_null_and_the_file_stays_json(path: Path) -> None:
    write(path, {"step": 1, "loss": math.nan, "rewards": {"a": math.inf, "b": [-math.inf, 0.5]}})
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {
        "step": 1,
        "loss": None,
        "rewards": {"a": None, "b": [None, 0.5]},
    }


def test_no_file_is_no_rows(path: Path) -> None:
    assert jsonl.read(path) == []
    assert jsonl.truncate(path, 3) is None and not path.exists()


@pytest.mark.parametrize(
    "torn", [b'{"step": 3, "lo', b'{"step": 3}', b'{"step": 3, "lo\n', b"\0\0\0\0", b"\0\0\n", b"12\n"]
)
def test_a_torn_last_line_is_left_out_and_cut_off(path: Path, torn: bytes) -> None:
    write(path, {"step": 1}, {"step": 2})
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    assert jsonl.read(path) == [{"step": 1}, {"step": 2}]
    assert jsonl.truncate(path, 99) == 2
    assert path.read_bytes() == whole


def test_a_torn_line_in_the_middle_is_an_error_that_names_it(path: Path) -> None:
    path.write_bytes(b'{"step": 1}\n{"step"\n{"step": 3}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl, line 2: expected one JSON object; got '{\"step\"'"):
        jsonl.read(path)


def test_a_line_that_is_nested_too_deeply_is_like_a_torn_one(path: Path) -> None:
    whole, nested = b'{"step": 1}\n', b"[" * 100_000 + b"\n"
    path.write_bytes(whole + nested)
    assert jsonl.read(path) == [{"step": 1}] and jsonl.truncate(path, 9) == 1 and path.read_bytes() == whole
    path.write_bytes(whole + nested + whole)
    with pytest.raises(DataError, match=r"rows\.jsonl, line 2: expected one JSON object; got '\[\[") as caught:
        jsonl.read(path)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("row", [b'{"loss": 1}', b'{"step": "1"}', b'{"step": 1.5}'])
def test_a_row_without_a_step_cannot_be_cut_at_one(path: Path, row: bytes) -> None:
    path.write_bytes(row + b"\n")
    with pytest.raises(DataError, match="line 1: expected a row with a whole number 'step'"):
        jsonl.truncate(path, 1)


@pytest.mark.parametrize("step, kept", [(-1, 0), (0, 1), (1, 3), (2, 3), (3, 4), (9, 4)])
def test_truncate_keeps_the_bytes_up_to_the_last_row_of_the_step(path: Path, step: int, kept: int) -> None:
    rows = [{"step": 0}, {"step": 1, "é": "\u2028"}, {"step": 1}, {"step": 3}]
    write(path, *rows)
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 4
    assert jsonl.truncate(path, step) == (rows[kept - 1]["step"] if kept else None)
    assert path.read_bytes() == b"".join(lines[:kept])
