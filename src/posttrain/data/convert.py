"""Conversion of feedback to the layouts of other tools.

Every row is parsed again before it is written: a row that does not round-trip, for lack of a field or because its text
contains the layout's markers, is dropped.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from posttrain.data.annotation_tools import Fields
from posttrain.data.judgements import Judgement, judgement_in, load_judgements
from posttrain.data.loaded import Loaded, Unusable
from posttrain.data.messages import tools_column, written
from posttrain.data.preferences import load_preferences, preferences_in
from posttrain.data.records import Record
from posttrain.data.tasks import conversation_in
from posttrain.errors import DataError
from posttrain.types import Message, Preference


class Target(NamedTuple):
    """A layout that can be written."""

    says: str  # what a row has, and who reads it
    load: Callable[..., Loaded[Any]]
    rows: Callable[[Any], list[Fields]]  # of one item that was loaded; raises `DataError` for what cannot be said
    once: bool = False  # whether a row that comes again is to be left away


def pairs(p: Preference) -> list[Fields]:
    """`prompt`, `chosen` and `rejected`, each a list of messages; `steps` where the responses are steps."""
    chosen, rejected = written(p.responses)
    fields: Fields = {"prompt": written(p.prompt), "chosen": [chosen], "rejected": [rejected]}
    return [_pair(p, fields | tools_column(p.prompt) | ({"steps": p.opening} if p.partial else {}))]


def conversations(p: Preference) -> list[Fields]:
    """`chosen` and `rejected`, each a whole conversation as a list of messages."""
    before, (chosen, rejected) = written(p.prompt), written(p.responses)
    fields: Fields = {"chosen": [*before, chosen], "rejected": [*before, rejected]}
    return [_pair(p, fields | tools_column(p.prompt))]


def transcripts(p: Preference) -> list[Fields]:
    """`chosen` and `rejected`, each a whole conversation as text, as HH-RLHF has them."""
    speakers = {"user": "Human", "assistant": "Assistant"}
    if other := {message.role for message in p.prompt} - set(speakers):
        raise DataError(f"{p.source}: a transcript has no words for the role '{sorted(other)[0]}'")
    before = "".join(f"\n\n{speakers[message.role]}: {message.content}" for message in p.prompt)
    fields = {name: f"{before}\n\nAssistant: {text}" for name, text in (("chosen", p.chosen), ("rejected", p.rejected))}
    return [_pair(p, fields)]


def judgements(judged: Sequence[Judgement]) -> list[Fields]:
    """`prompt`, `completion` and `label`, of each response."""
    found: list[Fields] = []
    for j in judged:
        completion = written([Message("assistant", j.response, j.calls)])
        fields = {"prompt": written(j.prompt), "completion": completion, "label": j.good} | tools_column(j.prompt)
        found.append(_readable(fields, lambda row: replace(judgement_in(row), source=""), replace(j, source=""), j))
    return found


def demonstrations(judged: Sequence[Judgement]) -> list[Fields]:
    """`messages`, of each response that was found good."""
    found: list[Fields] = []
    for j in (j for j in judged if j.good):
        whole = (*j.prompt, Message("assistant", j.response, j.calls))
        fields: Fields = {"messages": written(whole)} | tools_column(whole)
        found.append(_readable(fields, conversation_in, whole, j))
    return found


TARGETS: Mapping[str, Target] = {
    "pairs": Target("prompt, chosen, rejected as messages (posttrain, TRL)", load_preferences, pairs),
    "conversations": Target(
        "chosen, rejected as whole conversations (Skywork, OpenRLHF)", load_preferences, conversations
    ),
    "transcripts": Target("chosen, rejected as text of Human and Assistant (HH-RLHF)", load_preferences, transcripts),
    "judgements": Target("prompt, completion, label (posttrain's and TRL's kto)", load_judgements, judgements),
    "demonstrations": Target(
        'messages of what was found good; learn them with sft `train_on="last"`',
        load_judgements,
        demonstrations,
        once=True,
    ),
}
"""Layouts by name."""


def _pair(preference: Preference, fields: Fields) -> Fields:
    def said(p: Preference) -> object:
        return (p.prompt, *p.responses, p.opening, p.partial)

    return _readable(fields, lambda row: said(preferences_in(row)[0]), said(preference), preference)


def _readable(fields: Fields, read: Callable[[Record], object], said: object, one: Preference | Judgement) -> Fields:
    """The fields, if what is said is what they are read back as; raises `DataError` if not."""
    if one.partial and "steps" not in fields:
        raise DataError(f"{one.source}: its responses are steps, for which the layout has no field")
    try:
        again = read(Record(fields, one.source, one.source))
    except Unusable as problem:
        raise DataError(f"{one.source}: {problem}") from problem
    if again != said:
        raise DataError(f"{one.source}: it would be read back as something else")
    return fields
