"""Loading tasks (prompts with reference answers and metadata), given completions of them, and demonstrations."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack, cast

from posttrain.data.annotation_tools import best_conversation, gathered_trees, is_tree
from posttrain.data.files import Source, is_gym
from posttrain.data.gym import load_gym
from posttrain.data.layouts import own_rows
from posttrain.data.loaded import Loaded, Reading, read_all
from posttrain.data.meaning import is_empty, structure_in
from posttrain.data.messages import tools_of, with_tools
from posttrain.data.records import Record, after, given
from posttrain.errors import UserError
from posttrain.types import Episode, Message, Role, StopReason, Task

_OWN_FIELDS = ("prompt", "answer", "gold", "id")
_GYM_SIZE = 1000  # tasks to make where no limit is given


def load_tasks(
    source: Source,
    *,
    system: str | None = None,
    prompt_template: str = "{prompt}",
    named: Collection[str] = (),
    **reading: Unpack[Reading],
) -> Loaded[Task]:
    """The tasks of a data set, or of `gym:NAME?option=value`.

    A row needs `prompt` (text, or a list of {role, content}, in which tools may have been called already) and may have
    `answer`, `gold`, `id` and `tools`; its other columns become metadata, `rewards` among them, which names those that
    apply to it. The columns of GSM8K (`question`, and an `answer` that ends with `#### 72`) are recognised: the text
    after `####` is the answer, all of it the gold. So are verl's, whose answer is the field `ground_truth` of
    `reward_model`. Arguments and errors are those of `load_preferences`; of a `gym:` source (see `load_gym`) the split
    is "train" or "heldout", the limit the number of tasks to make, 1,000 in a mixture, and the seed says which. `named`
    are other columns that are read, such as by a reward.
    """

    def dressed(task: Task) -> Task:
        return replace(task, prompt=dress(task.prompt, system, prompt_template))

    def own(row: Record) -> list[Record]:
        """A row in posttrain's columns, where it has no `prompt` of its own and they do."""
        rows = [] if "prompt" in row else own_rows(row)
        return rows if rows and "prompt" in rows[0] else [row]

    def make(part: Source, columns: Mapping[str, str] | None, limit: int | None) -> list[Task]:
        if columns and part == source:
            raise UserError(f"'{part}' has no columns to map; leave out `columns`")
        size, split = _GYM_SIZE if limit is None else limit, reading.get("split") or "train"
        return [dressed(task) for task in load_gym(str(part), size=size, seed=reading.get("seed", 0), split=split)]

    def read(row: Record) -> list[Task]:
        return [dressed(task_in(row))]

    return read_all(source, read, gather=gsm8k_as_tasks, own=own, named=named, make=make, **reading)


def dress(messages: Sequence[Message], system: str | None, prompt_template: str) -> tuple[Message, ...]:
    """A conversation with a system message in front and, at `{prompt}` of the template, each user message."""
    if prompt_template.count("{prompt}") != 1:
        raise UserError(f"a prompt template needs {{prompt}} exactly once; got '{prompt_template}'")
    dressed = tuple(
        replace(m, content=prompt_template.replace("{prompt}", m.content)) if m.role == "user" else m for m in messages
    )
    if system is None:
        return dressed
    return with_tools((Message("system", system), *(m for m in dressed if m.role != "system")), tools_of(messages))


def task_in(row: Record) -> Task:
    """The task of a row; raises `DataError` if it is none."""
    prompt = row.begun(row.messages("prompt"))
    if prompt[-1].role not in ("user", "tool"):
        raise row.fail(f"field 'prompt' must end with a user message; it ends with the role '{prompt[-1].role}'")
    row.read.update((*_OWN_FIELDS, "kind", "rewards"))  # some algorithms group prompts by kind
    return Task(
        prompt,
        answer=answer_in(row),
        gold=row.text("gold") if "gold" in row else None,
        metadata={name: value for name, value in (row.source or row.fields).items() if name not in _OWN_FIELDS},
        id=str(row.fields["id"]) if "id" in row else row.id,
        conversational=not isinstance(row.fields["prompt"], str),
    )


