"""A dataset as a model sees it: rendered rows with loss mask, lengths, and what is left out.

    posttrain data show --dataset train.jsonl --model OWNER/NAME
    posttrain data show --dataset pairs.jsonl --eval-dataset test.jsonl --rows 5 --tokens
    posttrain data show --dataset "a.jsonl=0.7 b.csv=0.3" --json

Rows are read by the loaders of `sft`, `preference` and `rl`, and rendered by the same chat format: what is shown
is what is trained on. Nothing is ever truncated: what is over --max-tokens is left out. No weights are read.
"""

from collections.abc import Callable, Sequence
from typing import Any

from posttrain.bindings.feedback import JUDGEMENTS, PAIRS, Feedback
from posttrain.data import (
    ChatFormat,
    hold_out,
    load_demonstrations,
    load_tasks,
    load_tokenizer,
    parse_columns,
    question_of,
    read_rows,
)
from posttrain.data.given import Source
from posttrain.data.loaded import Loaded, Unusable
from posttrain.data.mixtures import parts_of
from posttrain.data.sources import UnknownColumn
from posttrain.errors import TemplateError, UserError, as_typed, unknown
from posttrain.models.footprint import read_shape
from posttrain.models.load import tokenizer_of
from posttrain.options.evaluation import DataShow
from posttrain.recipes.data_show.items import Item, columns_say, demonstration_item, feedback_item, task_item
from posttrain.recipes.data_show.result import DataShowResult, Dropped, HeldOutRows, Shown, too_long
from posttrain.training.resolve_model import named, saved_model
from posttrain.types import Task

LAYOUTS = ("sft", "preference", "judgements", "rl")
NAMED = 3  # rows that are named for each reason why some are left out


def run(config: DataShow) -> DataShowResult:
    """Read, render and count; nothing is written."""
    _check(config)
    where = saved_model(config.model).where
    chat = ChatFormat(load_tokenizer(tokenizer_of(where), config.chat_template, config.template_args))
    context = read_shape(where).context
    layout = layout_in(config) if config.layout == "auto" else config.layout
    items = _read(config, layout, config.dataset, config.limit)
    most = min(config.max_tokens, context - (layout == "rl"))
    wanted = range(config.first, config.first + config.rows)
    shown, lengths, over, same = list[Shown](), list[int](), list[str](), list[str]()
    sums, kept = [0, 0], 0
    for number, item in enumerate(items, 1):
        try:
            sequences = item.sequences(chat)
        except TemplateError as error:
            raise TemplateError(f"row {number}: {error}") from error
        except Unusable as problem:
            same.append(f"row {number}: {problem}")
            continue
        sizes = [len(one.token_ids) for one in sequences]
        lengths += sizes
        # An example of sft is left out alone; the responses of a row are kept or left out together.
        fits = [size <= most if layout == "sft" else max(sizes) <= most for size in sizes]
        for one, fit in zip(sequences, fits, strict=True):
            sums[0] += len(one.token_ids) * fit
            sums[1] += sum(one.learned) * fit
        over += [f"row {number}"] * (fits.count(False) if layout == "sft" else not all(fits))
        kept += any(fits)
        if number in wanted:
            shown.append(Shown(number, item.answer, tuple(fits), tuple(sequences)))
    dropped = _dropped([*items.left_out, *same])
    if over:
        dropped.append(Dropped(too_long(most), len(over), tuple(dict.fromkeys(over))[:NAMED]))
    if not lengths:
        raise UserError(f"nothing can be learned from any row; {same[0]}")
    return DataShowResult(
        dataset=str(config.dataset),
        model=named(config.model),
        layout=layout,
        max_tokens=most,
        rows=len(items),
        kept=kept,
        dropped=tuple(dropped),
        duplicates=len(items) - len({item.says for item in items}),
        repeated_prompts=len(items) - len({question_of(item.prompt) for item in items}),
        lengths=tuple(lengths),
        learned=sums[1],
        total=sums[0],
        unread=tuple(items.unread),
        heldout=_heldout(config, layout, items),
        shown=tuple(shown),
        chat=chat,
        tokens=config.tokens,
    )


def _check(config: DataShow) -> None:
    if not config.dataset:
        raise UserError("--dataset is required: a file, folder, glob or hub id, gym:NAME, or a mixture")
    if config.layout not in ("auto", *LAYOUTS):
        raise unknown("--layout", config.layout, ("auto", *LAYOUTS))
    if config.eval_share and config.eval_dataset:
        raise UserError("`eval_share` excludes `eval_dataset`; pass one of them")


def layout_in(config: DataShow) -> str:
    """What the columns of the first row say that a data set is for.

    Raises:
        UserError: they say nothing.
    """
    source = parts_of(config.dataset)[0].source
    if isinstance(source, str) and source.startswith("gym:"):
        return "rl"
    columns = parse_columns(config.columns) if config.columns else None
    try:
        (row,) = read_rows(source, split=config.split or None, columns=columns, limit=1)
    except UnknownColumn:
        (row,) = read_rows(source, split=config.split or None, limit=1)
    if not (found := columns_say(row)):
        raise row.fail(
            f"cannot tell what this row is for; it has: {', '.join(row.fields) or 'no fields'}; map its columns with "
            f"--columns, or name the --layout: {', '.join(LAYOUTS)}"
        )
    return found


def _read(config: DataShow, layout: str, source: Source, limit: int | None = None) -> Loaded[Item]:
    """The rows of a source."""
    words: dict[str, Any] = {
        "split": config.split or None,
        "columns": parse_columns(config.columns) if config.columns else None,
        "limit": limit,
        "system": config.system,
        "prompt_template": config.prompt_template,
        "seed": config.seed,
    }
    if layout == "rl":
        return _items(load_tasks(source, **words), task_item)
    if layout == "sft":
        return _items(load_demonstrations(source, **words), lambda one: demonstration_item(one, config.train_on))
    kind: Feedback[Any, Any] = PAIRS if layout == "preference" else JUDGEMENTS
    return _items(kind.load(source, **words), lambda one: feedback_item(kind, one))


def _items(found: Loaded[Any], item: Callable[[Any], Item]) -> Loaded[Item]:
    return Loaded(map(item, found), found.left_out, found.unread)


def _heldout(config: DataShow, layout: str, items: Sequence[Item]) -> HeldOutRows | None:
    if config.eval_share:
        tasks = [Task(item.prompt) for item in items]
        learned, held = (
            [question_of(task.prompt) for task in side] for side in hold_out(tasks, config.eval_share, config.seed)
        )
    elif config.eval_dataset:
        learned = [question_of(item.prompt) for item in items]
        held = [question_of(item.prompt) for item in _read(config, layout, config.eval_dataset)]
    else:
        return None
    met = set(learned)
    return HeldOutRows(len(held), sum(one in met for one in held), len(held) - len(set(held)))


def _dropped(left_out: Sequence[str]) -> list[Dropped]:
    """By reason, the most frequent first. A line is `place: reason`."""
    places: dict[str, list[str]] = {}
    for line in left_out:
        place, _, reason = line.partition(": ")
        places.setdefault(reason, []).append(place)
    found = [Dropped(as_typed(reason), len(found), tuple(found[:NAMED])) for reason, found in places.items()]
    return sorted(found, key=lambda one: -one.n)
