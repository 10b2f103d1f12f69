"""Tools, calls and results: read from both common layouts, rendered by each family's template, masked by hand."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.data.chat import ChatFormat
from posttrain.data.convert import TARGETS
from posttrain.data.judgements import judged_of, judgements_of
from posttrain.data.messages import tools_column, written
from posttrain.data.preferences import pair_of, preferences_in, ranked_of
from posttrain.data.records import Record
from posttrain.data.tasks import conversation_in, dress, load_demonstrations, load_tasks, task_in
from posttrain.errors import DataError, TemplateError
from posttrain.types import Message, ToolCall
from tests.data.families import of_family
from tests.data.test_chat import CHATS, chat_of, marked, text_of

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SCHEMA = json.dumps(TOOL)
CALL = {"id": "callparis", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Paris"}'}}
ROW = {
    "messages": [
        {"role": "user", "content": "Rain in Paris?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "callparis", "name": "weather", "content": '{"rain": true}'},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "And Rome?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call-rome", "function": {"name": "weather", "arguments": {"city": "Rome"}}}],
        },
        {"role": "tool", "tool_call_id": "call-rome", "content": '{"rain": false}'},
        {"role": "assistant", "content": "No."},
    ],
    "tools": [TOOL],
}


def row(**fields) -> Record:
    return Record(fields, "data.jsonl line 17", "data.jsonl:17")


DIALOGUE = conversation_in(row(**ROW))


def test_calls_and_tools_are_read_from_both_layouts():
    first, second = DIALOGUE[1], DIALOGUE[5]
    assert first == Message("assistant", "", (ToolCall("callparis", "weather", '{"city":"Paris"}'),))
    assert second.tool_calls == (ToolCall("call-rome", "weather", '{"city": "Rome"}'),)
    assert DIALOGUE[2] == Message("tool", '{"rain": true}', tool_call_id="callparis", name="weather")
    assert [bool(m.tools) for m in DIALOGUE] == [True] + [False] * 7
    assert json.loads(DIALOGUE[0].tools[0]) == TOOL


def test_tools_are_read_as_text_and_without_their_outer_object():
    for tools in (json.dumps([TOOL]), [TOOL["function"]], [SCHEMA], [TOOL | {"strict": None}]):
        assert [json.loads(tool) for tool in conversation_in(row(**ROW | {"tools": tools}))[0].tools] == [TOOL]
    assert all(conversation_in(row(**ROW | {"tools": none}))[0].tools == () for none in (None, "", [], "[]"))


def test_a_csv_holds_messages_calls_and_tools_as_json():
    cells = {name: json.dumps(value) for name, value in ROW.items()}
    assert conversation_in(row(**cells)) == DIALOGUE
    calls = [m | ({"tool_calls": json.dumps(m["tool_calls"])} if "tool_calls" in m else {}) for m in ROW["messages"]]
    assert conversation_in(row(**ROW | {"messages": calls})) == DIALOGUE
    assert row(messages="[a]").messages("messages") == (Message("user", "[a]"),)


def test_parquet_gives_each_tool_the_fields_of_all_others(tmp_path):
    import pyarrow
    import pyarrow.parquet

    other = {"name": "time", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}}
    calls = [
        {"function": {"name": "weather", "arguments": {"city": "Rome"}}},
        {"function": {"name": "time", "arguments": {"zone": "CET"}}},
    ]
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": calls}]
    rows = [{"messages": messages, "tools": [TOOL, {"type": "function", "function": other}]}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    ((question, answer),) = load_demonstrations(str(tmp_path / "a.parquet"))
    assert json.loads(question.tools[1])["function"]["parameters"]["properties"] == {"zone": {"type": "string"}}
    assert [call.arguments for call in answer.tool_calls] == ['{"city": "Rome"}', '{"zone": "CET"}']


def arguments(given: object, schema: object = None) -> dict:
    """The arguments of a call as they are read, of a tool with that schema; without one there is no column `tools`."""
    calls = [{"function": {"name": "f", "arguments": given}}]
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": calls}]
    tools = {} if schema is None else {"tools": [{"name": "f", "parameters": schema}]}
    return json.loads(conversation_in(row(messages=messages, **tools))[1].tool_calls[0].arguments)


TEXT, MAYBE = {"type": "string"}, {"type": ["string", "null"]}


@pytest.mark.parametrize(
    ("of_unit", "kept"),
    [
        (TEXT, False),
        (MAYBE, True),
        ({"type": "null"}, True),
        ({"type": "string", "nullable": True}, True),
        ({"anyOf": [TEXT, {"type": "null"}]}, True),
        ({"oneOf": [TEXT, {"type": "integer"}]}, False),
        ({"enum": ["C", None]}, True),
        ({"enum": ["C", "F"]}, False),
        ({"$ref": "#/$defs/unit"}, False),
        ({"description": "any value"}, True),
    ],
)
def test_a_null_for_an_optional_parameter_that_cannot_be_null_is_left_out(of_unit, kept):
    schema = {"type": "object", "properties": {"city": TEXT, "unit": of_unit}, "required": ["city"]}
    whole = {"city": "Paris", "unit": None}
    expected = whole if kept else {"city": "Paris"}
    assert arguments(whole | {"query": None}, schema) == expected
    assert arguments(json.dumps(whole | {"query": None}), schema) == whole | {"query": None}  # as it was written
    assert arguments(whole, schema | {"required": ["city", "unit"]}) == whole


def test_nulls_in_objects_and_lists_of_arguments_are_left_out_by_their_own_schema():
    place = {"type": "object", "properties": {"name": TEXT, "zip": MAYBE, "code": TEXT}}
    schema = {"type": "object", "properties": {"at": place, "via": {"type": "array", "items": place}}}
    full, kept = {"name": "a", "zip": None, "code": None, "other": None}, {"name": "a", "zip": None}
    assert arguments({"at": full, "via": [full, full]}, schema) == {"at": kept, "via": [kept, kept]}


def test_a_malformed_schema_says_nothing_of_nulls():
    properties = {"a": {"enum": "x"}, "b": {"anyOf": 3}, "c": True, "d": {"type": 3}}
    given = dict.fromkeys("abcd") | {"e": 1}
    assert arguments(given, {"properties": properties, "required": True}) == {"b": None, "c": None, "e": 1}
    assert arguments(given, {"properties": ["a"]}) == {"e": 1}


def test_without_a_schema_nulls_of_an_object_are_left_out_and_those_of_text_stay():
    given = {"city": "Paris", "unit": None, "more": [{"a": 1, "b": None}, None]}
    assert arguments(given) == {"city": "Paris", "more": [{"a": 1}, None]}
    assert arguments(json.dumps(given)) == given


def asks(**message) -> list[dict]:
    return [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"} | message]


BAD = [
    ({"messages": asks(tool_calls="x")}, "message 2 tool_calls must be a list of {id, type, function}; got 'x'"),
    ({"messages": asks(tool_calls=[{}])}, "message 2 call 1 must be {id, type, function: {name, arguments}}; got {}"),
    ({"messages": asks(tool_calls=[{"function": {"name": " "}}])}, "call 1 must be {id, type, function"),
    ({"messages": asks(tool_calls=[{"type": "code", "function": {"name": "f"}}])}, "call 1 is of type 'code'"),
    ({"messages": asks(tool_calls=[{"name": "f", "arguments": "{a"}])}, "arguments must be a JSON object, or one as"),
    ({"messages": asks(tool_calls=[{"name": "f", "arguments": "[1]"}])}, "arguments must be a JSON object"),
    ({"messages": asks(tool_calls=[{"name": "f", "arguments": 3}])}, "arguments must be a JSON object"),
    ({"messages": asks(tool_calls=[{"name": "f", "arguments": '{"a": NaN}'}])}, "arguments cannot be written as JSON"),
    ({"messages": asks(tool_calls=[{"name": "f", "arguments": '{"a": "\\ud800"}'}])}, "half of a surrogate pair"),
    ({"messages": asks(tool_calls=[{"name": "f", "arguments": "[" * 99999}])}, "arguments must be a JSON object"),
    ({"messages": asks(tool_calls=[{"name": "f", "id": 3}])}, "call 1 has a id that is not text: 3"),
    ({"messages": asks(role="user", tool_calls=[{"name": "f"}])}, "only the assistant calls tools"),
    ({"messages": asks(role="user", reasoning_content="x")}, "only the assistant has one"),
    ({"messages": asks(content=[{"type": "image_url", "image_url": "x"}])}, "part 1 is of type 'image_url'; only text"),
    ({"messages": asks(content=["b"])}, "message 2 content part 1 is 'b'; only text is read"),
    ({"messages": asks(), "tools": "search"}, "field 'tools' must be a list of JSON schemas"),
    ({"messages": asks(), "tools": ["search"]}, "tool 1 must be {type: function, function: {name"),
    ({"messages": asks(), "tools": [{"name": "f", "parameters": 3}]}, "tool 1 has parameters that are no JSON schema"),
]


@pytest.mark.parametrize("fields, problem", BAD)
def test_a_malformed_row_is_named_in_one_line(fields, problem):
    with pytest.raises(DataError) as caught:
        conversation_in(row(**fields))
    assert str(caught.value).startswith("data.jsonl line 17: field '") and problem in str(caught.value)
    assert "\n" not in str(caught.value)
    if "tools" in fields:
        assert str(caught.value).endswith('rename it with `columns="other=tools"`')


def test_text_parts_are_one_text():
    parts = [{"type": "text", "text": "1+"}, {"type": "text", "text": "1?", "image_url": None}]
    assert row(prompt=[{"role": "user", "content": parts}]).messages("prompt") == (Message("user", "1+1?"),)


def test_a_reasoning_is_kept_apart_and_learned_where_the_template_shows_it():
    said = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4", "reasoning_content": "easy"}]
    conversation = conversation_in(row(messages=said))
    assert conversation[1] == Message("assistant", "4", reasoning="easy")
    example = CHATS["qwen3"].training_ids(conversation)
    assert marked(CHATS["qwen3"], example).endswith("⟦<think>\neasy\n</think>\n\n4<|im_end|>⟧")
    with pytest.raises(TemplateError, match=r"drops part of assistant turn 1 \(of 'easy'\)"):
        CHATS["llama3"].training_ids(conversation)


QWEN = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
MISTRAL_CALL = '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Paris"}, "id": "callparis"}]</s>'
# family -> the system turn, the first question, the call, the result, and the answer, as far as ⟦ and ⟧ mark it
FIRST = {
    "smollm3": (
        "<|im_start|>system\nYou are SmolLM.\n\n### Tools\n\n<tools>\n" + str(TOOL) + "\n</tools>\n\nFor each function "
        "call, return a json object within <tool_call></tool_call> XML tags.<|im_end|>\n"
        "<|im_start|>user\nRain in Paris?<|im_end|>\n<|im_start|>assistant\n"
        '⟦<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>⟧'
        '\n<|im_start|>user\n{"rain": true}<|im_end|>\n<|im_start|>assistant\n⟦Yes.<|im_end|>⟧'
    ),
    "hermes": (
        "<|im_start|>system\nYou are a function calling AI model.\n<tools>\n" + SCHEMA + "\n</tools><|im_end|>\n"
        "<|im_start|>user\nRain in Paris?<|im_end|>\n<|im_start|>assistant\n"
        '⟦<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>⟧'
        '\n<|im_start|>tool\n<tool_response>\n{"rain": true}\n</tool_response><|im_end|>\n'
        "<|im_start|>assistant\n⟦Yes.<|im_end|>⟧"
    ),
    "qwen2.5": (
        f"<|im_start|>system\n{QWEN}\n\n# Tools\n\n<tools>\n{SCHEMA}\n</tools><|im_end|>\n"
        "<|im_start|>user\nRain in Paris?<|im_end|>\n<|im_start|>assistant\n"
        '⟦<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>⟧'
        '\n<|im_start|>user\n<tool_response>\n{"rain": true}\n</tool_response><|im_end|>\n'
        "<|im_start|>assistant\n⟦Yes.<|im_end|>⟧"
    ),
    "llama3": (
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n"
        f"Given the following functions, respond with a JSON for a function call.\n\n{SCHEMA}\n\nRain in Paris?"
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        '⟦{"name": "weather", "parameters": {"city": "Paris"}}<|eot_id|>⟧'
        '<|start_header_id|>ipython<|end_header_id|>\n\n"{\\"rain\\": true}"<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n⟦Yes.<|eot_id|>⟧"
    ),
    "mistral-v3": (
        f"<s>[AVAILABLE_TOOLS] [{SCHEMA}][/AVAILABLE_TOOLS][INST] Rain in Paris?[/INST]"
        f"⟦{MISTRAL_CALL}⟧"
        '[TOOL_RESULTS] {"content": {"rain": true}, "call_id": "callparis"}[/TOOL_RESULTS]⟦ Yes.</s>⟧'
    ),
}
SECOND = {
    "smollm3": (
        "\n<|im_start|>user\nAnd Rome?<|im_end|>\n<|im_start|>assistant\n"
        '⟦<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call><|im_end|>⟧'
        '\n<|im_start|>user\n{"rain": false}<|im_end|>\n<|im_start|>assistant\n⟦No.<|im_end|>⟧'
    ),
    "hermes": (
        "\n<|im_start|>user\nAnd Rome?<|im_end|>\n<|im_start|>assistant\n"
        '⟦<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call><|im_end|>⟧'
        '\n<|im_start|>tool\n<tool_response>\n{"rain": false}\n</tool_response><|im_end|>\n'
        "<|im_start|>assistant\n⟦No.<|im_end|>⟧"
    ),
    "llama3": (
        "<|start_header_id|>user<|end_header_id|>\n\nAnd Rome?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
        '⟦{"name": "weather", "parameters": {"city": "Rome"}}<|eot_id|>⟧'
        '<|start_header_id|>ipython<|end_header_id|>\n\n"{\\"rain\\": false}"<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n⟦No.<|eot_id|>⟧"
    ),
}
SECOND["qwen2.5"] = SECOND["hermes"].replace("<|im_start|>tool\n", "<|im_start|>user\n")


@pytest.mark.parametrize("name", FIRST)
def test_a_call_is_learned_and_a_result_is_not(name):
    assert marked(CHATS[name], CHATS[name].training_ids(DIALOGUE[:4])) == FIRST[name]


@pytest.mark.parametrize("name", SECOND)
def test_later_turns_too(name):
    assert marked(CHATS[name], CHATS[name].training_ids(DIALOGUE)) == FIRST[name] + SECOND[name]


def test_mistral_moves_its_tools_so_each_turn_is_an_example_of_its_own():
    chat = CHATS["mistral-v3"]
    with pytest.raises(TemplateError, match="moves the system message or the tools"):
        chat.training_ids(DIALOGUE)
    examples = [marked(chat, example) for example in chat.training_examples(DIALOGUE)]
    assert [text[text.index("⟦") :] for text in examples] == [
        f"⟦{MISTRAL_CALL}⟧",
        "⟦ Yes.</s>⟧",
        '⟦[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Rome"}, "id": "call-rome"}]</s>⟧',
        "⟦ No.</s>⟧",
    ]
    assert examples[3].startswith(f"<s>[INST] Rain in Paris?[/INST]{MISTRAL_CALL}[TOOL_RESULTS]")
    assert f"[AVAILABLE_TOOLS] [{SCHEMA}][/AVAILABLE_TOOLS][INST] And Rome?[/INST][TOOL_CALLS]" in examples[3]


def test_qwen3_thinks_before_it_calls():
    chat = CHATS["qwen3"]
    conversation = [DIALOGUE[0], replace(DIALOGUE[1], reasoning="Ask."), *DIALOGUE[2:4]]
    assert marked(chat, chat.training_ids(conversation)) == (
        f"<|im_start|>system\n# Tools\n\n<tools>\n{SCHEMA}\n</tools><|im_end|>\n"
        "<|im_start|>user\nRain in Paris?<|im_end|>\n<|im_start|>assistant\n"
        '⟦<think>\nAsk.\n</think>\n\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
        '<|im_end|>⟧\n<|im_start|>user\n<tool_response>\n{"rain": true}\n</tool_response><|im_end|>\n'
        "<|im_start|>assistant\n⟦<think>\n\n</think>\n\nYes.<|im_end|>⟧"
    )


def test_content_and_several_calls_are_one_turn():
    turn = Message("assistant", "Both.", tuple(ToolCall("", "weather", f'{{"city": "{c}"}}') for c in ("Rome", "Bari")))
    for name in ("qwen2.5", "hermes", "smollm3"):
        text = marked(CHATS[name], CHATS[name].training_ids([DIALOGUE[0], turn]))
        assert text[text.index("⟦") :] == (
            '⟦Both.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "weather", "arguments": {"city": "Bari"}}\n</tool_call><|im_end|>⟧'
        )
    with pytest.raises(TemplateError, match=r"only supports single tool-calls"):
        CHATS["llama3"].training_ids([DIALOGUE[0], turn])
    with pytest.raises(TemplateError, match=r"drops part of assistant turn 1 \(of 'Both.'\)"):
        CHATS["llama3"].training_ids([DIALOGUE[0], replace(turn, tool_calls=turn.tool_calls[:1])])


@pytest.mark.parametrize("name", ["smollm2", "gemma2", "mistral", "phi3"])
def test_a_template_that_knows_no_tools_is_an_error_and_not_silence(name):
    with pytest.raises(TemplateError, match=r"does not render the tool 'weather'; give one .* with `chat_template`"):
        CHATS[name].prompt_ids(DIALOGUE[:1])
    bare = (replace(DIALOGUE[0], tools=()), *DIALOGUE[1:])
    with pytest.raises(TemplateError, match=r"drops part of assistant turn 1 \(of 'weather'\)|refuses"):
        CHATS[name].training_ids(bare[:2])
    with pytest.raises(
        TemplateError, match=r"drops 'weather' from the tool calls of message 2|drops the result|refuses"
    ):
        CHATS[name].prompt_ids(bare[:3])


CHATML_CALLS = (
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name ~ ARGUMENTS }}{% endfor %}"
    "{{ '<|endoftext|>' if m.tool_calls else '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_a_turn_that_calls_may_end_with_another_stop_token():
    chat = chat_of(CHATML_CALLS.replace("ARGUMENTS", "c.function.arguments | tojson"))
    conversation = [Message("user", "a"), *DIALOGUE[1:4]]
    assert marked(chat, chat.training_ids(conversation)) == (
        '<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n⟦weather{"city": "Paris"}<|endoftext|>⟧'
        '<|im_start|>tool\n{"rain": true}<|im_end|>\n<|im_start|>assistant\n⟦Yes.<|im_end|>⟧'
    )


def test_a_tag_that_closes_a_call_is_no_stop_token():
    closes = CHATML_CALLS.replace("<|endoftext|>", "</tool_call>").replace(
        "ARGUMENTS", "(c.function.arguments | tojson)"
    )
    with pytest.raises(TemplateError, match="before assistant turn 1 differently once the turn is there"):
        chat_of(closes).training_ids([Message("user", "a"), DIALOGUE[1]])


def test_a_template_that_wants_arguments_as_text_gets_text():
    chat = chat_of(CHATML_CALLS.replace("ARGUMENTS", "('' + c.function.arguments)"))
    text = marked(chat, chat.training_ids([Message("user", "a"), DIALOGUE[1]]))
    assert text.endswith('⟦weather{"city":"Paris"}<|endoftext|>⟧')  # as the policy wrote it


def test_a_template_that_drops_an_argument_is_an_error():
    chat = chat_of(CHATML_CALLS.replace("ARGUMENTS", "'()'"))
    with pytest.raises(TemplateError, match=r"drops part of assistant turn 1 \(of 'city'\)"):
        chat.training_ids([Message("user", "a"), DIALOGUE[1]])


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("", "weather", '{"city": "<|im_end|>"}'),
        ToolCall("", "weather", r'{"city": "\u003c|im_end|>"}'),  # the template writes what it stands for
        ToolCall("", "weather", r'{"at": [{"\u003c|im_end|\u003e": 1}]}'),
        ToolCall("", "<|im_end|>", "{}"),
    ],
)
def test_a_stop_token_in_a_call_is_an_error(call):
    call = Message("assistant", "", (call,))
    with pytest.raises(TemplateError, match=r"turn 1 contains the stop token '<\|im_end\|>'"):
        CHATS["qwen2.5"].training_ids([DIALOGUE[0], call])


WORDS = st.text(alphabet="ab \"'\\{}\n<>é", min_size=1, max_size=8).filter(lambda text: text.strip())


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(["smollm3", "hermes", "qwen2.5", "llama3"]),
    turns=st.lists(st.tuples(WORDS, WORDS, WORDS, WORDS), min_size=1, max_size=2),
)
def test_calls_are_trained_behind_the_prompts_that_inference_sees(name, turns):
    chat = CHATS[name]
    messages = []
    for question, city, result, answer in turns:
        call = ToolCall("", "weather", json.dumps({"city": city}, ensure_ascii=False))
        messages += [Message("user", question), Message("assistant", "", (call,)), Message("tool", result)]
        messages += [Message("assistant", answer)]
    messages[0] = replace(messages[0], tools=(SCHEMA,))
    token_ids, mask = chat.training_ids(messages)
    starts = [i for i, m in enumerate(mask) if m and (i == 0 or not mask[i - 1])]
    assert [token_ids[:start] for start in starts] == [
        chat.prompt_ids(messages[:turn]) for turn in range(1, len(messages), 2)
    ]
    learned = [text_of(chat, [t]) for t, m in zip(token_ids, mask, strict=True) if m]
    assert "".join(learned).count("weather") == len(turns) + "".join(t[3] for t in turns).count("weather")


def test_a_prompt_has_earlier_calls_and_a_column_of_tools(tmp_path):
    task = task_in(row(prompt=ROW["messages"][:3], answer="Yes.", tools=[TOOL]))
    assert task.prompt == DIALOGUE[:3] and task.metadata["tools"] == [TOOL]
    for name, expected in FIRST.items():
        prompt = expected[: expected.rindex("⟦")].replace("⟦", "").replace("⟧", "")
        assert text_of(CHATS[name], CHATS[name].prompt_ids(task.prompt)) == prompt
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": "Rain?", "tools": [TOOL]}), encoding="utf-8")
    (task,) = load_tasks(str(tmp_path / "a.jsonl"), system="Be brief.", prompt_template="{prompt} Say.")
    assert [(m.role, m.content, len(m.tools)) for m in task.prompt] == [
        ("system", "Be brief.", 1),
        ("user", "Rain? Say.", 0),
    ]


def test_dressing_keeps_calls_ids_and_names():
    dressed = dress(DIALOGUE, None, "{prompt}!")
    assert [m.content for m in dressed if m.role == "user"] == ["Rain in Paris?!", "And Rome?!"]
    assert [replace(m, content="") for m in dressed] == [replace(m, content="") for m in DIALOGUE]


def pair(**fields):
    (found,) = preferences_in(row(**fields))
    return found


def test_two_responses_may_differ_in_their_calls_alone():
    calls = [
        [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "weather", "arguments": {"city": c}}}],
            }
        ]
        for c in ("Paris", "London")
    ]
    found = pair(prompt=ROW["messages"][:1], chosen=calls[0], rejected=calls[1], tools=[TOOL])
    chat = CHATS["qwen2.5"]
    chosen, rejected = pair_of(chat, found)
    assert text_of(chat, chosen.prefix) == FIRST["qwen2.5"][: FIRST["qwen2.5"].index("⟦")]
    written_calls = [
        f'<tool_call>\n{{"name": "weather", "arguments": {{"city": "{c}"}}}}\n</tool_call><|im_end|>'
        for c in ("Paris", "London")
    ]
    assert [text_of(chat, e.continuation) for e in (chosen, rejected)] == written_calls
    assert all(chosen.learned) and all(rejected.learned)
    assert ranked_of(chat, [found]).examples == (chosen, rejected)
    assert [judged_of(chat, one).example for one in judgements_of(found)] == [chosen, rejected]
    whole = pair(chosen=ROW["messages"][:1] + calls[0], rejected=ROW["messages"][:1] + calls[1], tools=[TOOL])
    assert whole == found


def test_a_pair_whose_reasoning_is_apart_is_an_error():
    said = [[{"role": "assistant", "content": c, "reasoning": "x"}] for c in "ab"]
    with pytest.raises(
        DataError, match="line 17: field 'chosen' has its reasoning apart from the content; write it there"
    ):
        pair(prompt="?", chosen=said[0], rejected=said[1])


@pytest.mark.parametrize("target", ["pairs", "conversations", "judgements", "demonstrations"])
def test_converted_rows_keep_calls_and_tools(target):
    turn = ROW["messages"][1]
    found = pair(
        prompt=ROW["messages"][:1], chosen=[turn], rejected=[{"role": "assistant", "content": "No."}], tools=[TOOL]
    )
    item = found if target in ("pairs", "conversations") else judgements_of(found)
    first = TARGETS[target].rows(item)[0]
    assert first["tools"] == [TOOL] and '"weather"' in json.dumps(first.get("chosen") or first)


def test_written_messages_are_read_back():
    fields = {"messages": written(DIALOGUE)} | tools_column(DIALOGUE)
    assert conversation_in(row(**json.loads(json.dumps(fields)))) == DIALOGUE
    assert written([Message("user", "a")]) == [{"role": "user", "content": "a"}]  # nothing that is not there


def test_a_template_with_a_variant_for_tools_is_chosen_by_the_tools():
    tokenizer = of_family("qwen2.5")
    plain = of_family("smollm2").chat_template
    tokenizer.chat_template = {"default": plain, "tool_use": tokenizer.chat_template}
    chat = ChatFormat(tokenizer)
    assert "<tools>" in text_of(chat, chat.prompt_ids(DIALOGUE[:1]))
    assert "SmolLM" in text_of(chat, chat.prompt_ids([Message("user", "a")]))
