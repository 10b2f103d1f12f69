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
from posttrain.errors import DataError
from posttrain.types import Message, Preference, Role

_TURN = re.compile(r"\n\n(Human|Assistant):")  # how HH-RLHF writes who speaks


class Preferences(NamedTuple):
    """What a data set holds, and the rows that were left out: where each is, and why."""

    preferences: list[Preference]
    left_out: tuple[str, ...] = ()


class _Unusable(Exception):
    """A row that is well formed, and from which nothing can be learned."""


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
    "\n\nHuman:" and "\n\nAssistant:" say who speaks, as HH-RLHF has it. Two responses that answer different prompts,
    that are the same, or that say nothing cannot be learned from; HH-RLHF has two in a thousand. They are left out, and
    named in the result.

    Args:
        source: a file, folder or hub id (see `load_rows`).
        split: which part; "train" unless said otherwise.
        columns: new name -> name in the data.
        limit: the most preferences, from the first.
        system: a system message, which takes the place of one in the data.
        prompt_template: text around each user message, which stands at `{prompt}`.

    Raises:
        DataError: as `load_rows`; a row that is no preference, by file, line and field; or all were left out.
    """
    kept: list[Preference] = []
    left_out: list[str] = []
    for row in read_rows(source, split=split, columns=columns, limit=limit):
        try:
            found = _preference(row)
        except _Unusable as problem:
            left_out.append(f"{row.place}: {problem}")
        else:
            kept.append(replace(found, prompt=dress(found.prompt, system, prompt_template)))
    if not kept:
        raise DataError(f"{left_out[0]}, and nothing can be learned from the other rows either")
    return Preferences(kept, tuple(left_out))


def _preference(row: Row) -> Preference:
    chosen, rejected = (_conversation(row, field) for field in ("chosen", "rejected"))
    before = row.messages("prompt") if "prompt" in row else ()
    if before and len(chosen) == len(rejected) == 1:
        prompt = before
    else:
        prompt = chosen[:-1]
        if rejected[:-1] != prompt:
            raise _Unusable("'chosen' and 'rejected' answer different prompts")
    if not prompt or prompt[-1].role == "assistant":
        raise row.fail("there is no prompt before the two responses; add a column 'prompt', or map one with --columns")
    last = (chosen[-1], rejected[-1])
    for name, message in zip(("chosen", "rejected"), last, strict=True):
        if message.role != "assistant":
            raise row.fail(f"field '{name}' must end with an assistant message; it ends with the role '{message.role}'")
    if last[0].content == last[1].content:
        raise _Unusable("'chosen' and 'rejected' are the same")
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
    if pieces[0].strip():
        raise row.fail(f"field '{field}' has words before the first turn: {pieces[0].strip()[:40]!r}")
    if not all(message.content for message in said):
        raise _Unusable(f"'{field}' has a turn in which nothing is said")
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
