"""The suites that an evaluation names: where their data is, and the tasks that they make of it."""

import inspect
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from posttrain import user_code
from posttrain.data import load_rows, parse_columns
from posttrain.data.files import Source, kind_of
from posttrain.data.sources import has_splits
from posttrain.errors import DataError, UserError, described, unknown, words_of
from posttrain.evaluation.suite import Suite
from posttrain.evaluation.suites import SUITES
from posttrain.options.evaluation import MAX_NEW_TOKENS, Evaluate
from posttrain.options.option import given

LM_EVAL = "lm-eval:"


class Asked(NamedTuple):
    """One evaluation of a command: that of a suite, or the whole."""

    name: str  # "" without suites
    suite: Suite | None  # None also for a task of lm-eval
    config: Evaluate  # with what the suite says
    alone: bool


def asked(config: Evaluate) -> list[Asked]:
    """The suites that are named, each with the options that are not at their defaults in place of its own."""
    names = list(dict.fromkeys(words_of("suite", config.suite)))
    found: list[Asked] = []
    for name in names:
        suite = None if name.startswith(LM_EVAL) else load_suite(name)
        samples = config.greedy or config.samples is not None or config.ks
        says = {key: value for key, value in suite.options.items() if not config.says(key)} if suite else {}
        says = {key: value for key, value in says.items() if not (samples and key in ("greedy", "samples"))}
        found.append(Asked(name, suite, replace(config, **says), len(names) == 1))
    whole = found or [Asked("", None, config, True)]
    return [one._replace(config=_with_tokens(one.config)) for one in whole]


def _with_tokens(config: Evaluate) -> Evaluate:
    return replace(config, max_new_tokens=MAX_NEW_TOKENS) if config.max_new_tokens is None else config


def load_suite(name: str) -> Suite:
    """The suite of this name, or of `FILE.py:CLASS`; raises `UserError`."""
    if ".py" not in name:
        if name not in SUITES:
            raise unknown("suite", name, [*SUITES, f"{LM_EVAL}TASK", "FILE.py:CLASS"])
        return SUITES[name]()
    found = user_code.load("suite", name, "class")
    if not (inspect.isclass(found) and issubclass(found, Suite)):
        raise UserError(f"the suite '{name}' must be a subclass of posttrain.Suite; got {found!r:.80}")
    return found()


def rows_of(suite: Suite, asked: Asked) -> list[dict[str, Any]]:
    """The rows of a suite's tasks, with ids that say which suite they are of."""
    name, config = asked.name, asked.config
    if config.limit is not None and config.limit < 1:
        raise UserError(f"the limit of rows must be 1 or more; got {config.limit}")
    source = _source(suite, asked)
    splits = config.split.split() or (suite.splits if has_splits(source) else [None])
    columns = parse_columns(config.columns)
    rows = _in_turn(_of_all_kinds(suite, load_rows(source, split=split, columns=columns)) for split in splits)
    found = list(islice(_tasks(name, suite, rows), config.limit))
    if not found:
        raise DataError(f"none of the {len(rows)} rows of '{source}' is a task of the suite '{name}'")
    if refusal := suite.refusal(found):
        raise UserError(f"the suite '{name}' cannot be measured: {refusal}")
    return found


def _of_all_kinds(suite: Suite, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    kinds: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        kinds[suite.kind(row)].append(row)
    return _in_turn(kinds.values())


def _in_turn(parts: Iterable[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [row for rank in zip_longest(*parts) for row in rank if row is not None]


def _tasks(name: str, suite: Suite, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(rows, 1):
        try:
            task = suite.row(row)
        except KeyError as error:
            has = ", ".join(row)
            raise DataError(f"row {number} of the suite '{name}' has no column {error}; it has: {has}") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise DataError(f"row {number} of the suite '{name}' cannot be read: {described(error)}") from error
        if task is not None:
            yield {**task, "id": f"{_short(name)}/{task.get('id', number)}"}


def _short(name: str) -> str:
    return name.rpartition(":")[2].lower()


def _source(suite: Suite, asked: Asked) -> Source:
    dataset: Any = asked.config.dataset
    if not given(dataset):
        if not suite.hub:
            raise UserError(f"the suite '{asked.name}' has no data of its own; pass `dataset`")
        return suite.hub
    if isinstance(dataset, str | Path) and os.path.isdir(folder := Path(dataset).expanduser()):
        return str(_below(folder, _short(asked.name), asked.alone))
    if not asked.alone:
        what = "is one data set" if not isinstance(dataset, str | Path) or os.path.exists(dataset) else "is no folder"
        raise UserError(
            f"`dataset` {what}, and several suites are asked; name a folder that has a file or folder of each "
            f"one's name, such as {_short(asked.name)}.jsonl"
        )
    return dataset


def _below(folder: Path, name: str, alone: bool) -> Path:
    """The file or folder of this name, at any depth; for a suite that is alone the folder itself, if there is none."""
    for path in sorted(folder.rglob("*"), key=lambda path: (len(path.parts), path)):
        if path.name.lower().split(".")[0] == name and (path.is_dir() or kind_of(path.name)):
            return _below(path, name, True) if path.is_dir() else path
    if alone:
        return folder
    raise UserError(f"the folder '{folder}' has no file or folder called '{name}', such as {name}.jsonl")
