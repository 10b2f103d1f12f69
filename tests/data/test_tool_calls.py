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


def described(name, **properties) -> str:
    """A tool whose parameters have these schemas, or these types."""
    typed = {key: {"type": each} if isinstance(each, str) else each for key, each in properties.items()}
    about = {"name": name, "description": "", "parameters": {"type": "object", "properties": typed}}
    return json.dumps({"type": "function", "function": about})


TOOLS = (
    described("weather", city="string", days="integer"),
    described("a_b-c.d", a="object", e="boolean", f="number", g="string"),
    described("f1", n={"type": ["integer", "object"]}, k="string"),
)
ASK = Message("user", "Go.", tools=TOOLS)
NEST = {"a": {"b": [1, {"c": "}"}], "d": None}, "e": True, "f": -1.5, "g": "x"}


def wrote(chat, calls, content="") -> str:
    """What the policy must sample to say this, as it is decoded."""
    numbered = tuple(ToolCall(f"callid{n:03d}", name, json.dumps(given)) for n, (name, given) in enumerate(calls))
    return chat._written([ASK, Message("assistant", content, numbered)])


def read(chat, text, tools=TOOLS):
    found = chat.parse(text, tools=tools)
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


# the schema of a parameter, what stands between its tags, and what that is
PLACE = {"type": "object", "properties": {"x": {"type": "integer"}}}
MAYBE = {"anyOf": [{"type": "string"}, {"type": "null"}]}
BETWEEN_TAGS = [
    *(("string", text, text) for text in ("42", "true", "null", '{"a": 1}', '"90210"', "", " a ", "[" * 9000)),
    *(("integer", text, value) for text, value in (("42", 42), (" -7\n", -7), ("4.0", 4.0), ("4 apples", "4 apples"))),
    *(("integer", text, text) for text in ('"42"', "[" * 9000, "")),  # as it was written, and the policy's error
    *(("number", text, value) for text, value in (("42", 42), ("-0.5", -0.5), ("1e3", 1000.0))),
    *(("boolean", text, value) for text, value in (("true", True), ("False", False), ("yes", "yes"))),
    *(("array", text, value) for text, value in (('[1, "a"]', [1, "a"]), ("1, 2", "1, 2"))),
    ("object", '{"a": {}}', {"a": {}}),
    (["string", "integer"], "42", "42"),
    (["integer", "null"], "42", 42),
    (["integer", "null"], "null", None),
    (["integer", "null"], "None", None),
    ({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}, "42", 42),
    *((MAYBE, text, value) for text, value in (("42", "42"), ("null", None), ("none", "none"))),
    ({"type": "string", "nullable": True}, "null", None),
    *(({"enum": ["a", 1]}, text, value) for text, value in (("a", "a"), ("1", 1), ("2", 2))),
    *(({"$ref": "#/$defs/Place"}, text, value) for text, value in (('{"x": 1}', {"x": 1}), ("x", "x"))),
    ({"description": "anything"}, "42", "42"),
]


@pytest.mark.parametrize("name", list(PAIRS))
@pytest.mark.parametrize(("kind", "text", "value"), BETWEEN_TAGS)
def test_what_stands_between_tags_has_the_type_that_the_schema_gives_it(name, kind, text, value):
    known = json.loads(described("f1", v=kind if isinstance(kind, dict) else {"type": kind}))
    known["function"]["parameters"]["$defs"] = {"Place": PLACE}
    written = wrote(CHATS[name], [("f1", {"v": text})])
    found = read(CHATS[name], written, [described("weather", v="integer"), json.dumps(known)])
    assert json.dumps(found) == json.dumps(("", [("f1", {"v": value})]))  # 1 is neither 1.0 nor true
    assert found == read(CHATS[name], written, [json.dumps(known["function"])])  # the function's schema alone


@pytest.mark.parametrize("name", list(PAIRS))
def test_what_no_schema_describes_is_text(name):
    given = {"a": "42", "b": "true", "c": "null", "d": "[1]"}
    for tools in ((), (described("other", a="integer"),), (described("f1", z="integer"),), ("{}",)):
        assert read(CHATS[name], wrote(CHATS[name], [("f1", given)]), tools) == ("", [("f1", given)])


def test_null_and_booleans_are_read_as_a_template_writes_them_in_python():
    """Qwen3-Coder's template writes what is neither text nor a list with `| string`."""
    chat = ChatFormat(of_family("hermes", template=HEAD + TURNS.replace("CALL", PAIRS["functions"].replace(
        "value if value is string else value | tojson", "value | string"))))  # fmt: skip
    calls = [("f1", {"a": True, "b": False, "c": None, "d": "True", "e": 3})]
    optional = {"type": ["boolean", "null"]}
    tools = [described("f1", a="boolean", b=optional, c=optional, d="string", e="integer")]
    assert read(chat, wrote(chat, calls), tools) == ("", calls)


