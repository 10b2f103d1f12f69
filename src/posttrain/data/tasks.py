"""Loading tasks: prompts with reference answers and metadata."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from posttrain.data.given import Source
from posttrain.data.gym import load_gym
from posttrain.data.loaded import Loaded
from posttrain.data.messages import with_tools
from posttrain.data.mixtures import mix
from posttrain.data.public_layouts import own_rows
from posttrain.data.records import Record
from posttrain.data.sources import read_rows
from posttrain.data.structures import structure_in
from posttrain.errors import UserError
from posttrain.types import Message, Task

_OWN_FIELDS = ("prompt", "answer", "gold", "id")
_GYM_SIZE = 1000  # tasks to make where no limit is given


def load_tasks(
    source: Source,
    *,
    split: str | None = None,
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    system: str | None = None,
    prompt_template: str = "{prompt}",
    seed: int = 0,
    named: Collection[str] = (),
) -> Loaded[Task]:
    """The tasks of a data set, or of `gym:NAME?option=value`.

    A row needs `prompt` (text, or a list of {role, content}, in which tools may have been called already) and may have
    `answer`, `gold`, `id` and `tools`; its other columns become metadata, `rewards` among them, which names those that
    apply to it. The columns of GSM8K (`question`, and an
    `answer` that ends with `#### 72`) are recognised: the text after `####` is the answer, all of it the gold. So
    are verl's, whose answer is the field `ground_truth` of `reward_model`.

    Args:
        source: a file, folder, hub id, the rows themselves (see `load_rows`), a `gym:` source (see `load_gym`), or a
            mixture of them (see `mixtures`), for which a `gym:` source makes 1,000 tasks.
        split: which part; "train" unless said otherwise. Of a `gym:` source: "train" or "heldout".
        columns: new name -> name in the data.
        limit: the most tasks; of a `gym:` source the number to make.
        system: a system message, which takes the place of one in the data.
        prompt_template: text around each user message, which stands at `{prompt}`.
        seed: which tasks a `gym:` source makes, and which rows of a mixture are repeated.
        named: other columns that are read, such as by a reward.

    Raises:
        DataError: as `load_rows`, or a row that is no task, by file, line and field.
        UserError: a template without `{prompt}`, or a wrong `gym:` source.
    """
    found = Loaded[Task]()

    def load(part: Source, columns: Mapping[str, str] | None, limit: int | None) -> list[Task]:
        if not isinstance(part, str) or not part.startswith("gym:"):
            rows = gsm8k_as_tasks(read_rows(part, split=split, columns=columns, limit=limit))
            return found.usable(rows, lambda row: [task_in(row)], named, _own_prompts)
        if columns and part == source:
            raise UserError(f"'{part}' has no columns to map; leave out `columns`")
        size = _GYM_SIZE if limit is None else limit
        return load_gym(part, size=size, seed=seed, split="train" if split is None else split)

    tasks = mix(source, load, columns=columns, limit=limit, seed=seed)
    found += [replace(task, prompt=dress(task.prompt, system, prompt_template)) for task in tasks]
    return found


def dress(messages: Sequence[Message], system: str | None, prompt_template: str) -> tuple[Message, ...]:
    """A conversation with a system message in front and text around each user message.

    Raises:
        UserError: the template does not have `{prompt}` exactly once.

    Example:
        >>> dress([Message("user", "1+1?")], None, "{prompt} Think first.")[0].content
        '1+1? Think first.'
    """
    if prompt_template.count("{prompt}") != 1:
        raise UserError(f"a prompt template needs {{prompt}} exactly once; got '{prompt_template}'")
    dressed = tuple(
        replace(m, content=prompt_template.replace("{prompt}", m.content)) if m.role == "user" else m for m in messages
    )
    if system is None:
        return dressed
    tools = next((m.tools for m in messages if m.tools), ())
    return with_tools((Message("system", system), *(m for m in dressed if m.role != "system")), tools)


def _own_prompts(row: Record) -> list[Record]:
    """A row in posttrain's columns, where it has no `prompt` of its own and they do."""
    own = [] if "prompt" in row else own_rows(row)
    return own if own and "prompt" in own[0] else [row]


def task_in(row: Record) -> Task:
    """The task of a row; raises `DataError` if it is none."""
    prompt = row.begun(row.messages("prompt"))
    if prompt[-1].role not in ("user", "tool"):
        raise row.fail(f"field 'prompt' must end with a user message; it ends with the role '{prompt[-1].role}'")
    row.read.update((*_OWN_FIELDS, "kind", "rewards"))  # some algorithms group prompts by kind
    return Task(
        prompt,
        answer=_answer(row),
        gold=row.text("gold") if "gold" in row else None,
        metadata={name: value for name, value in (row.source or row.fields).items() if name not in _OWN_FIELDS},
        id=str(row.fields["id"]) if "id" in row else row.id,
        conversational=not isinstance(row.fields["prompt"], str),
    )


def _answer(row: Record) -> object:
    """`answer`, or its equivalent in verl's files: `reward_model` with its `ground_truth`."""
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
    return [_gsm8k_as_task(row) for row in rows]


def _gsm8k_as_task(row: Record) -> Record:
    gold = row.text("answer")
    answer = gold.rpartition("####")[2].strip()
    if "####" not in gold or not answer:
        raise row.fail("field 'answer' must end with '#### ' and the number, as in the rows before it")
    if "question" not in row:
        raise row.missing("question")
    others = {name: value for name, value in row.fields.items() if name not in ("question", "answer", "id")}
    return Record({**others, "prompt": row.fields["question"], "answer": answer, "gold": gold}, row.place, row.id)