def answer_in(row: Record) -> object:
    """The reference answer of a row: `answer`, or in verl's files `reward_model` with its `ground_truth`."""
    judged = row.get("reward_model")
    if isinstance(judged, str):
        judged = structure_in(judged)
    if "answer" not in row and isinstance(judged, Mapping):
        return judged.get("ground_truth")
    answer = row.fields.get("answer")
    if isinstance(answer, float) and not math.isfinite(answer):
        raise row.fail(f"field 'answer' must be finite, or left out; got {answer!r}")
    return answer


def gsm8k_as_tasks(rows: Sequence[Record]) -> list[Record]:
    """Rows of GSM8K, as the first one says, with `prompt`, `answer` and `gold`; others as they are."""
    if not rows or "prompt" in rows[0] or "question" not in rows[0] or "####" not in str(rows[0].fields.get("answer")):
        return list(rows)
    found: list[Record] = []
    for row in rows:
        gold = row.text("answer")
        answer = gold.rpartition("####")[2].strip()
        if "####" not in gold or not answer:
            raise row.fail("field 'answer' must end with '#### ' and the number, as in the rows before it")
        if "question" not in row:
            raise row.missing("question")
        fields = {name: value for name, value in row.fields.items() if name not in ("question", "answer", "id")}
        fields |= {"prompt": row.fields["question"], "answer": answer, "gold": gold}
        found.append(Record(fields, row.place, row.id))
    return found


_SAMPLE = frozenset(("completion", "rewards", "stop_reason", "step"))  # columns of a run's samples.jsonl
_BEGINS = re.compile(r"^(system|user|assistant|tool): ", re.MULTILINE)


def load_completions(source: Source, *, named: Collection[str] = (), **reading: Unpack[Reading]) -> Loaded[Episode]:
    """The completions of a data set, each as an episode that a reward can score.

    A row has `completion` (text, or a list of messages) and `prompt` or `messages` (text, or a list of messages), or
    `messages` that end with the completion. It may have `answer`, `gold` and `id`, as a task has; its other columns
    become metadata. Rows of a run's `samples.jsonl` are read too. Arguments are those of `load_tasks`.
    """
    if is_gym(source):
        raise UserError(f"'{source}' makes tasks without completions; give a file with a column 'completion'")

    return read_all(source, lambda row: [episode_in(row)], gather=gsm8k_as_tasks, named=named, **reading)


def episode_in(row: Record) -> Episode:
    """The completion of a row, as `load_completions` says."""
    own, said, stop = _divided(row)
    task = task_in(own)
    return Episode(task, (*task.prompt, *after(task.prompt, said)), stop)


def _divided(row: Record) -> tuple[Record, tuple[Message, ...], StopReason]:
    if row.fields.keys() >= _SAMPLE:
        row.read.update(row.fields)
        stop = row.fields["stop_reason"]
        return _sample(row), _said(row), StopReason(stop) if stop in set(StopReason) else StopReason.STOP
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


def load_demonstrations(
    source: Source, *, system: str | None = None, prompt_template: str = "{prompt}", **reading: Unpack[Reading]
) -> Loaded[tuple[Message, ...]]:
    """The conversations of a data set, each with at least one assistant message.

    A row has one of: `messages` or `conversations` (lists of {role, content}, or of ShareGPT's {from, value}); `prompt`
    and `completion` (text or lists); `question` and `answer`; `instruction`, perhaps `input`, and `output`; or is in a
    layout of data/layouts.py. Of a prompt and of `history` nothing is learned, nor of messages whose `weight` is 0.
    Messages may have `tool_calls`, and the row `tools`: the JSON schemas of what may be called. Arguments and errors
    are those of `load_preferences`.
    """

    def gather(rows: Sequence[Record]) -> list[Record]:
        return [best_conversation(row) if is_tree(row) else row for row in gathered_trees(rows)]

    def read(row: Record) -> list[tuple[Message, ...]]:
        return [dress(conversation_in(row), system, prompt_template)]

    return read_all(source, read, gather=gather, **reading)


def conversation_in(row: Record) -> tuple[Message, ...]:
    """The conversation of a row."""
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
        return (*given(prompt), *row.response("output", prompt))
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
    return (*given(prompt), *row.response(answer, prompt))
