"""Loading demonstrations: conversations for SFT."""

from collections.abc import Mapping
from dataclasses import replace

from posttrain.data.loaded import Loaded
from posttrain.data.meaning import is_empty
from posttrain.data.mixtures import mix
from posttrain.data.records import Record
from posttrain.data.sources import read_rows
from posttrain.data.tasks import dress
from posttrain.data.trees import best_conversation, gathered_trees, is_tree
from posttrain.types import Message


def load_demonstrations(
    source: str,
    *,
    split: str | None = None,
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    system: str | None = None,
    prompt_template: str = "{prompt}",
    seed: int = 0,
) -> Loaded[tuple[Message, ...]]:
    """The conversations of a data set, each with at least one assistant message.

    A row has one of: `messages` or `conversations` (lists of {role, content}, or of ShareGPT's {from, value}); `prompt`
    and `completion` (text or lists); `question` and `answer`; `instruction`, perhaps `input`, and `output`; or is in a
    layout of `public_layouts`. Of a prompt and of `history` nothing is learned, nor of messages whose `weight` is 0.
    Messages may have `tool_calls`, and the row `tools`: the JSON schemas of what may be called.

    Args:
        source: a file, folder or hub id (see `load_rows`), or a mixture of them (see `mixtures`).
        split: which part; "train" unless said otherwise.
        columns: new name -> name in the data.
        limit: the most conversations, from the first.
        system: a system message, which takes the place of one in the data.
        prompt_template: text around each user message, which stands at `{prompt}`.
        seed: which rows of a mixture are repeated.

    Raises:
        DataError: as `load_rows`, or a row that is no demonstration, by file, line and field.
    """
    found = Loaded[tuple[Message, ...]]()

    def load(part: str, columns: Mapping[str, str] | None, limit: int | None) -> list[tuple[Message, ...]]:
        rows = gathered_trees(read_rows(part, split=split, columns=columns, limit=limit))
        rows = [best_conversation(row) if is_tree(row) else row for row in rows]
        return found.usable(rows, lambda row: [dress(conversation_in(row), system, prompt_template)])

    found += mix(source, load, columns=columns, limit=limit, seed=seed)
    return found


def conversation_in(row: Record) -> tuple[Message, ...]:
    """The conversation of a row.

    Raises:
        DataError: nothing in it is learned, or it begins with the assistant.
    """
    messages = _read(row)
    if not any(message.role == "assistant" and message.learned for message in messages):
        raise row.fail(
            "the conversation has no assistant message that is learned, so there is nothing to learn from it; remove "
            "the row"
        )
    if messages[0].role == "assistant" and len(messages) > 1:
        raise row.fail(
            "the conversation begins with the assistant, which no prompt comes before; remove that message, or put "
            "what was asked in front of it"
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
    """A prompt, of which nothing is learned, its assistant's turns included."""
    return tuple(replace(message, learned=False) if message.role == "assistant" else message for message in prompt)
