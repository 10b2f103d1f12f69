"""Loading demonstrations: conversations for SFT."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from posttrain.data.annotation_tools import best_conversation, gathered_trees, is_tree
from posttrain.data.given import Source
from posttrain.data.loaded import Loaded, Reading, read_all
from posttrain.data.meaning import is_empty
from posttrain.data.records import Record
from posttrain.data.tasks import dress
from posttrain.types import Message


def load_demonstrations(
    source: Source, *, system: str | None = None, prompt_template: str = "{prompt}", **reading: Unpack[Reading]
) -> Loaded[tuple[Message, ...]]:
    """The conversations of a data set, each with at least one assistant message.

    A row has one of: `messages` or `conversations` (lists of {role, content}, or of ShareGPT's {from, value}); `prompt`
    and `completion` (text or lists); `question` and `answer`; `instruction`, perhaps `input`, and `output`; or is in a
    layout of data/layouts.py. Of a prompt and of `history` nothing is learned, nor of messages whose `weight` is 0.
    Messages may have `tool_calls`, and the row `tools`: the JSON schemas of what may be called. Arguments are those of
    `load_preferences`.

    Raises:
        DataError: as `load_rows`, or a row that is no demonstration, by file, line and field.
    """

    def gather(rows: Sequence[Record]) -> list[Record]:
        return [best_conversation(row) if is_tree(row) else row for row in gathered_trees(rows)]

    def read(row: Record) -> list[tuple[Message, ...]]:
        return [dress(conversation_in(row), system, prompt_template)]

    return read_all(source, read, gather=gather, **reading)


def conversation_in(row: Record) -> tuple[Message, ...]:
    """The conversation of a row.

    Raises:
        DataError: nothing in it is learned, or it begins with the assistant.
    """
    messages = _read(row)
    if not any(message.role == "assistant" and message.learned for message in messages):
        raise row.fail(
            "the conversation has no assistant message that is learned, so there is nothing to train on; remove the row"
        )
    if messages[0].role == "assistant" and len(messages) > 1:
        raise row.fail(
            "the conversation begins with the assistant, without a prompt; remove that message, or add "
            "the prompt before it"
        )
    return messages


def _read(row: Record) -> tuple[Message, ...]:
    for field in ("messages", "conversations"):
        if field in row:
            return row.begun(row.messages(field))
    if "instruction" in row:
        text = row.text("instruction")
        # Alpaca's rows have an `input` that is empty where the instruction says it all.
        more = "" if is_empty(row.get("input")) else row.text("input")
        prompt = row.begun((Message("user", f"{text}\n\n{more}" if more else text),))
        return (*_given(prompt), *row.response("output", prompt))
    question, answer = "prompt", "completion"
    if "question" in row and "prompt" not in row:
        question, answer = "question", "answer"
    elif "prompt" not in row and "completion" not in row:
        raise row.fail(
            f"no demonstration found; this row has: {', '.join(row.fields) or 'no fields'}; expected messages, or "
            "prompt and completion, or question and answer, or instruction and output; map them with "
            '`columns="prompt=COLUMN completion=COLUMN"`'
        )
    prompt = row.prompt(question)
    return (*_given(prompt), *row.response(answer, prompt))


def _given(prompt: tuple[Message, ...]) -> tuple[Message, ...]:
    return tuple(replace(message, learned=False) if message.role == "assistant" else message for message in prompt)
