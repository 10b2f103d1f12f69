import datetime
import math

import datasets
import numpy
import pandas
import pyarrow
import pytest

from posttrain.data import (
    digest_of_rows,
    in_memory,
    load_completions,
    load_demonstrations,
    load_judgements,
    load_preferences,
    load_ratings,
    load_rows,
    load_tasks,
    load_texts,
    read_rows,
    split_for,
)
from posttrain.errors import DataError, UserError

ROWS = [
    {"prompt": "1+1?", "answer": "2", "weights": [1.5, 2.0], "n": 1},
    {"prompt": "2+2?", "answer": None, "weights": [], "n": 2},
    {"prompt": "é?", "answer": "☃", "weights": [0.5], "n": 3},
]


def numpy_frame():
    """As `read_parquet` has it: lists are arrays."""
    frame = pandas.DataFrame(ROWS)
    return frame.assign(weights=[numpy.array(row["weights"]) for row in ROWS])


class Polars:
    """What is used of a polars.DataFrame."""

    def to_dicts(self):
        return ROWS


KINDS = {
    "list": lambda: ROWS,
    "generator": lambda: (row for row in ROWS),
    "Dataset": lambda: datasets.Dataset.from_list(ROWS),
    "Dataset of numpy": lambda: datasets.Dataset.from_list(ROWS).with_format("numpy"),
    "DataFrame": numpy_frame,
    "DataFrame with pandas.NA": lambda: pandas.DataFrame(ROWS).convert_dtypes(),
    "pyarrow": lambda: pyarrow.Table.from_pylist(ROWS),
    "polars": Polars,
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_every_kind_read_the_same(kind):
    assert load_rows(KINDS[kind]()) == ROWS
    assert [type(row["n"]) for row in load_rows(KINDS[kind]())] == [int] * 3
    assert digest_of_rows(KINDS[kind]()) == digest_of_rows(ROWS) != digest_of_rows(ROWS[:2])
    assert load_rows(KINDS[kind](), limit=2, columns={"question": "prompt"})[1]["question"] == "2+2?"
    assert load_rows(in_memory(KINDS[kind]())) == ROWS


@pytest.mark.parametrize(
    ("load", "row", "unusable", "problem"),
    [
        (load_tasks, {"prompt": "a"}, {"prompt": 1}, "field 'prompt' must be text"),
        (load_completions, {"prompt": "a", "completion": "b"}, {"prompt": "a"}, "field 'completion' is missing"),
        (load_demonstrations, {"prompt": "a", "completion": "b"}, {"prompt": "a"}, "field 'completion' is missing"),
        (load_preferences, {"prompt": "a", "chosen": "b", "rejected": "c"}, {"chosen": "b"}, "'rejected' is missing"),
        (
            load_judgements,
            {"prompt": "a", "completion": "b", "label": True},
            {"completion": "b"},
            "'prompt' is missing",
        ),
        (
            load_ratings,
            {"prompt": "a", "completion": "b", "ratings": {"x": 1}},
            {"prompt": "a"},
            "'ratings' is missing",
        ),
        (load_texts, {"text": "a"}, {"t": "a"}, "field 'text' is missing"),
    ],
)
def test_every_reader_takes_rows_and_names_the_one_that_is_wrong(load, row, unusable, problem):
    assert len(load(iter([row] * 3))) == 3
    with pytest.raises(DataError, match=f"^row 3 of the rows given: .*{problem}"):
        load([row, row, unusable])


def test_rows_given_are_not_those_of_the_caller():
    rows = [{"prompt": [{"role": "user", "content": "a"}]}]
    load_rows(rows)[0]["prompt"][0]["content"] = "b"
    assert rows == [{"prompt": [{"role": "user", "content": "a"}]}]


def test_a_missing_cell_of_text_is_no_value_and_one_of_numbers_is_no_number():
    frame = pandas.DataFrame({"prompt": ["a", None], "completion": ["b", "c"], "label": [True, False]})
    with pytest.raises(DataError, match="row 2 of the rows given: field 'prompt' has no value"):
        load_judgements(frame)
    objects = pandas.DataFrame({"prompt": ["a", math.nan]}, dtype=object)
    assert load_rows(objects) == [{"prompt": "a"}, {"prompt": None}]
    rated = {"prompt": ["a", "a"], "responses": [["b", "c"]] * 2, "scores": [[1.0, 2.0], [1.0, math.nan]]}
    with pytest.raises(DataError, match="row 2 of the rows given: field 'scores' must be a finite number; got nan"):
        load_preferences(pandas.DataFrame(rated))
    strength = {"prompt": ["a", "a"], "chosen": ["b"] * 2, "rejected": ["c"] * 2, "strength": [1.0, None]}
    with pytest.raises(DataError, match=r"row 2 of the rows given: field 'strength' .* got nan"):
        load_preferences(pandas.DataFrame(strength))


def test_the_digest_is_of_the_columns_that_have_a_value():
    rows = [{"a": 1, "b": {"y": [1, "☃"], "x": None}}, {"b": math.nan, "a": 2}]
    assert digest_of_rows(rows) == digest_of_rows([{"b": {"x": None, "y": [1, "☃"]}, "a": 1}, {"a": 2, "c": None}])
    for other in ([{"a": 1}, {"a": 2}], [*reversed(rows)], [{"a": 1, "b": {"y": [1, "☃"]}}, {"a": 2}], [{}, *rows]):
        assert digest_of_rows(other) != digest_of_rows(rows)
    assert digest_of_rows([{"a": 1}]) == "d51e7565578aa74e1c637f481d99029d5947ca4e8ba9d249cd2393ea11543fbe"


@pytest.mark.parametrize(
    "value", [b"a", {1}, object(), math.inf, [math.nan], datetime.date(2026, 1, 1), print, numpy.array([math.inf])]
)
def test_what_json_has_not_has_no_digest(value):
    with pytest.raises(
        DataError, match=r"^row 2 of the rows given: column 'image' has no digest: .* remove the column"
    ):
        digest_of_rows([{"image": None}, {"image": value}])


@pytest.mark.parametrize("read", [load_rows, digest_of_rows, in_memory])
def test_what_are_no_rows(read):
    whole = datasets.Dataset.from_list(ROWS)
    for rows, problem in (
        (whole.to_iterable_dataset(), r"^streaming data sets are not read; take rows: list\(dataset.take\(N\)\)$"),
        (datasets.DatasetDict(test=whole), r"got DatasetDict; choose one of its splits, such as data\['test'\]"),
        (5, "a DataFrame, or the name of a source; got int"),
        (b"a.jsonl", "a DataFrame, or the name of a source; got bytes"),
        ([ROWS[0], "x"], "row 2 of the rows given: expected a dictionary of named fields; got str"),
        ([{0: "x"}], "row 1 of the rows given: the name of a column must be text; got 0"),
        (pandas.DataFrame([["a", "b"]], columns=["prompt", "prompt"]), "two columns called 'prompt'"),
    ):
        with pytest.raises(UserError, match=problem):
            read(rows)


def test_rows_given_have_no_splits_and_are_at_least_one():
    assert split_for(ROWS) is None and load_rows(ROWS, split="train") == ROWS
    with pytest.raises(UserError, match="the rows given are not divided into splits; got split 'test'"):
        load_rows(ROWS, split="test")
    with pytest.raises(DataError, match="no rows were given; expected at least one"):
        load_rows([])
    assert read_rows(ROWS)[2].id == "rows:3"
