"""Preferences from any source: prompts with a chosen and a rejected response."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from posttrain.data.chat import ChatFormat
from posttrain.data.packing import Example, Pair
from posttrain.data.rows import Row
from posttrain.data.sources import read_rows
from posttrain.data.tasks import dress
from posttrain.types import Message, Preference, Role

_TURN = re.compile(r"\n\n(Human|Assistant):")  # how HH-RLHF writes who speaks


class Preferences(NamedTuple):
    """What a data set holds, and the places of rows whose two responses answer different prompts."""

    preferences: list[Preference]
    apart: tuple[str, ...] = ()


def load_preferences(
    source: str,
    *,
    split: str | None = None,
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    system: str | None = None,
    prompt_template: str = "{prompt}",
) -> Preferences:
    r"""The preferences of a data set.

    A row has `chosen` and `rejected`, and either a `prompt` that both answer (text, or a list of {role, content}) or
    whole conversations that differ in their last message only: lists of {role, content}, or text in which
    "\n\nHuman:" and "\n\nAssistant:" say who speaks, as HH-RLHF has it. Two responses to different prompts, of which
    HH-RLHF has one in a thousand, cannot be compared: they are left out, and named in the result.

    Args:
        source: a file, folder or hub id (see `load_rows`).
        split: which part; "train" unless said otherwise.
        columns: new name -> name in the data.
        limit: the most preferences, from the first.
        system: a system message, which takes the place of one in the data.
        prompt_template: text around each user message, which stands at `{prompt}`.

    Raises:
        DataError: as `load_rows`; a row that is no preference, by file, line and field; or no two responses answer the
            same prompt.
    """
    rows = read_rows(source, split=split, columns=columns, limit=limit)
    found = [(row, _preference(row)) for row in rows]
    kept = [replace(p, prompt=dress(p.prompt, system, prompt_template)) for _, p in found if p is not None]
    apart = [row for row, p in found if p is None]
    if apart and not kept:
        raise apart[0].fail("'chosen' and 'rejected' answer different prompts, and so it is in every row")
    return Preferences(kept, tuple(row.place for row in apart))


def _preference(row: Row) -> Preference | None:
    """The preference of a row, None where the two responses answer different prompts."""
    chosen, rejected = (_conversation(row, field) for field in ("chosen", "rejected"))
    before = row.messages("prompt") if "prompt" in row else ()
    if before and len(chosen) == len(rejected) == 1:
        prompt = before
    else:
        prompt = chosen[:-1]
        if rejected[:-1] != prompt:
            return None
    if not prompt or prompt[-1].role == "assistant":
        raise row.fail("there is no prompt before the two responses; add a column 'prompt', or map one with --columns")
    last = (chosen[-1], rejected[-1])
    for name, message in zip(("chosen", "rejected"), last, strict=True):
        if message.role != "assistant":
            raise row.fail(f"field '{name}' must end with an assistant message; it ends with the role '{message.role}'")
    if last[0].content == last[1].content:
        raise row.fail("'chosen' and 'rejected' are the same, so there is nothing to learn from them; remove the row")
    return Preference(prompt, last[0].content, last[1].content, source=row.place)


def _conversation(row: Row, field: str) -> tuple[Message, ...]:
    """A response alone, or the conversation that it ends."""
    if field in row and not isinstance(row.fields[field], str):
        return row.messages(field)
    text = row.text(field)
    pieces = _TURN.split(text)
    if "prompt" in row or len(pieces) == 1:
        return (Message("assistant", text),)
    roles: dict[str, Role] = {"Human": "user", "Assistant": "assistant"}
    said = [Message(roles[who], words.strip()) for who, words in zip(pieces[1::2], pieces[2::2], strict=True)]
    if pieces[0].strip() or not all(message.content for message in said):
        raise row.fail(f"field '{field}' has a turn in which nothing is said; remove the row")
    return tuple(said)


def pair_of(chat: ChatFormat, preference: Preference) -> Pair:
    """A preference as tokens: two sequences that share their prompt, each learned from its first token to its stop."""
    prompt = tuple(chat.prompt_ids(preference.prompt))

    def example(text: str) -> Example:
        ids = chat.training_ids([*preference.prompt, Message("assistant", text)], train_on="last")
        return Example(prompt, tuple(ids.token_ids[len(prompt) :]), tuple(ids.mask[len(prompt) :]))

    return Pair(example(preference.chosen), example(preference.rejected))


def fitting(pairs: Sequence[Pair], longest: int) -> list[Pair]:
    """The pairs of which neither sequence has more than `longest` tokens."""
    return [pair for pair in pairs if max(len(e.prefix) + len(e.continuation) for e in pair) <= longest]
