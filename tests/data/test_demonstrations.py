import json

import pytest

from posttrain.data.tasks import load_demonstrations
from posttrain.errors import DataError
from posttrain.types import Message

U, A = Message("user", "1+1?"), Message("assistant", "2")
CHAT = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]


def load(folder, *rows, **options):
    path = folder / "data.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return load_demonstrations(str(path), **options)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": CHAT},
        {"conversations": CHAT},
        {"conversations": [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}]},
        {"prompt": "1+1?", "completion": "2"},
        {"prompt": CHAT[:1], "completion": CHAT[1:]},
        {"prompt": CHAT[:1], "completion": "2"},
        {"prompt": "1+1?", "completion": "2", "question": "other", "answer": "other"},
        {"question": "1+1?", "answer": "2"},
        {"instruction": "1+1?", "output": "2"},
        {"instruction": "1+1?", "input": "", "output": "2"},
    ],
)
def test_every_known_form_is_the_same_conversation(tmp_path, row):
    assert load(tmp_path, row) == [(U, A)]


def test_the_input_of_an_instruction_follows_it(tmp_path):
    [(user, _)] = load(tmp_path, {"instruction": "Add.", "input": "1, 1", "output": "2"})
    assert user == Message("user", "Add.\n\n1, 1")


def test_system_template_columns_and_limit(tmp_path):
    rows = [{"q": "1+1?", "a": "2"}, {"q": "2+2?", "a": "4"}]
    columns = {"prompt": "q", "completion": "a"}
    loaded = load(tmp_path, *rows, columns=columns, limit=1, system="s", prompt_template="{prompt} Think.")
    assert loaded == [(Message("system", "s"), Message("user", "1+1? Think."), A)]


@pytest.mark.parametrize(
    "row, problem",
    [
        ({"a": 1}, "line 2: no demonstration found; this row has: a; expected messages, or prompt and completion"),
        ({"prompt": "a"}, "line 2: field 'completion' is missing"),
        ({"prompt": "a", "solution": "b"}, 'map it with `columns="completion=solution"`'),
        ({"prompt": "a", "completion": ""}, "line 2: field 'completion' is empty"),
        ({"messages": CHAT[:1]}, "line 2: the conversation has no assistant message"),
        ({"messages": [*CHAT, {"role": "assistant", "content": ""}]}, "field 'messages' message 3 content is empty"),
        ({"instruction": "a"}, "field 'output' is missing"),
        ({"question": "a", "answer": 3}, "field 'answer' must be text or a list of {role, content}; got 3"),
    ],
)
def test_rows_that_teach_nothing_name_line_and_field(tmp_path, row, problem):
    with pytest.raises(DataError) as caught:
        load(tmp_path, {"messages": CHAT}, row)
    assert problem in str(caught.value)
