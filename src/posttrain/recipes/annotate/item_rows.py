"""Items given in a file, one row each, with completions."""

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.annotation.store.projects import NewItem
from posttrain.data import Record
from posttrain.errors import DataError
from posttrain.types import Message

_READ = ("prompt", "completions", "item", "id", "priority", "expected")


def item_of(row: Record, *, talk: bool) -> NewItem:
    """The item that a row describes; in one for people who talk with a model, they say the first word.

    Raises:
        UserError: names the row, and what is wrong with it.
    """
    said = () if talk and "prompt" not in row and "topic" in row else row.messages("prompt")
    if talk and said and said[-1].role == "user":
        raise row.fail("people say the first word in a conversation; give them a 'topic', and no prompt that asks")
    prompt = spoken(row.place, said)
    value = row.fields.get("completions") or []
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise row.fail(f"field 'completions' must be a list; got {value!r}")
    name, expected, priority = (
        row.fields.get("item", row.fields.get("id", row.id)),
        row.fields.get("expected"),
        row.fields.get("priority", 0),
    )
    if expected is not None and not isinstance(expected, Mapping):
        raise row.fail(f"field 'expected' must be an answer, such as {{\"ranking\": [[1], [0]]}}; got {expected!r}")
    if isinstance(priority, bool) or not isinstance(priority, int | float):
        raise row.fail(f"field 'priority' must be a number; got {priority!r}")
    details = {key: value for key, value in row.fields.items() if key not in _READ}
    return NewItem(str(name), prompt, [_completion(row, one) for one in value], details, expected, float(priority))


def spoken(place: str, messages: Sequence[Message]) -> list[dict[str, str]]:
    """A prompt as annotators see it.

    Raises:
        DataError: it has tools or calls of tools, which the pages do not show.
    """
    if any(message.tools or message.tool_calls for message in messages):
        raise DataError(f"{place}: annotators cannot be shown tools or tool calls yet; write them into the content")
    return [{"role": message.role, "content": message.text} for message in messages]


def _completion(row: Record, value: Any) -> tuple[str, str, dict[str, Any]]:
    if isinstance(value, str):
        return value, "", {}
    if isinstance(value, Mapping) and isinstance(value.get("text"), str):
        return (
            value["text"],
            str(value.get("model", "")),
            {k: v for k, v in value.items() if k not in ("text", "model")},
        )
    raise row.fail(f"field 'completions' has texts, or {{text, model}}; got {value!r}")
