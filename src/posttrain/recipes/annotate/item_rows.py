"""Items given in a file, one row each, with completions."""

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.annotation.store.tables import Completion, Item
from posttrain.data import Record
from posttrain.errors import DataError
from posttrain.types import Message

_READ = ("prompt", "completions", "item", "id", "priority", "expected")


def item_of(row: Record, *, talk: bool) -> Item:
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
    completions = [_completion(row, one, number) for number, one in enumerate(value)]
    return Item(
        name=str(name),
        prompt=prompt,
        completions=completions,
        details=details,
        expected=None if expected is None else dict(expected),
        priority=float(priority),
    )


def spoken(place: str, messages: Sequence[Message]) -> list[dict[str, str]]:
    """A prompt as annotators see it.

    Raises:
        DataError: it has tools or calls of tools, which the pages do not show.
    """
    if any(message.tools or message.tool_calls for message in messages):
        raise DataError(f"{place}: annotators cannot be shown tools or tool calls yet; write them into the content")
    return [{"role": message.role, "content": message.text} for message in messages]


def _completion(row: Record, value: Any, number: int) -> Completion:
    said = {"text": value} if isinstance(value, str) else value
    if not isinstance(said, Mapping) or not isinstance(said.get("text"), str):
        raise row.fail(f"field 'completions' has texts, or {{text, model}}; got {value!r}")
    details = {key: word for key, word in said.items() if key not in ("text", "model")}
    return Completion(number=number, text=said["text"], model=str(said.get("model", "")), details=details)
