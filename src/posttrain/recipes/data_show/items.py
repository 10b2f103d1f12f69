"""Rows as training examples: prompt, identity, tokens, loss mask."""

from collections.abc import Callable
from typing import Any, NamedTuple

from posttrain.bindings.feedback import PAIRS, Feedback
from posttrain.data import ChatFormat, Record
from posttrain.data.layouts import own_rows
from posttrain.data.packing import Example, size_of
from posttrain.data.preferences import is_preference
from posttrain.recipes.data_show.result import TokenSequence
from posttrain.types import Message, Task


class Item(NamedTuple):
    """One row as it is read: what is asked, what tells it from others, and how it becomes tokens."""

    prompt: tuple[Message, ...]
    says: str
    sequences: Callable[[ChatFormat], list[TokenSequence]]
    answer: str = ""


def columns_say(row: Record) -> str:
    """The layout that a row has by its columns: sft, preference, judgements, rl, or "" where they say nothing."""
    helpsteer = {"prompt", "response", "helpfulness"} <= row.fields.keys()
    (row,) = own_rows(row)[:1] or [row]
    if is_preference(row) or helpsteer:
        return "preference"
    if "completion" in row and "label" in row:
        return "judgements"
    answer = row.fields.get("answer")
    answers = "question" in row and isinstance(answer, str) and "####" not in answer  # which GSM8K's are read as tasks
    if answers or any(name in row for name in ("messages", "conversations", "completion", "instruction")):
        return "sft"
    return "rl" if "prompt" in row or "question" in row else ""


def task_item(task: Task) -> Item:
    """A task of rl: its prompt, of which nothing is learned."""

    def sequences(chat: ChatFormat) -> list[TokenSequence]:
        ids = tuple(chat.prompt_ids(task.prompt))
        return [TokenSequence("", ids, (False,) * len(ids))]

    return Item(
        task.prompt, repr((task.prompt, task.answer)), sequences, "" if task.answer is None else str(task.answer)
    )


def demonstration_item(conversation: tuple[Message, ...], train_on: str) -> Item:
    """A demonstration; several sequences where the template cannot show all turns as they are produced in one."""

    def sequences(chat: ChatFormat) -> list[TokenSequence]:
        last = train_on == "last"
        found = [chat.training_ids(conversation, train_on="last")] if last else chat.training_examples(conversation)
        return [
            TokenSequence(f"turn {i}" if len(found) > 1 else "", tuple(ids), tuple(mask))
            for i, (ids, mask) in enumerate(found, 1)
        ]

    first = [message.role for message in conversation].index("assistant")
    return Item(conversation[:first], repr(conversation), sequences)


def feedback_item(kind: Feedback[Any, Any], item: Any) -> Item:
    """Both responses of a pair, or the responses of a row of judgements."""

    def sequences(chat: ChatFormat) -> list[TokenSequence]:
        (unit,) = kind.tokens(chat, item)
        parts = ("chosen", "rejected") if kind is PAIRS else tuple("good" if one.good else "bad" for one in unit)
        return [_sequence(part, example) for part, example in zip(parts, kind.sequences(unit), strict=True)]

    judged = (item,) if kind is PAIRS else item
    says = repr(
        [
            (one.prompt, one.chosen, one.rejected) if kind is PAIRS else (one.prompt, one.response, one.good)
            for one in judged
        ]
    )
    return Item(kind.prompt(item), says, sequences)


def _sequence(part: str, example: Example) -> TokenSequence:
    learned = (*[False] * len(example.prefix), *example.learned)
    assert len(learned) == size_of(example)
    return TokenSequence(part, example.prefix + example.continuation, learned)
