"""Loading judgements: single responses labelled good or bad, or both of a pair."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Unpack

from posttrain.data.chat import ChatFormat
from posttrain.data.files import Source
from posttrain.data.loaded import Loaded, Reading, Unusable, read_all
from posttrain.data.meaning import BAD, GOOD
from posttrain.data.packing import Labelled
from posttrain.data.preferences import (
    SAME,
    conversation_in,
    gather_pairs,
    is_judged,
    opening_in,
    preferences_in,
    refuse_others,
    refuse_unlearned,
    responses_to,
)
from posttrain.data.records import Record, after, typed
from posttrain.data.tasks import dress
from posttrain.types import Message, Preference, ToolCall


@dataclass(frozen=True, slots=True)
class Judgement:
    """One response to a prompt, labelled good or bad."""

    prompt: tuple[Message, ...]
    response: str
    good: bool
    source: str = ""  # where it was read: file and line
    opening: str = ""  # prefix of the response, without a loss
    partial: bool = False  # the response is incomplete (a step): no loss on a stop token
    calls: tuple[ToolCall, ...] = ()


def load_judgements(
    source: Source, *, system: str | None = None, prompt_template: str = "{prompt}", **reading: Unpack[Reading]
) -> Loaded[tuple[Judgement, ...]]:
    """The judgements of a data set, row by row: of single responses, or both of a pair.

    A row has `prompt`, `completion` and `label` (true for a good one), or is one of `load_preferences`, of which the
    chosen response is good and the rejected one bad. Arguments and errors are those of `load_preferences`.
    """

    def read(row: Record) -> list[tuple[Judgement, ...]]:
        refuse_others(row, ties=False)
        found = [(judgement_in(row),)] if is_judged(row) else [judgements_of(one) for one in preferences_in(row)]
        prompt = dress(found[0][0].prompt, system, prompt_template)  # one row has one prompt
        return [tuple(replace(one, prompt=prompt) for one in judged) for judged in found]

    def gather(rows: Sequence[Record]) -> list[Record]:
        """As for preferences; refuses labels of 0 among labels of -1, since 0 is then neutral."""
        said = [typed(label) if isinstance(label := row.fields.get("label"), str | float | int) else "" for row in rows]
        if {-1, 0} <= {label for label in said if not isinstance(label, bool)}:
            row = next(row for row, label in zip(rows, said, strict=True) if label == 0)
            raise row.fail("field 'label' is 0 where other rows have -1: neither good nor bad; remove such rows")
        return gather_pairs(rows)

    return read_all(source, read, gather=gather, **reading)


def judgements_of(preference: Preference) -> tuple[Judgement, Judgement]:
    """A preference as two judgements: the chosen response is good, the rejected one bad."""
    p = preference
    chosen, rejected = p.responses
    about = (p.source, p.opening, p.partial)
    return (
        Judgement(p.prompt, chosen.content, True, *about, chosen.tool_calls),
        Judgement(p.prompt, rejected.content, False, *about, rejected.tool_calls),
    )


_YES, _NO = GOOD | {"yes", "positive"}, BAD | {"no", "negative"}


def judgement_in(row: Record) -> Judgement:
    """What a row of `prompt`, `completion` and `label` says; with `steps`, the completion is the next step."""
    prompt, said = row.prompt("prompt"), conversation_in(row, "completion")
    named = "kto_tag" if "kto_tag" in row and "label" not in row else "label"
    if named not in row:
        raise row.missing(named)
    said = after(prompt, said)
    if len(said) != 1 or said[0].role != "assistant":
        raise row.fail("field 'completion' must be one response: text, or a list with one assistant message")
    refuse_unlearned(row, "completion", said[0])
    label = typed(row.get(named))
    if isinstance(label, str) and label.strip().lower() in _YES | _NO:
        label = label.strip().lower() in _YES
    if not isinstance(label, bool) and label not in (-1, 0, 1):
        raise row.fail(
            f"field '{named}' must be true (or 1, good, up) for a good response and false (or 0, -1, bad, down) for "
            f"a bad one; got {label!r}"
        )
    more = opening_in(row, "steps")
    return Judgement(prompt, said[0].content, label > 0, source=row.place, calls=said[0].tool_calls, **more)


def judged_of(chat: ChatFormat, judgement: Judgement) -> Labelled:
    """A judgement as tokens, learned as a response of `pair_of`."""
    j = judgement
    (example,) = responses_to(chat, j.prompt, j.opening, (Message("assistant", j.response, j.calls),), j.partial)
    return Labelled(example, j.good)


def judged_row(chat: ChatFormat, judgements: Sequence[Judgement]) -> tuple[Labelled, ...]:
    """The judgements of one row as tokens; raises `Unusable` where the same tokens are both good and bad."""
    found = tuple(judged_of(chat, one) for one in judgements)
    if len({(one.example, one.good) for one in found}) > len({one.example for one in found}):
        raise Unusable(SAME)
    return found
