"""Calls of tools, read back from what each family's template writes, and from what no template would."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.data.chat import ChatFormat
from posttrain.errors import TemplateError
from posttrain.types import Message, ToolCall
from tests.data.families import FAMILIES, of_family

HEAD = "{%- for t in messages[0].tools or tools or [] %}{{ t | tojson }}{% endfor -%}"
TURNS = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{%- for call in m.tool_calls or [] -%}CALL{%- endfor -%}<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif -%}"
)
# as Qwen3-Coder and GLM 4.5 write them
PAIRS = {
    "functions": (
        "\n<tool_call>\n<function={{ call.function.name }}>\n{% for key, value in call.function.arguments | items %}"
        "<parameter={{ key }}>\n{{ value if value is string else value | tojson }}\n</parameter>\n{% endfor %}"
        "</function>\n</tool_call>"
    ),
    "keys": (
        "\n<tool_call>{{ call.function.name }}\n{% for key, value in call.function.arguments | items %}"
        "<arg_key>{{ key }}</arg_key>\n<arg_value>{{ value if value is string else value | tojson }}</arg_value>\n"
        "{% endfor %}</tool_call>"
    ),
}


def made() -> dict[str, ChatFormat]:
    found = {name: ChatFormat(of_family(name)) for name in FAMILIES}
    for name, call in PAIRS.items():
        found[name] = ChatFormat(of_family("hermes", template=HEAD + TURNS.replace("CALL", call)))
    return found


CHATS = made()
SILENT = ("smollm2", "gemma2", "gemma3", "mistral", "phi3")
TALKING = [name for name in CHATS if name not in SILENT]
TOOLS = tuple(
    json.dumps({"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}})
    for name in ("weather", "a_b-c.d", "f1")
)
ASK = Message("user", "Go.", tools=TOOLS)
NEST = {"a": {"b": [1, {"c": "}"}], "d": None}, "e": True, "f": -1.5, "g": "x"}


def wrote(chat, calls, content="") -> str:
    """What the policy must sample to say this, as it is decoded."""
    numbered = tuple(ToolCall(f"callid{n:03d}", name, json.dumps(given)) for n, (name, given) in enumerate(calls))
    return chat._written([ASK, Message("assistant", content, numbered)])


def read(chat, text):
    found = chat.parse(text)
    return found.content, [(call.name, json.loads(call.arguments)) for call in found.tool_calls]


@pytest.mark.parametrize("name", SILENT)
def test_a_template_without_calls_says_so(name):
    with pytest.raises(TemplateError, match="the chat template writes no calls of tools; give one that does"):
        CHATS[name].parse("hello")


def test_a_form_that_cannot_be_read_back_is_refused():
    call = "{{ call.function.name }}({% for k, v in call.function.arguments | items %}{{ k }}={{ v }} {% endfor %})"
    chat = ChatFormat(of_family("hermes", template=HEAD + TURNS.replace("CALL", call)))
    with pytest.raises(TemplateError, match="which is no form that can be read back"):
        chat.parse("hello")


@pytest.mark.parametrize("name", TALKING)
@pytest.mark.parametrize("calls", [[("weather", {"city": "Paris"})], [("a_b-c.d", NEST)], [("f1", {"k": "1\n2"})]])
def test_a_call_is_read_as_it_was_written(name, calls):
    assert read(CHATS[name], wrote(CHATS[name], calls)) == ("", calls)


@pytest.mark.parametrize("name", [name for name in TALKING if name != "llama3"])  # which writes one call alone
def test_several_calls_are_read_in_order_with_ids_of_their_own(name):
    calls = [("weather", {"city": "Rome"}), ("f1", {"n": 3}), ("weather", {"city": "Rome"})]
    text = wrote(CHATS[name], calls)
    assert read(CHATS[name], text) == ("", calls)
    assert [call.id for call in CHATS[name].parse(text, "call07").tool_calls] == ["call07000", "call07001", "call07002"]


@pytest.mark.parametrize("name", [name for name in TALKING if name not in ("llama3", "mistral-v3")])
def test_what_is_said_beside_a_call_stays(name):
    text = wrote(CHATS[name], [("f1", {"n": 3})], "Let me look.")
    empty = "<think>\n\n</think>\n\n" if name == "qwen3" else ""  # what that template writes before every turn
    assert read(CHATS[name], text) == (f"{empty}Let me look.", [("f1", {"n": 3})])
    told = (f"One. {empty}Let me look.\nThree.\n\nFour.", [("f1", {"n": 3})] * 2)
    assert read(CHATS[name], f"One. {text} Three.\n\nFour. {text.removeprefix(f'{empty}Let me look.')}") == told


@pytest.mark.parametrize("name", TALKING)
def test_white_space_between_the_parts_may_be_otherwise(name):
    text = wrote(CHATS[name], [("f1", {"n": 3})])
    for other in (text.replace("\n", "\n \n"), text.replace("\n", ""), text.replace(": ", " :  "), f"  {text}\n\n"):
        assert read(CHATS[name], other)[1] == [("f1", {"n": 3})], other


@pytest.mark.parametrize("name", TALKING)
def test_without_a_call_the_text_stays_as_it_is(name):
    for text in ("", "  Fine. \n", '{"a": 1}', "<b>x</b>", "[1, 2]", "{" * 9, '{"name": 3}'):
        found = CHATS[name].parse(text)
        assert (found.content, found.tool_calls) == (text, ())


@pytest.mark.parametrize("name", TALKING)
def test_a_call_that_is_cut_off_within_its_arguments_is_none(name):
    text = wrote(CHATS[name], [("weather", {"city": "Paris", "days": 12})])
    end = text.index("12")
    for cut in range(end + 1):
        found = CHATS[name].parse(text[:cut])
        assert (found.content, found.tool_calls) == (text[:cut], ()), cut


@pytest.mark.parametrize("name", [n for n in TALKING if n not in PAIRS])
def test_arguments_that_are_no_object_are_no_call(name):
    text = wrote(CHATS[name], [("f1", {"n": 3})])
    for wrong in ("[3]", "3", '"n"', "null", "{n: 3}", "{'n': 3}", "", "{" * 5000):
        found = CHATS[name].parse(text.replace('{"n": 3}', wrong))
        assert found.tool_calls == (), wrong


@pytest.mark.parametrize("name", [n for n in TALKING if n not in PAIRS])
def test_a_call_whose_arguments_are_whole_needs_no_end(name):
    text = wrote(CHATS[name], [("f1", {"n": {"m": 3}})])
    whole = text.index("3}}") + 3
    for end in range(whole, len(text) + 1):
        assert read(CHATS[name], text[:end])[1] == [("f1", {"n": {"m": 3}})], text[:end]


@pytest.mark.parametrize("name", [n for n in TALKING if n not in PAIRS])
def test_a_call_inside_the_arguments_of_another_is_text(name):
    chat = CHATS[name]
    inner = wrote(chat, [("weather", {"city": "Oslo"})])
    calls = [("f1", {"text": f"before {inner} behind", "more": {"deep": [inner]}})]
    assert read(chat, wrote(chat, calls)) == ("", calls)


@pytest.mark.parametrize("name", [n for n in TALKING if n not in ("llama3", "mistral-v3")])
def test_a_malformed_call_does_not_hide_the_next_one(name):
    chat = CHATS[name]
    whole, broken = wrote(chat, [("f1", {"n": 3})]), wrote(chat, [("weather", {"city": "Paris"})])
    start = broken[: broken.index("city")]
    content, calls = read(chat, f"{start}\n{whole}")
    assert calls == [("f1", {"n": 3})] and "weather" in content


def test_numbers_lists_and_objects_between_tags_are_read_as_such_and_all_else_is_text():
    given = {"n": 3, "x": -0.5, "l": [1, "a"], "o": {"a": {}}, "s": "3 apples", "t": True, "e": ""}
    for name in PAIRS:
        assert read(CHATS[name], wrote(CHATS[name], [("f1", given)])) == ("", [("f1", given)])
        assert read(CHATS[name], wrote(CHATS[name], [("f1", {"s": "[" * 9000})])) == ("", [("f1", {"s": "[" * 9000})])


def test_what_stands_around_a_result_is_learned_from_the_template_not_from_its_name():
    call = "\n@@{{ call.function.name }}@{{ call.function.arguments | tojson }}@@"
    chat = ChatFormat(of_family("hermes", template=HEAD + TURNS.replace("CALL", call)))
    assert read(chat, 'Yes. @@f1@{"n": {"m": 1}}@@ No.') == ("Yes.\nNo.", [("f1", {"n": {"m": 1}})])


GARBAGE = {
    "spaces": " " * 60_000,
    "lines": "\n" * 60_000,
    "braces": "{" * 60_000,
    "brackets": "[" * 60_000,
    "angles": "<" * 60_000,
    "angles and spaces": "< " * 30_000,
    "opened": "<tool_call>\n" * 5_000,
    "json": '{"name": "' * 6_000,
    "arguments": '<tool_call>\n{"name": "f1", "arguments": ' * 1_500,
    "parameters": '{"name": "f1", "parameters": {"a": ' * 1_500,
    "list": '[{"name": "f1", "arguments": {' * 1_500,
    "functions": "<tool_call>\n<function=f1>\n<parameter=a>\n" * 400,
    "keys": "<tool_call>f1\n<arg_key>a</arg_key>\n<arg_value>" * 400,
    "names": "<tool_call>" + "a" * 60_000,
    "ids": '[{"name": "f1", "arguments": {}, "id": "' + "a" * 60_000,
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_takes_no_time(what):
    for name in TALKING:
        CHATS[name].parse("x")  # the form is learned once
        began = time.monotonic()
        CHATS[name].parse(GARBAGE[what])
        assert time.monotonic() - began < 2, name


# no signs that a tokenizer would take for its own
WORDS = st.text(alphabet='ab{}[]"\\\n:,é☃ /', max_size=12)
LEAVES = st.none() | st.booleans() | st.integers(-99, 99) | WORDS
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3))
KEYS = st.text(alphabet="abc_-9", min_size=1, max_size=6)
NAMES = st.sampled_from(["weather", "a_b-c.d", "f1"])
CALLS = st.lists(st.tuples(NAMES, st.dictionaries(KEYS, VALUES, max_size=3)), min_size=1, max_size=3)


@pytest.mark.parametrize("name", [n for n in TALKING if n not in PAIRS])
@given(CALLS)
def test_any_calls_are_read_as_they_were_written(name, calls):
    calls = calls[:1] if name == "llama3" else calls
    assert read(CHATS[name], wrote(CHATS[name], calls)) == ("", calls)


PLAIN = st.text(alphabet="xyz é☃.", min_size=1, max_size=9).map(str.strip).filter(bool)
FLAT = st.dictionaries(KEYS, PLAIN | st.integers() | st.booleans() | st.lists(st.integers(), max_size=3), max_size=3)


@pytest.mark.parametrize("name", list(PAIRS))
@given(st.lists(st.tuples(NAMES, FLAT), min_size=1, max_size=3))
def test_any_pairs_are_read_as_they_were_written(name, calls):
    assert read(CHATS[name], wrote(CHATS[name], calls)) == ("", calls)


@pytest.mark.parametrize("name", TALKING)
@given(st.text(alphabet='<>tool_call/{}[]":,\nfarguments namep=1', max_size=60))
def test_no_text_is_lost_or_an_error(name, text):
    found = CHATS[name].parse(text)
    if not found.tool_calls:
        assert found.content == text
