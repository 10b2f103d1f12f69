"""Loading given completions to score: prompt, completion, reference answer."""

import re
from collections.abc import Collection, Mapping
from typing import Any, cast

from posttrain.data.given import Source
from posttrain.data.loaded import Loaded
from posttrain.data.meaning import is_empty
from posttrain.data.records import Record, after
from posttrain.data.sources import read_rows
from posttrain.data.tasks import gsm8k_as_tasks, task_in
from posttrain.errors import UserError
from posttrain.types import Episode, Message, Role, StopReason

_SAMPLE = frozenset(("completion", "rewards", "stop_reason", "step"))  # columns of a run's samples.jsonl
_BEGINS = re.compile(r"^(system|user|assistant|tool): ", re.MULTILINE)


def load_completions(
    source: Source,
    *,
    split: str | None = None,
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    named: Collection[str] = (),
) -> Loaded[Episode]:
    """The completions of a data set, each as an episode that a reward can score.

    A row has `completion` (text, or a list of messages) and `prompt` or `messages` (text, or a list of messages), or
    `messages` that end with the completion. It may have `answer`, `gold` and `id`, as a task has (`load_tasks`); its
    other columns become metadata. Rows of a run's `samples.jsonl` are read too.

    Args:
        source: a file, folder, hub id, or the rows themselves (see `load_rows`).
        split: which part; "train" unless said otherwise.
        columns: new name -> name in the data.
        limit: the most rows, from the first.
        named: other columns that are read, such as by a reward.

    Raises:
        DataError: as `load_rows`, or a row without a prompt or completion, by file, line and field.
    """
    if isinstance(source, str) and source.startswith("gym:"):
        raise UserError(f"'{source}' makes tasks without completions; give a file with a column 'completion'")
    found = Loaded[Episode]()
    rows = read_rows(source, split=split, columns=columns, limit=limit)
    found += found.usable(gsm8k_as_tasks(rows), _episodes, named)
    return found


def _episodes(row: Record) -> list[Episode]:
    own, said, stop = _divided(row)
    task = task_in(own)
    return [Episode(task, (*task.prompt, *after(task.prompt, said)), stop)]


def _divided(row: Record) -> tuple[Record, tuple[Message, ...], StopReason]:
    """The task's columns, the completion, and its stop reason."""
    if row.fields.keys() >= _SAMPLE:
        row.read.update(row.fields)
        return _sample(row), _said(row), _stop_reason(row)
    fields = dict(row.fields)
    if "completion" in row:
        said = _said(row)
    elif "messages" in row and (messages := row.messages("messages"))[-1].role == "assistant":
        said = messages[-1:]
        value = row.fields["messages"]
        fields["messages"] = (row.structure("messages") or [] if isinstance(value, str) else cast(list[Any], value))[
            :-1
        ]
    else:
        raise row.missing("completion")
    row.read.update(("completion", "messages"))
    conversation = fields.pop("messages", None)
    if "prompt" not in row and conversation is not None:
        fields["prompt"] = conversation
    fields.pop("completion", None)
    return Record(fields, row.place, row.id, row.read, row.keys), said, StopReason.STOP


def _said(row: Record) -> tuple[Message, ...]:
    """The column `completion`; an empty text is a completion, too."""
    value = row.get("completion")
    if isinstance(value, str) and (is_empty(value) or row.structure("completion") is None):
        return (Message("assistant", value),)
    said = row.messages("completion")
    if said[-1].role != "assistant":
        raise row.fail(f"field 'completion' must end with an assistant message; it ends with '{said[-1].role}'")
    return said


def _sample(row: Record) -> Record:
    """The task of a row of `samples.jsonl`, whose prompt is `role: content`, message after message."""
    text = row.text("prompt")
    begins = list(_BEGINS.finditer(text))
    if begins and begins[0].start() == 0:
        ends = [match.start() - 1 for match in begins[1:]] + [len(text)]
        spans = zip(begins, ends, strict=True)
        prompt = [{"role": cast(Role, match[1]), "content": text[match.end() : end]} for match, end in spans]
    else:
        prompt = text
    return Record({"prompt": prompt, "answer": row.fields.get("answer") or None}, row.place, row.id)


def _stop_reason(row: Record) -> StopReason:
    try:
        return StopReason(row.fields["stop_reason"])
    except ValueError:
        return StopReason.STOP