@pytest.mark.parametrize("before", ["\n", ""])
@pytest.mark.parametrize("after", ["\n", ""])
@pytest.mark.parametrize("value", ["x", "    return 1\n", "\n\nx\n\n", "\tx ", "a\n  b", " ", ""])
def test_of_the_white_space_around_a_value_the_template_has_one_newline_and_the_value_the_rest(value, before, after):
    chat = CHATS["functions"]
    written = f"<tool_call>\n<function=f1>\n<parameter=k>{before}{value}{after}</parameter>\n</function>\n</tool_call>"
    meant = value
    if not before:  # a value that begins with the newline that the template would write
        meant = meant.removeprefix("\n")
    if not after:
        meant = meant.removesuffix("\n")
    assert read(chat, written) == ("", [("f1", {"k": meant})])


def test_a_value_ends_at_its_first_closing_tag():
    text = wrote(CHATS["functions"], [("f1", {"k": "a </parameter> b"})])
    assert read(CHATS["functions"], text) == (text, [])


@pytest.mark.parametrize("tag", ["think", "thinking", "reasoning"])
@pytest.mark.parametrize("name", [name for name in TALKING if name != "qwen3"])  # which writes an empty block itself
def test_a_call_that_the_reasoning_quotes_is_text(name, tag):
    chat = CHATS[name]
    quoted, meant = (wrote(chat, [call]) for call in (("weather", {"city": "Oslo"}), ("f1", {"n": 3})))
    on, off = f"<{tag}>", f"</{tag}>"
    for reasoning in (
        f"{on}Perhaps {quoted}?{off}",
        f"Perhaps {quoted}? Or {quoted}{off}",
        f"{on}{off}{on}{quoted}{off}",
    ):
        assert read(chat, reasoning) == (reasoning, [])
        assert read(chat, f"{reasoning}\n{meant}") == (reasoning, [("f1", {"n": 3})])
        assert read(chat, f"{reasoning}\nNo call.") == (f"{reasoning}\nNo call.", [])
    assert read(chat, f"{on}Perhaps {quoted}") == (f"{on}Perhaps {quoted}", [])  # cut off within it
    ended = f"{meant}\n{on}And {quoted}"
    assert read(chat, ended) == (f"{on}And {quoted}", [("f1", {"n": 3})])


@pytest.mark.parametrize("name", [name for name in TALKING if name not in PAIRS])
def test_tags_of_reasoning_within_arguments_are_text(name):
    for said in ("a </think> b", "<think>", "<think>a</think>"):
        calls = [("f1", {"k": said}), ("weather", {"city": said})][: 1 if name == "llama3" else 2]
        assert read(CHATS[name], wrote(CHATS[name], calls)) == ("", calls)


def test_a_call_behind_reasoning_that_the_prompt_opens_leaves_its_end_in_the_text():
    opened = TURNS.replace("assistant\n{% endif", "assistant\n<think>\n{% endif").replace(
        "\n{{ m.content }}", "\n{% if m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}"
    )
    for call in PAIRS.values():
        chat = ChatFormat(of_family("hermes", template=HEAD + opened.replace("CALL", call)))
        quoted, meant = wrote(chat, [("weather", {"city": "Oslo"})]), wrote(chat, [("f1", {"n": 3})])
        assert quoted.startswith("\n</think>\n\n")
        quoted = quoted.removeprefix("\n</think>\n\n")
        assert read(chat, f"Hm. {quoted} No.{meant}") == (f"Hm. {quoted} No.\n</think>", [("f1", {"n": 3})])


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


PLAIN = st.text(alphabet='xyz é☃.\n\t{}"1[]', max_size=9)
OF_TYPE = {
    "string": PLAIN,
    "integer": st.integers(),
    "boolean": st.booleans(),
    "array": st.lists(st.integers(), max_size=3),
}
TYPED = st.one_of(*(st.tuples(KEYS.map(f"{kind}-{{}}".format), each) for kind, each in OF_TYPE.items()))
FLAT = st.lists(TYPED, max_size=4).map(dict)


@pytest.mark.parametrize("name", list(PAIRS))
@given(st.lists(st.tuples(NAMES, FLAT), min_size=1, max_size=3))
def test_any_pairs_are_read_as_they_were_written(name, calls):
    typed = {key: key.partition("-")[0] for _, given in calls for key in given}
    tools = [described(called, **typed) for called, _ in calls]
    assert read(CHATS[name], wrote(CHATS[name], calls), tools) == ("", calls)


@pytest.mark.parametrize("name", TALKING)
@given(st.text(alphabet='<>tool_call/{}[]":,\nfarguments namep=1', max_size=60))
def test_no_text_is_lost_or_an_error(name, text):
    found = CHATS[name].parse(text)
    if not found.tool_calls:
        assert found.content == text
