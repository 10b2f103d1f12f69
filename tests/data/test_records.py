import pytest

from posttrain.data.records import Record, typed
from posttrain.data.sources import map_columns, parse_columns
from posttrain.errors import DataError, UserError
from posttrain.types import Message


def row(**fields) -> Record:
    return Record(fields, "data.jsonl line 17", "data.jsonl:17")


def test_a_missing_field_proposes_the_column_that_is_probably_meant():
    with pytest.raises(DataError) as caught:
        row(question="1+1?", answer="2").text("prompt")
    assert str(caught.value) == (
        "data.jsonl line 17: field 'prompt' is missing; this row has: question, answer; "
        'map it with `columns="prompt=question"`'
    )


@pytest.mark.parametrize(
    "value, problem",
    [
        (3, "field 'prompt' must be text or a list of {role, content}; got 3"),
        ([], "field 'prompt' must be text or a list of {role, content}; got []"),
        ("  ", "field 'prompt' is empty"),
        ("a\ud800", "half of a surrogate pair"),
        (["hi"], "field 'prompt' message 1 must be {role, content}; got 'hi'"),
        ([{"role": "user", "content": "a"}, {"role": "users", "content": "b"}], "message 2 has the role 'users'"),
        ([{"role": "user", "content": None}], "field 'prompt' message 1 content must be text; got None"),
        ([{"role": "assistant", "content": "a", "tool_calls": [{}]}], "message 1 call 1 must be {id, type, function"),
    ],
)
def test_bad_conversations_name_place_field_and_message(value, problem):
    with pytest.raises(DataError) as caught:
        row(prompt=value).messages("prompt")
    assert str(caught.value).startswith("data.jsonl line 17: ") and problem in str(caught.value)


def test_sharegpt_speakers_are_roles():
    turns = [("system", "s"), ("human", "u"), ("gpt", "a"), ("observation", "t")]
    read = row(c=[{"from": who, "value": text} for who, text in turns]).messages("c")
    assert [m.role for m in read] == ["system", "user", "assistant", "tool"]
    assert [m.content for m in read] == ["s", "u", "a", "t"]


def test_text_is_one_user_message():
    assert row(prompt="hi").messages("prompt") == (Message("user", "hi"),)


def test_columns_are_renamed_swapped_and_dug_out():
    rows = [row(question="q", answer="a", model={"truth": {"x": 7}}, other=1)]
    mapped = map_columns(rows, {"prompt": "answer", "answer": "question", "gold": "model.truth.x"})
    assert mapped[0].fields == {"prompt": "a", "answer": "q", "gold": 7, "model": {"truth": {"x": 7}}, "other": 1}
    assert (mapped[0].place, mapped[0].id) == ("data.jsonl line 17", "data.jsonl:17")


def test_a_dot_in_a_name_is_part_of_it():
    assert map_columns([row(**{"a.b": 1})], {"prompt": "a.b"})[0].fields == {"prompt": 1}


def test_unknown_column_names_the_nearest():
    with pytest.raises(
        DataError, match=r"unknown column 'quesion'; did you mean 'question'. The data has: answer, question"
    ):
        map_columns([row(question="q", answer="a")], {"prompt": "quesion"})


@pytest.mark.parametrize("source", ["question", "model.truth"])
def test_a_column_that_one_row_lacks_names_the_row(source):
    rows = [row(question="q", model={"truth": 1}), Record({"answer": "a", "model": {}}, "data.jsonl line 18", "")]
    with pytest.raises(DataError, match=f"data.jsonl line 18: column '{source}', mapped to 'prompt', is missing"):
        map_columns(rows, {"prompt": source})


@pytest.mark.parametrize("flags", ["question", "prompt=", "=question"])
def test_malformed_mapping(flags):
    with pytest.raises(UserError, match="write FIELD=COLUMN"):
        parse_columns(flags)


def test_mapping_as_one_flag_or_several():
    assert (
        parse_columns("prompt=q answer=a") == parse_columns(["prompt=q", "answer=a"]) == {"prompt": "q", "answer": "a"}
    )
    with pytest.raises(UserError, match="'prompt' is mapped twice: to 'q' and to 'r'"):
        parse_columns("prompt=q prompt=r")


def test_a_cell_of_a_csv_is_the_number_or_boolean_that_it_says():
    assert [typed(cell) for cell in ("0.5", " 1e3 ", "True", "yes", "", None)] == [0.5, 1000.0, True, "yes", "", None]
