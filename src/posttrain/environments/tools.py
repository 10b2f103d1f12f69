"""Tools: JSON schemas of Python functions, and execution of tool calls.

Errors of the policy (an unknown tool, malformed or invalid arguments) are returned to it as the result of the call.
Any other exception of a tool ends the episode, which is retried if the error may be transient; the policy is never
trained on it.
"""

import asyncio
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_type_hints

from posttrain.background import in_thread
from posttrain.errors import UserError
from posttrain.json_schema import misfit
from posttrain.types import Message, ToolCall

_KINDS: Mapping[type, str] = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array"}
LONGEST = 8000  # characters of a result


class ToolError(Exception):
    """An error of the policy, raised by a tool and returned to the policy as the result."""


@dataclass(frozen=True)
class Tool:
    """A callable function, plain or async. A plain one runs in a thread, so that it does not block other episodes."""

    function: Callable[..., Any]
    name: str
    schema: str  # JSON, as chat templates want it

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """The result as text, other types as JSON; raises `ToolError` where the arguments do not fit."""
        schema = json.loads(self.schema)
        parameters: dict[str, Any] = schema.get("function", schema).get("parameters") or {}
        others = {"additionalProperties": False} if parameters.get("properties") else {}  # unless it says so itself
        try:
            bound = inspect.signature(self.function).bind(**arguments)
            why = misfit(dict(arguments), others | parameters)
        except (TypeError, RecursionError) as error:
            raise ToolError(f"{self.name}: {error}") from error
        if why:
            raise ToolError(f"{self.name}: {why}")
        if inspect.iscoroutinefunction(self.function):
            found: object = await cast(Awaitable[object], self.function(*bound.args, **bound.kwargs))
        else:
            found = await in_thread(self.function, *bound.args, **bound.kwargs)
        text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
        return text if len(text) <= LONGEST else text[:LONGEST] + " ..."


def tool(function: Callable[..., Any]) -> Tool:
    """Make a tool of a function: the docstring is its description, the annotations its parameters.

    A line `name: text` under `Args:` describes a parameter. Raises `UserError` for a parameter without annotation, or
    with one that is not str, int, float, bool or list.

    Example:
        >>> def add(a: int, b: int) -> int:
        ...     '''Add two numbers.'''
        ...     return a + b
        >>> tool(add).name
        'add'
    """
    hints = get_type_hints(function)
    about, _, arguments = (inspect.getdoc(function) or "").partition("Args:")
    described = dict(re.findall(r"^\s+(\w+): (.*)$", arguments, re.MULTILINE))
    properties: dict[str, Any] = {}
    needed: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        kind = _KINDS.get(hints.get(name, object))
        if kind is None:
            raise UserError(
                f"tool '{function.__name__}': parameter '{name}' needs an annotation of "
                f"{', '.join(known.__name__ for known in _KINDS)}"
            )
        properties[name] = {"type": kind} | ({"description": described[name]} if name in described else {})
        if parameter.default is inspect.Parameter.empty:
            needed.append(name)
    parameters = {"type": "object", "properties": properties, "required": needed}
    about = {"name": function.__name__, "description": " ".join(about.split()), "parameters": parameters}
    return Tool(function, function.__name__, json.dumps({"type": "function", "function": about}))


def schemas(tools: Sequence[Tool]) -> tuple[str, ...]:
    """The schemas that `Seat.turn` takes."""
    return tuple(each.schema for each in tools)


async def run_calls(calls: Sequence[ToolCall], tools: Sequence[Tool]) -> list[Message]:
    """The results of the calls of one turn, in order; they run at the same time."""
    by_name = {each.name: each for each in tools}
    results = await asyncio.gather(*(_run(call, by_name) for call in calls))
    return [
        Message("tool", text, tool_call_id=call.id, name=call.name) for call, text in zip(calls, results, strict=True)
    ]


async def _run(call: ToolCall, tools: Mapping[str, Tool]) -> str:
    try:
        if call.name not in tools:
            raise ToolError(f"there is no tool '{call.name}'; there are: {', '.join(tools)}")
        try:
            arguments = json.loads(call.arguments)
        except (ValueError, RecursionError):
            raise ToolError(f"the arguments of {call.name} are no JSON") from None
        if not isinstance(arguments, dict):
            raise ToolError(f"the arguments of {call.name} are no JSON object")
        return await tools[call.name].call(cast(dict[str, Any], arguments))
    except ToolError as error:
        return f"Error: {error}"
