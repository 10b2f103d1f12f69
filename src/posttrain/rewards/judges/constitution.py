"""Constitutions (Bai et al. 2022, https://arxiv.org/abs/2212.08073): principles to criticise, revise and judge by."""

import json
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, cast

from posttrain.errors import UserError, unknown
from posttrain.rewards.judges.consensus import preferences
from posttrain.types import EpisodeGroup

PACKAGED = "default"


@dataclass(frozen=True)
class Principle:
    """What an answer should be, as it is asked for; a part that is not used may be missing."""

    name: str
    preference: str = ""  # which of two answers is better
    critique: str = ""  # the request for a critique
    revision: str = ""  # the request for a revision


@dataclass(frozen=True)
class Example:
    """A worked example for a few-shot prompt: an answer, its critique and its revision."""

    prompt: str
    response: str
    critique: str
    revision: str
    principle: str  # its name


@dataclass(frozen=True)
class Constitution:
    """Principles, of different names, and examples."""

    principles: tuple[Principle, ...]
    examples: tuple[Example, ...] = ()


def read_constitution(name: str, *parts: str) -> Constitution:
    """A TOML or JSON file with `principles` and maybe `examples`, or the packaged one, `default`.

    Each principle must have the `parts` that it is used for. Raises `UserError` by file and principle.
    """
    path = Path(__file__).with_name("constitution.toml") if name == PACKAGED else Path(name).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
        found: Any = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot read the constitution {name}: {why}; expected a TOML or JSON file, or '{PACKAGED}'"
        ) from error
    tables: Mapping[str, Any] = cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}
    principles = [Principle(**row) for row in _rows(name, tables, "principles", Principle, ("name", *parts))]
    if not principles:
        raise UserError(f"the constitution {name} has no principles; expected [[principles]] with name and texts")
    names = [one.name for one in principles]
    if twice := next((one for one in names if names.count(one) > 1), ""):
        raise UserError(f"the constitution {name} has two principles called '{twice}'; rename one")
    every = ("prompt", "response", "critique", "revision", "principle")
    examples = [Example(**row) for row in _rows(name, tables, "examples", Example, every)]
    if other := next((one.principle for one in examples if one.principle not in names), ""):
        raise unknown(f"principle of an example in {name}:", other, names)
    return Constitution(tuple(principles), tuple(examples))


def by_principle(group: EpisodeGroup, principle: Principle) -> EpisodeGroup:
    """The answers to a task, to be judged by a principle: the prompt of the judge shows it as `{principle}`."""
    task = replace(group.task, metadata={**group.task.metadata, "principle": principle.preference})
    return EpisodeGroup(task, tuple(replace(episode, task=task) for episode in group.episodes))


def opposed(said: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, tuple[int, int]]:
    """Of each two principles, by which a judge judged the same rows: how many, and how many of them oppositely.

    `said` has for each row the scores of its answers by "judge: principle"; principles that never oppose are left out.
    """
    both, opposite = Counter[str](), Counter[str]()
    for scores in said:
        for (name, first), (other, second) in combinations(sorted(scores.items()), 2):
            (judge, _, one), (other_judge, _, two) = name.partition(": "), other.partition(": ")
            if one and judge == other_judge:
                both[f"{one} / {two}"] += 1
                signs = zip(preferences(first), preferences(second), strict=True)
                opposite[f"{one} / {two}"] += any(a * b < 0 for a, b in signs)
    return {pair: (both[pair], count) for pair, count in opposite.most_common() if count}


def _rows(
    name: str, tables: Mapping[str, Any], key: str, kind: type[Any], needed: Sequence[str]
) -> list[dict[str, str]]:
    """The tables of one key, each with texts for the fields of its kind alone."""
    rows = tables.get(key, [])
    if not isinstance(rows, list):
        raise UserError(f"'{key}' of the constitution {name} must be a list of tables; got {rows!r:.60}")
    found: list[dict[str, str]] = []
    for number, row in enumerate(cast("list[Any]", rows), 1):
        what = f"{key[:-1]} {number} of the constitution {name}"
        if not isinstance(row, Mapping):
            raise UserError(f"{what} must be a table; got {row!r:.60}")
        table = dict(cast("Mapping[str, Any]", row))
        for field, value in table.items():
            if field not in kind.__dataclass_fields__:
                raise unknown(f"field of {what}:", field, kind.__dataclass_fields__)
            if not isinstance(value, str):
                raise UserError(f"'{field}' of {what} must be text; got {value!r:.60}")
        if missing := next((field for field in needed if not table.get(field, "").strip()), ""):
            raise UserError(f"{what} has no '{missing}', which is needed here; add it")
        found.append(table)
    return found
