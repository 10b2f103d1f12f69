"""Messages, tool calls and tools: parsing and serialisation.

Both common layouts of a call are read: OpenAI's, `{id, type, function: {name, arguments}}` with the arguments as JSON
text, and the one that chat templates take, in which the arguments are an object; `name` and `arguments` may also stand
in the call itself. Errors are `DataError`s without the place of the row, which `Record` puts in front.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from posttrain.data.meaning import is_learned, structure_in
from posttrain.errors import DataError
from posttrain.types import Message, Role, ToolCall

_CALLS = ("function_call", "tool_call")  # roles of ShareGPT's messages whose text is a call, or a list of them
# ShareGPT and its relatives name the speakers otherwise.
_SPEAKERS: dict[Role, tuple[str, ...]] = {
    "system": ("system", "developer"),
    "user": ("user", "human", "prompter"),
    "assistant": ("assistant", "gpt", "chatgpt", "model", "bot", *_CALLS),
    "tool": ("tool", "observation", "tool_response", "function"),
}
_ROLES: dict[str, Role] = {name: role for role, names in _SPEAKERS.items() for name in names}
_REASONING = ("reasoning_content", "reasoning", "thinking")


def read_message(item: Any, name: str, tools: Sequence[str]) -> Message:
    """One message of a conversation; `name` says which one in errors, such as "field 'prompt' message 2".

    It is `{role, content}`, or ShareGPT's `{from, value}`; perhaps with `tool_calls`, `tool_call_id`, `name` and a
    reasoning. `tools` are the schemas of the tools that may be called, as `read_tools` gives them.
    """
    if not isinstance(item, Mapping):
        raise DataError(f"{name} must be {{role, content}}; got {excerpt(item)}")
    item = cast(Mapping[str, Any], item)
    said = _either(item, "role", "from", name)
    if not isinstance(said, str) or said not in _ROLES:
        raise DataError(f"{name} has the role {excerpt(said)}; expected one of {', '.join(sorted(_ROLES))}")
    role = _ROLES[said]
    content = _either(item, "content", "value", name)
    if said in _CALLS:
        calls = _calls({"tool_calls": content}, name, tools)
        content = None
    else:
        calls = _calls(item, name, tools)
    if calls and role != "assistant":
        raise DataError(f"{name} has tool_calls and the role '{role}'; only the assistant calls tools")
    reasoning = next((item[key] for key in _REASONING if item.get(key)), "")
    if reasoning and role != "assistant":
        raise DataError(f"{name} has a reasoning and the role '{role}'; only the assistant has one")
    if role == "system" and content == "":
        raise DataError(f"{name} is a system message without text; remove that message, not the row")
    given = cast(list[Any], content) if isinstance(content, list) else [None]
    parts = all(isinstance(one, Mapping) and "type" in one for one in given)
    if role == "tool" and isinstance(content, list | Mapping) and not parts:  # what a tool returned is data
        content = _json(content, f"{name} content")
    may_be_empty = bool(calls) or role == "tool"
    if content is None and may_be_empty:
        content = ""
    if isinstance(content, Sequence) and not isinstance(content, str):  # text parts, which are joined as they are
        parts = enumerate(cast(Sequence[Any], content), 1)
        content = "".join(_part(part, f"{name} content part {i}") for i, part in parts)
    return Message(
        role,
        read_text(content, f"{name} content", may_be_empty=may_be_empty),
        calls,
        _word(item, "tool_call_id", name),
        _word(item, "name", name),
        read_text(reasoning, f"{name} reasoning") if reasoning else "",
        learned=is_learned(item, role, name),
    )


def _either(item: Mapping[str, Any], key: str, other: str, name: str) -> Any:
    """The value under one of two names for the same: parquet has both where some messages have one or the other."""
    found = [item[one] for one in (key, other) if item.get(one) is not None]
    if len(found) > 1 and found[0] != found[1]:
        raise DataError(f"{name} has a {key} and another {other}; remove one of them")
    return found[0] if found else None


def read_tools(value: Any) -> tuple[str, ...]:
    """The column `tools`: a list of JSON schemas, or the same as JSON text; nothing where there are none.

    A schema is `{type: "function", function: {name, description, parameters}}`, or the inner object alone. Nulls where
    no JSON schema has one are left out: parquet gives every tool the fields of all others.
    """
    if isinstance(value, str) and value.strip():
        value = value if (loaded := _loaded(value)) is None else loaded
    if value is None or value == "":
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise DataError(f"field 'tools' must be a list of JSON schemas, or one as JSON text; got {excerpt(value)}")
    return tuple(_tool(tool, f"field 'tools' tool {i}") for i, tool in enumerate(cast(Sequence[Any], value), 1))


def with_tools(messages: Sequence[Message], tools: tuple[str, ...]) -> tuple[Message, ...]:
    """A conversation whose first message from the system or a user carries the tools; others carry none."""
    first = next((i for i, message in enumerate(messages) if message.role in ("system", "user")), None)
    return tuple(replace(message, tools=tools if i == first else ()) for i, message in enumerate(messages))


def written(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as rows have them, calls in OpenAI's layout. Tools are a column of their own: `tools_column`."""
    found: list[dict[str, Any]] = []
    for message in messages:
        fields: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            fields["tool_calls"] = [
                {
                    **({"id": call.id} if call.id else {}),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in message.tool_calls
            ]
        own = {"tool_call_id": message.tool_call_id, "name": message.name, "reasoning_content": message.reasoning}
        weight = {} if message.learned else {"weight": 0}
        found.append(fields | {key: value for key, value in own.items() if value} | weight)
    return found


def tools_of(messages: Sequence[Message]) -> tuple[str, ...]:
    """The tools of a conversation, each a JSON schema as text."""
    return next((message.tools for message in messages if message.tools), ())


def tools_column(messages: Sequence[Message]) -> dict[str, Any]:
    """The column `tools` of a row with these messages; empty where they have none."""
    tools = [json.loads(tool) for tool in tools_of(messages)]
    return {"tools": tools} if tools else {}


def read_text(value: Any, name: str, *, may_be_empty: bool = False) -> str:
    """Text with something in it that a tokenizer can read."""
    if not isinstance(value, str):
        raise DataError(f"{name} must be text; got {excerpt(value)}")
    if not value.strip() and not may_be_empty:
        raise DataError(f"{name} is empty; remove the row, or fill it in")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise DataError(f"{name} has half of a surrogate pair, which no tokenizer can read; repair the text")
    return value


def excerpt(value: Any) -> str:
    """A value as an error shows it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _part(part: Any, name: str) -> str:
    fields = _fields(part)
    if fields.get("type") != "text" or not isinstance(fields.get("text"), str):
        kind = f"of type {fields['type']!r}" if "type" in fields and fields["type"] != "text" else excerpt(part)
        raise DataError(f'{name} is {kind}; only text is read, {{"type": "text", "text": ...}}; remove it')
    return fields["text"]


def _word(item: Mapping[str, Any], key: str, name: str) -> str:
    value = item.get(key)
    if value is None or isinstance(value, str):
        return value or ""
    raise DataError(f"{name} has a {key} that is not text: {excerpt(value)}")


def _calls(item: Mapping[str, Any], name: str, tools: Sequence[str]) -> tuple[ToolCall, ...]:
    value = item.get("tool_calls")
    if not value and item.get("function_call"):  # OpenAI's first layout: one call, without an id
        value = item["function_call"]
    if not value:
        return ()
    if isinstance(value, str):
        value = structure_in(value) or value
    if isinstance(value, Mapping):
        value = [cast(Any, value)]
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise DataError(f"{name} tool_calls must be a list of {{id, type, function}}; got {excerpt(value)}")
    return tuple(_call(call, f"{name} call {i}", tools) for i, call in enumerate(cast(Sequence[Any], value), 1))


def _call(call: Any, name: str, tools: Sequence[str]) -> ToolCall:
    fields, inner = _function(call, name, "{id, type, function: {name, arguments}}")
    if fields.get("type") not in (None, "function"):
        raise DataError(f"{name} is of type {excerpt(fields['type'])}; only calls of a function are read")
    arguments = inner.get("arguments")
    if isinstance(arguments, Mapping):  # without the nulls that parquet adds: it gives a call the keys of all others
        functions = [json.loads(tool)["function"] for tool in tools]
        known = next((one.get("parameters") for one in functions if one["name"] == inner["name"]), None)
        text = _json(_without_added(arguments, known), f"{name} arguments")
    elif arguments is None or arguments == "":
        text = "{}"
    else:
        text = arguments
        loaded = _loaded(text) if isinstance(text, str) else None
        if not isinstance(loaded, Mapping):
            raise DataError(f"{name} arguments must be a JSON object, or one as text; got {excerpt(arguments)}")
        _json(loaded, f"{name} arguments")
    return ToolCall(_word(fields, "id", name), inner["name"], text)


def _function(value: Any, name: str, form: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """An object and the function in it, which may also stand alone."""
    fields = _fields(value)
    inner = _fields(fields.get("function", fields))
    if not isinstance(inner.get("name"), str) or not inner["name"].strip():
        raise DataError(f"{name} must be {form}; got {excerpt(value)}")
    return fields, inner


def _without_added(value: Any, schema: Any) -> Any:
    """A value without nulls for keys that its schema does not have, or neither requires nor allows to be null."""
    fields = _fields(schema)
    if isinstance(value, list):
        return [_without_added(item, fields.get("items")) for item in cast(list[Any], value)]
    if not isinstance(value, Mapping):
        return value
    properties, required = _fields(fields.get("properties")), _items(fields.get("required"))
    return {
        key: _without_added(item, properties.get(key))
        for key, item in cast(Mapping[str, Any], value).items()
        if item is not None or key in required or (key in properties and _may_be_null(properties[key]))
    }


def _may_be_null(schema: Any) -> bool:
    """Whether a JSON schema admits null; what stands elsewhere (`$ref`) is taken for an object, which is not null."""
    fields = _fields(schema)
    if fields.get("nullable") is True:  # OpenAPI's
        return True
    if either := _items(fields.get("anyOf")) or _items(fields.get("oneOf")):
        return any(map(_may_be_null, either))
    if "$ref" in fields or None not in _items(fields.get("enum", [None])):
        return False
    return "null" in (fields.get("type", "null"), *_items(fields.get("type")))


def _fields(value: Any) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else {}


def _items(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


def _tool(tool: Any, name: str) -> str:
    if isinstance(tool, str):
        tool = _loaded(tool)
    fields, inner = _function(tool, name, "{type: function, function: {name, description, parameters}}")
    if not isinstance(inner.get("parameters", {}), Mapping | None):
        raise DataError(f"{name} has parameters that are no JSON schema: {excerpt(inner['parameters'])}")
    whole = fields if "function" in fields else {"type": "function", "function": fields}
    return _json(_without_nulls(whole), name)


def _without_nulls(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        kept = ((key, value) for key, value in cast(Mapping[str, Any], schema).items())
        return {k: _without_nulls(v) for k, v in kept if v is not None or k in ("default", "const", "example")}
    return [_without_nulls(item) for item in cast(list[Any], schema)] if isinstance(schema, list) else schema


def _json(value: Any, name: str) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{name} cannot be written as JSON: {error}") from None
    return read_text(text, name)


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
