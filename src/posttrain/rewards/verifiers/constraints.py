"""Rewards of constraints that a task states: how many of them the response follows."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Literal, cast

from posttrain.errors import RewardError, UserError, unknown
from posttrain.rewards.reward import Verifier
from posttrain.rewards.verifiers.constraint_kinds import KINDS, fits_schema, matches
from posttrain.rewards.verifiers.extraction import NOT_FOUND, AnswerIn, extract
from posttrain.types import Episode, Score, Task
from posttrain.user_code import fitted

Checks = list[tuple[str, Callable[[str], bool]]]  # what is asked, and whether a text follows it


@dataclass(frozen=True)
class ConstraintsVerifier(Verifier):
    """1 if the response follows every constraint of its task, else 0; with `partial_credit` the share of them.

    A task's column `constraints` is a list of kinds (`KINDS`), each a name or a table of `kind` and its arguments:

        ["punctuation:no_comma", {"kind": "length_constraints:number_words", "num_words": 50, "relation": "at least"}]

    IFEval's own columns, `instruction_id_list` and `kwargs`, are read in its place. The mean of the value is IFEval's
    accuracy by prompt, with `partial_credit` of each prompt's share (by instruction: the share of all instructions of
    the file). `loose` also accepts what follows a constraint without its first line, its last line, both, or its
    asterisks, as section 2.2 of the paper (arXiv 2311.07911) does. Reasoning is left out; an empty response follows
    nothing.

    Raises (while scoring):
        RewardError: a task states no constraint, one that no checker knows, or arguments that do not fit it.
        UserError: a constraint needs a package of the extra `constraints`.
    """

    loose: bool = False
    partial_credit: bool = False
    answer_in: AnswerIn = "outside_think"
    name: str = "constraints"
    columns = ("constraints", "instruction_id_list", "kwargs")

    def _score_one(self, episode: Episode) -> Score:
        checks = self._checks(episode.task)
        text = extract(episode.completion, self.answer_in)
        if text is None:
            return Score(0.0, explanation=NOT_FOUND[self.answer_in], unparsed=True)
        texts = _loosened(text) if self.loose else [text]
        missed = [asked for asked, follows in checks if not any(follows(one) for one in texts if one.strip())]
        share = 1 - len(missed) / len(checks)
        explanation = f"not followed: {', '.join(missed)}" if missed else ""
        return Score(share if self.partial_credit else float(not missed), explanation=explanation)

    def _checks(self, task: Task) -> Checks:
        try:
            return [_check(kind, given) for kind, given in _stated(task.metadata)]
        except UserError as error:
            raise RewardError(f"reward '{self.name}': task {task.id!r}: {error}") from error


def _stated(columns: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Kinds and arguments that a row states."""
    stated = columns.get("constraints")
    if stated is None and isinstance(columns.get("instruction_id_list"), list | tuple):
        kinds: Sequence[Any] = columns["instruction_id_list"]
        arguments: Sequence[Any] = columns.get("kwargs") or [None for _ in kinds]
        if len(arguments) != len(kinds):
            raise UserError(f"{len(kinds)} instructions have {len(arguments)} kwargs; expected one for each")
        stated = [dict[str, Any](given or {}, kind=kind) for kind, given in zip(kinds, arguments, strict=True)]
    if not isinstance(stated, list | tuple) or not stated:
        raise UserError("its column constraints must be a list of kinds of constraints")
    found: list[tuple[str, Mapping[str, Any]]] = []
    for one in cast("Sequence[object]", stated):
        table = cast("dict[str, Any]", {"kind": one} if isinstance(one, str) else one)
        if not isinstance(one, str | Mapping) or not isinstance(table.get("kind"), str):
            raise UserError(f"a constraint is {one!r}; expected the name of a kind, or a table with 'kind'")
        # tables of one column have the same keys in some files, with null where one does not apply
        found.append((table["kind"], {key: v for key, v in table.items() if key != "kind" and v is not None}))
    return found


def _check(kind: str, given: Mapping[str, Any]) -> tuple[str, Callable[[str], bool]]:
    if kind not in KINDS:
        raise unknown("constraint", kind, KINDS)
    follows = KINDS[kind]
    arguments = fitted(f"the constraint '{kind}'", follows, given, ours=("text",))
    try:
        signature(follows).bind("", **arguments)
    except TypeError as error:
        raise UserError(f"the constraint '{kind}' is {error}") from None
    check = partial(follows, **arguments)
    check("")  # what is wrong with a pattern or a schema, or not installed, is said before anything is sampled
    said = ", ".join(f"{key}={str(value)[:40]!r}" for key, value in arguments.items())
    return f"{kind}({said})" if said else kind, check


def _loosened(text: str) -> list[str]:
    """A response, and seven ways to leave parts of it out."""
    lines = text.split("\n")
    without = [lines, lines[1:], lines[:-1], lines[1:-1]]
    found = ["\n".join(some).strip() for some in without]
    return [*found, *(one.replace("*", "") for one in found)]


@dataclass(frozen=True)
class FormatVerifier(Verifier):
    """1 if the answer is in a form that the task or the argument `given` states, else 0.

    `kind` says which: `pattern`, a regular expression of the whole answer, or `json_schema`, a JSON Schema, as text, as
    a table, or the path of a file that ends in .json. Both are the names of the task's columns. A pattern that takes
    more than a second for an answer does not match.

    Raises:
        RewardError: a task without that column, where `given` is empty (while scoring).
        UserError: a file that cannot be read; a pattern or schema that is none.
    """

    kind: Literal["pattern", "json_schema"]
    given: str = ""
    answer_in: AnswerIn = "answer"
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.kind)
        object.__setattr__(self, "columns", () if self.given else (self.kind,))
        if self.kind == "json_schema" and self.given.endswith(".json"):
            try:
                object.__setattr__(self, "given", Path(self.given).read_text(encoding="utf-8"))
            except OSError as error:
                raise UserError(f"the JSON schema {self.given} cannot be read: {error.strerror}") from error

    def _score_one(self, episode: Episode) -> Score:
        wanted = self.given or episode.task.metadata.get(self.kind)
        if wanted in (None, ""):
            raise RewardError(f"reward '{self.name}' needs the column {self.kind}; task {episode.task.id!r} has none")
        fits = partial(matches, pattern=wanted) if self.kind == "pattern" else partial(fits_schema, schema=wanted)
        try:
            fits("")  # an error of the task comes first
        except UserError as error:
            raise RewardError(f"reward '{self.name}': task {episode.task.id!r}: {error}") from error
        answer = extract(episode.completion, self.answer_in)
        if answer is None:
            return Score(0.0, explanation=NOT_FOUND[self.answer_in], unparsed=True)
        shown = wanted if isinstance(wanted, str) else json.dumps(wanted)
        good = fits(answer)
        return Score(float(good), answer, "" if good else f"expected the {self.kind} {shown[:200]}")
