"""Loading demonstrations: conversations for SFT."""

from collections.abc import Mapping

from posttrain.data.messages import with_tools
from posttrain.data.mixtures import mix
from posttrain.data.rows import Row
from posttrain.data.sources import read_rows
from posttrain.data.tasks import dress
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
) -> list[tuple[Message, ...]]:
    """The conversations of a data set, each with at least one assistant message.

    A row has one of: `messages` or `conversations` (lists of {role, content}, or of ShareGPT's {from, value}); `prompt`
    and `completion` (text or lists); `question` and `answer`; `instruction`, perhaps `input`, and `output`.
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

    def load(part: str, columns: Mapping[str, str] | None, limit: int | None) -> list[tuple[Message, ...]]:
        rows = read_rows(part, split=split, columns=columns, limit=limit)
        return [dress(conversation_in(row), system, prompt_template) for row in rows]

    return mix(source, load, columns=columns, limit=limit, seed=seed)


def conversation_in(row: Row) -> tuple[Message, ...]:
    """The conversation of a row."""
    messages = _read(row)
    if not any(message.role == "assistant" for message in messages):
        raise row.fail(
            "the conversation has no assistant message, so there is nothing to learn from it; remove the row"
        )
    return messages


def _read(row: Row) -> tuple[Message, ...]:
    for field in ("messages", "conversations"):
        if field in row:
            return row.messages(field)
    if "instruction" in row:
        text = row.text("instruction")
        # Alpaca's rows have an `input` that is empty where the instruction says it all.
        more = row.text("input") if row.fields.get("input") else ""
        prompt = (Message("user", f"{text}\n\n{more}" if more else text),)
        return (*with_tools(prompt, row.tools()), Message("assistant", row.text("output")))
    if "question" in row and "prompt" not in row:
        return (*row.messages("question"), Message("assistant", row.text("answer")))
    if "prompt" not in row and "completion" not in row:
        raise row.fail(
            f"no demonstration found; this row has: {', '.join(row.fields) or 'no fields'}; expected messages, or "
            "prompt and completion, or question and answer, or instruction and output; map them with "
            '`columns="prompt=COLUMN completion=COLUMN"`'
        )
    prompt = row.messages("prompt")
    completion = row.fields.get("completion")
    if completion is not None and not isinstance(completion, str):
        return prompt + row.messages("completion")
    return (*prompt, Message("assistant", row.text("completion")))
