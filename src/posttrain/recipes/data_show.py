"""A dataset as a model sees it: rendered rows with loss mask, lengths, and what is left out.

    posttrain data show --dataset train.jsonl --model OWNER/NAME
    posttrain data show --dataset pairs.jsonl --eval-dataset test.jsonl --rows 5 --tokens
    posttrain data show --dataset "a.jsonl=0.7 b.csv=0.3" --json

Rows are read by the loaders of `sft`, `preference` and `rl`, and rendered by the same chat format: what is shown
is what is trained on. Nothing is ever truncated: what is over --max-tokens is left out. No weights are read.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any

from posttrain.bindings.feedback import JUDGEMENTS, PAIRS, Feedback, demonstrations
from posttrain.data import ChatFormat, Record, hold_out, load_tasks, load_tokenizer, question_of, reading_of
from posttrain.data.files import Source
from posttrain.data.layouts import own_rows
from posttrain.data.loaded import Loaded, Unusable, parts_of
from posttrain.data.packing import Example, size_of
from posttrain.data.preferences import is_preference
from posttrain.data.sources import UnknownColumn, read_rows
from posttrain.errors import TemplateError, UserError, as_typed, unknown
from posttrain.models.footprint import read_shape
from posttrain.models.load import tokenizer_of
from posttrain.options.evaluation import DataShow
from posttrain.report.markup import printable
from posttrain.report.masked_text import histogram_lines, in_colour, masked_lines
from posttrain.training.resolve_model import named, saved_model
from posttrain.types import Task

LAYOUTS = ("sft", "preference", "judgements", "rl")
NAMED = 3  # rows that are named for each reason why some are left out
BINS = 10  # of the histogram, at most
ANSWER = 200  # characters of a task's answer

TASKS: Feedback[Task, Example] = Feedback(
    "tasks",
    load_tasks,
    lambda task: task.prompt,
    lambda chat, task: [Example.whole(ids := chat.prompt_ids(task.prompt), [False] * len(ids))],
    lambda example: [example],
    lambda sequences: size_of(sequences[0]),
)
"""Tasks of rl: their prompts, of which nothing is learned."""


def run(config: DataShow) -> tuple[list[str], dict[str, Any]]:
    """Read, render and count; nothing is written."""
    layout = _layout_in(config)
    where = saved_model(config.model).where
    chat = ChatFormat(load_tokenizer(tokenizer_of(where), config.chat_template, config.template_args))
    context = read_shape(where).context
    kinds = {"preference": PAIRS, "judgements": JUDGEMENTS, "rl": TASKS}
    kind: Feedback[Any, Any] = kinds.get(layout) or demonstrations(config.train_on)
    items = _read(config, kind, config.dataset, config.limit)
    most = min(config.max_tokens, context - (layout == "rl"))
    shown, lengths, over, same = list[dict[str, Any]](), list[int](), list[str](), list[str]()
    said, total, learned, kept = set[int](), 0, 0, 0
    for number, item in enumerate(items, 1):
        try:
            units = kind.tokens(chat, item)
        except TemplateError as error:
            raise TemplateError(f"row {number}: {error}") from error
        except Unusable as problem:
            same.append(f"row {number}: {problem}")
            continue
        examples = kind.examples(units)
        answer = str(item.answer) if layout == "rl" and item.answer is not None else ""
        sizes = list(map(size_of, examples))
        lengths += sizes
        # An example of sft is left out alone; the responses of a row are kept or left out together.
        fits = [size <= most if layout == "sft" else max(sizes) <= most for size in sizes]
        total += sum(size * fit for size, fit in zip(sizes, fits, strict=True))
        learned += sum(sum(one.learned) * fit for one, fit in zip(examples, fits, strict=True))
        over += [f"row {number}"] * (fits.count(False) if layout == "sft" else not all(fits))
        kept += any(fits)
        parts = _parts(layout, units)
        said.add(hash((parts, tuple(examples), answer)))
        if config.first <= number < config.first + config.rows:
            each = zip(parts, fits, examples, strict=True)
            shown += [_shown(chat, one, row=number, part=part, kept=fit, answer=answer) for part, fit, one in each]
    if not lengths:
        raise UserError(f"nothing can be learned from any row; {same[0]}")
    dropped = _dropped([*items.left_out, *same])
    if over:
        dropped.append({"reason": _too_long(most), "n": len(over), "first": list(dict.fromkeys(over))[:NAMED]})
    ordered = sorted(lengths)
    tokens = {"total": total, "learned": learned, "min": ordered[0], "mean": fmean(ordered)}
    found = {
        "dataset": str(config.dataset),
        "model": named(config.model),
        "layout": layout,
        "max_tokens": most,
        "rows": len(items),
        "kept": kept,
        "dropped": dropped,
        "duplicates": len(items) - len(same) - len(said),
        "repeated_prompts": len(items) - len({question_of(kind.prompt(item)) for item in items}),
        "not_read": list(items.unread),
        "heldout": _heldout(config, kind, items),
        "tokens": tokens | {"median": ordered[len(ordered) // 2], "max": ordered[-1]},
        "histogram": [dict(zip(("from", "to", "n"), one, strict=True)) for one in histogram(lengths)],
        "shown": shown,
    }
    return [*_rows(chat, found, config.tokens), *_summary(chat, found)], found


def _layout_in(config: DataShow) -> str:
    """The layout that is asked for, or what the columns of the first row say."""
    if not config.dataset:
        raise UserError("--dataset is required: a file, folder, glob or hub id, gym:NAME, or a mixture")
    if config.layout not in ("auto", *LAYOUTS):
        raise unknown("--layout", config.layout, ("auto", *LAYOUTS))
    if config.eval_share and config.eval_dataset:
        raise UserError("`eval_share` excludes `eval_dataset`; pass one of them")
    if config.layout != "auto":
        return config.layout
    source = parts_of(config.dataset)[0].source
    if isinstance(source, str) and source.startswith("gym:"):
        return "rl"
    how = reading_of(config)
    how["limit"] = 1
    try:
        (row,) = read_rows(source, **how)
    except UnknownColumn:
        del how["columns"]
        (row,) = read_rows(source, **how)
    if not (found := _columns_say(row)):
        raise row.fail(
            f"cannot tell what this row is for; it has: {', '.join(row.fields) or 'no fields'}; map its columns with "
            f"--columns, or name the --layout: {', '.join(LAYOUTS)}"
        )
    return found


def _columns_say(row: Record) -> str:
    """The layout that a row has by its columns; "" where they say nothing."""
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


def _read(config: DataShow, kind: Feedback[Any, Any], source: Source, limit: int | None = None) -> Loaded[Any]:
    words = {"limit": limit, "system": config.system, "prompt_template": config.prompt_template, "seed": config.seed}
    return kind.load(source, **reading_of(config) | words)


def _parts(layout: str, units: Sequence[Any]) -> tuple[str, ...]:
    """What the sequences of a row are called, where it has several or labelled ones."""
    if layout == "preference":
        return "chosen", "rejected"
    if layout == "judgements":
        return tuple("good" if one.good else "bad" for one in units[0])
    return tuple(f"turn {i}" if len(units) > 1 else "" for i in range(1, len(units) + 1))


def _shown(chat: ChatFormat, example: Example, **about: Any) -> dict[str, Any]:
    ids = [*example.prefix, *example.continuation]
    learned = [*[False] * len(example.prefix), *example.learned]
    return about | {"token_ids": ids, "learned": learned, "text": _text_of(chat, ids)}


def _dropped(left_out: Sequence[str]) -> list[dict[str, Any]]:
    """How many were left out and the first of them, by reason, most frequent first. A line is `place: reason`."""
    places: dict[str, list[str]] = {}
    for line in left_out:
        place, _, reason = line.partition(": ")
        places.setdefault(reason, []).append(place)
    found = [{"reason": as_typed(why), "n": len(all_), "first": all_[:NAMED]} for why, all_ in places.items()]
    return sorted(found, key=lambda one: -one["n"])


def _heldout(config: DataShow, kind: Feedback[Any, Any], items: Sequence[Any]) -> dict[str, int] | None:
    """How many are held out, how many of them have a prompt of the data set, or one that stood before among them."""
    if config.eval_share:
        sides = hold_out([Task(kind.prompt(item)) for item in items], config.eval_share, config.seed)
        learned, held = ([question_of(task.prompt) for task in side] for side in sides)
    elif config.eval_dataset:
        more = _read(config, kind, config.eval_dataset)
        learned, held = ([question_of(kind.prompt(item)) for item in side] for side in (items, more))
    else:
        return None
    met = set(learned)
    return {"n": len(held), "overlap": sum(one in met for one in held), "duplicates": len(held) - len(set(held))}


def _rows(chat: ChatFormat, found: Mapping[str, Any], by_token: bool) -> Iterator[str]:
    """The rows for people. Learned text is green, and marked by >."""
    colour = in_colour()
    for one in found["shown"]:
        name = f"row {one['row']:,}" + (f" ({one['part']})" if one["part"] else "")
        size = f"{len(one['token_ids']):,} tokens, {sum(one['learned']):,} learned"
        yield f"{name}: {size}" + ("" if one["kept"] else f", left out: {_too_long(found['max_tokens'])}")
        masked = list(zip(one["token_ids"], one["learned"], strict=True))
        if by_token:
            for place, (token, mine) in enumerate(masked):
                text = _text_of(chat, [token]).replace("\n", "\u21b5")
                yield from masked_lines([(f"{place:>5} {token:>7} {text}", mine)], colour=colour)
        else:  # cut where what is learned begins and ends
            parts = [(mine, [token for token, _ in part]) for mine, part in groupby(masked, key=lambda one: one[1])]
            yield from masked_lines([(_text_of(chat, ids), mine) for mine, ids in parts], colour=colour)
        if one["answer"]:
            answer = printable(" ".join(one["answer"].split()))
            yield f"  answer: {answer if len(answer) <= ANSWER else answer[: ANSWER - 3] + '...'}"
        yield ""


def _summary(chat: ChatFormat, found: Mapping[str, Any]) -> Iterator[str]:
    rows, tokens, held = found["rows"], found["tokens"], found["heldout"]
    yield (
        f"{rows:,} row{'s' * (rows != 1)} of {printable(found['dataset'])}, read as {found['layout']}, "
        f"for {printable(found['model'])}"
    )
    yield (
        f"{tokens['total']:,} tokens in what is kept, {tokens['learned']:,} of them learned; lengths {tokens['min']:,} "
        f"to {tokens['max']:,}, mean {tokens['mean']:,.0f}, median {tokens['median']:,}"
    )
    yield from histogram_lines([(one["from"], one["to"], one["n"]) for one in found["histogram"]])
    for one in found["dropped"]:
        more = ", ..." if one["n"] > len(one["first"]) else ""
        yield f"left out: {one['n']:,}, {printable(one['reason'])} ({printable(', '.join(one['first']))}{more})"
    yield f"duplicates: {found['duplicates']:,} duplicate rows; {found['repeated_prompts']:,} repeated prompts"
    yield from map(as_typed, chat.notes)
    if found["not_read"]:
        yield f"not read: {printable(', '.join(found['not_read']))}"
    if held is not None:
        yield (
            f"held out: {held['n']:,} rows; the prompts of {held['overlap']:,} are also in the data set, of "
            f"{held['duplicates']:,} stood before among them"
        )


def _too_long(most: int) -> str:
    return f"over {most:,} tokens"


def histogram(lengths: Sequence[int]) -> list[tuple[int, int, int]]:
    """At most 10 bins of equal width, as (from, to, count), both ends included; the width is 1, 2 or 5 times 10^k.

    Example:
        >>> histogram([13, 15, 31])
        [(11, 15, 2), (16, 20, 0), (21, 25, 0), (26, 30, 0), (31, 35, 1)]
    """
    longest = max(lengths)
    width = next(step for k in range(12) for step in (10**k, 2 * 10**k, 5 * 10**k) if step * BINS >= longest)
    counts: Mapping[int, int] = Counter((length - 1) // width for length in lengths)
    first, last = (min(lengths) - 1) // width, (longest - 1) // width
    return [(i * width + 1, (i + 1) * width, counts.get(i, 0)) for i in range(first, last + 1)]


def _text_of(chat: ChatFormat, token_ids: Sequence[int]) -> str:
    """Tokens as text, special ones as they are spelled. It may hold whatever the data hold: see `printable`."""
    return str(chat.tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))
