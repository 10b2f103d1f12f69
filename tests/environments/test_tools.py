"""Tools: their schemas, what a wrong call is told, and what a tool that fails does."""

import asyncio
import json
import time

import pytest

from posttrain.environments.tools import LONGEST, Tool, ToolError, run_calls, schemas, tool
from posttrain.errors import UserError
from posttrain.types import Message, ToolCall


def add(a: int, b: int = 1) -> int:
    """Add two
    numbers.

    Args:
        a: the first
    """
    return a + b


@tool
async def wait(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "done"


@tool
def block(seconds: float) -> str:
    """Wait without awaiting."""
    time.sleep(seconds)
    return "done"


@tool
def refuse(what: str) -> str:
    """Refuse."""
    raise ToolError(f"no {what} here")


@tool
def fail(what: str) -> str:
    """Fail."""
    raise ConnectionError(what)


def results(*calls, tools):
    asked = [ToolCall(f"call{n}", name, arguments) for n, (name, arguments) in enumerate(calls)]
    return asyncio.run(run_calls(asked, tools))


def test_a_schema_says_what_the_signature_and_the_docstring_say():
    assert json.loads(tool(add).schema) == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer", "description": "the first"}, "b": {"type": "integer"}},
                "required": ["a"],
            },
        },
    }
    assert schemas([tool(add), wait]) == (tool(add).schema, wait.schema)


def test_a_parameter_without_a_type_is_refused():
    def bare(a):
        return a

    def odd(a: dict) -> str:
        return str(a)

    for function in (bare, odd):
        with pytest.raises(
            UserError, match=rf"tool '{function.__name__}': parameter 'a' needs an annotation of str, int"
        ):
            tool(function)


def test_results_come_in_order_with_the_calls_they_answer():
    found = results(("add", '{"a": 2, "b": 3}'), ("add", '{"a": 2}'), tools=[tool(add)])
    assert found == [
        Message("tool", "5", tool_call_id="call0", name="add"),
        Message("tool", "3", tool_call_id="call1", name="add"),
    ]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (("ad", "{}"), "Error: there is no tool 'ad'; there are: add, refuse"),
        (("add", '{"a": 1'), "Error: the arguments of add are no JSON"),
        (("add", "[" * 100000), "Error: the arguments of add are no JSON"),
        (("add", "[1]"), "Error: the arguments of add are no JSON object"),
        (("add", "{}"), "Error: add: missing a required argument: 'a'"),
        (("add", '{"a": 1, "c": 2}'), "Error: add: got an unexpected keyword argument 'c'"),
        (("refuse", '{"what": "salt"}'), "Error: no salt here"),
    ],
)
def test_what_the_policy_did_wrong_is_said_to_it(call, said):
    assert [message.content for message in results(call, tools=[tool(add), refuse])] == [said]


@tool
def kinds(s: str = "", i: int = 0, f: float = 0.0, b: bool = False, l: list = ()) -> str:  # noqa: E741
    """Say what came."""
    return f"{s!r} {i!r} {f!r} {b!r} {l!r}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('{"s": "1", "i": 2, "f": 3, "b": true, "l": [1]}', "'1' 2 3 True [1]"),
        ('{"f": 0.5, "i": -9}', "'' -9 0.5 False ()"),
        ('{"i": "1"}', 'Error: kinds: i must be integer, not "1"'),
        ('{"i": 1.0}', "Error: kinds: i must be integer, not 1.0"),
        ('{"i": true}', "Error: kinds: i must be integer, not true"),
        ('{"f": true}', "Error: kinds: f must be number, not true"),
        ('{"f": "0.5"}', 'Error: kinds: f must be number, not "0.5"'),
        ('{"s": 1}', "Error: kinds: s must be string, not 1"),
        ('{"s": null}', "Error: kinds: s must be string, not null"),
        ('{"b": 1}', "Error: kinds: b must be boolean, not 1"),
        ('{"b": "true"}', 'Error: kinds: b must be boolean, not "true"'),
        ('{"l": {"a": 1}}', 'Error: kinds: l must be array, not {"a": 1}'),
        ('{"l": "[1]"}', 'Error: kinds: l must be array, not "[1]"'),
    ],
)
def test_an_argument_of_another_type_is_said_to_the_policy(arguments, said):
    assert [message.content for message in results(("kinds", arguments), tools=[kinds])] == [said]


TREE = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}}


def proxy(**parameters) -> Tool:
    """A tool with a schema of its own, and a function that takes whatever comes: a server's, as MCP has them."""

    def call(**arguments):
        return arguments

    about = {"name": "far", "description": "", "parameters": {"type": "object", **parameters}}
    return Tool(call, "far", json.dumps({"type": "function", "function": about}))


NAMED = {"properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("parameters", "arguments", "said"),
    [
        (NAMED, {"a": 1, "b": "x"}, None),
        (NAMED, {"b": "x"}, "a is missing"),
        (NAMED, {"a": "1"}, 'a must be integer, not "1"'),
        (NAMED, {"a": 1, "b": "z"}, 'b must be one of ["x", "y"], not "z"'),
        (NAMED, {"a": 1, "c": 2}, "c is unknown; known are: a, b"),
        ({**NAMED, "additionalProperties": True}, {"a": 1, "c": 2}, None),
        ({**NAMED, "additionalProperties": {"type": "string"}}, {"a": 1, "c": 2}, "c must be string, not 2"),
        ({}, {"c": 2}, None),
        ({"$defs": {"Tree": TREE}, "properties": {"t": {"$ref": "#/$defs/Tree"}}}, {"t": 1}, "t must be object, not 1"),
    ],
)
def test_a_tool_with_a_schema_of_its_own_gets_what_fits_it(parameters, arguments, said):
    (found,) = results(("far", json.dumps(arguments)), tools=[proxy(**parameters)])
    assert found.content == (json.dumps(arguments) if said is None else f"Error: far: {said}")
    bare = Tool(proxy().function, "far", json.dumps(json.loads(proxy(**parameters).schema)["function"]))
    assert results(("far", json.dumps(arguments)), tools=[bare]) == [found]  # the function's schema alone


def test_arguments_nested_too_deeply_for_their_schema_are_said_to_the_policy():
    deep = '{"kids": [' * 300 + "]}" * 300
    nested = proxy(**{"$defs": {"Tree": TREE}}, properties={"t": {"$ref": "#/$defs/Tree"}})
    (found,) = results(("far", f'{{"t": {deep}}}'), tools=[nested])
    assert found.content.startswith("Error: far: ")


def test_a_tool_that_fails_is_no_result():
    with pytest.raises(ConnectionError, match="down"):
        results(("fail", '{"what": "down"}'), tools=[fail])


@pytest.mark.parametrize("one", [wait, block])
def test_calls_of_one_turn_run_at_the_same_time(one):
    began = time.perf_counter()
    found = results(*[(one.name, '{"seconds": 0.5}')] * 8, tools=[one])
    assert [message.content for message in found] == ["done"] * 8
    assert time.perf_counter() - began < 2.5  # one after the other: 4 s


def test_a_long_result_is_cut_and_data_is_json():
    @tool
    def many(n: int) -> list:
        """Numbers."""
        return list(range(n))

    short, long = results(("many", '{"n": 3}'), ("many", '{"n": 9000}'), tools=[many])
    assert short.content == "[0, 1, 2]" and len(long.content) == LONGEST + 4 and long.content.endswith(" ...")
