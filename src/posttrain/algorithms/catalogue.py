"""What there is to know about each algorithm, drawn from its own file, so that it cannot say anything else."""

import dataclasses
import inspect
import textwrap
from typing import NamedTuple

from posttrain.algorithms import ALGORITHMS, COMMANDS, get
from posttrain.algorithms.algorithm import OnlineAlgorithm, PreferenceAlgorithm, UnpairedAlgorithm
from posttrain.algorithms.inputs import (
    KINDS,
    PretrainingNLL,
    ReferenceDivergence,
    ReferenceLogprobs,
    TeacherLogprobs,
    declared,
)
from posttrain.docstrings import field_docstrings

DATA = {"online": "gym:chain_sum", "preference": "pairs.jsonl"}  # an example of what each family learns from

NAMED = ((TeacherLogprobs, "teacher", "OWNER/NAME"), (PretrainingNLL, "pretraining_dataset", "texts.jsonl"))
"""Needs that an option of the command names, with an example."""


class Row(NamedTuple):
    """One line of `posttrain algorithms`."""

    name: str
    family: str
    paper: str  # arXiv identifier, or author and year
    needs: tuple[str, ...]  # beside the policy, with the default knobs
    models: int  # networks in memory: all weights trained; with an adapter, reference and trunk are the policy's own
    forwards: int  # passes over the batch in a step of one update, beside sampling; one of them goes back as well


class Knob(NamedTuple):
    """One field of an algorithm's dataclass: its name, its published default, and what it does."""

    name: str
    default: object
    help: str


def describe(name: str) -> Row:
    """Summarise one algorithm in a row; raises `UserError` for an unknown name.

    Example:
        >>> describe("grpo")[3:]
        (('reward', 'groups', 'reference'), 2, 2)
    """
    algorithm = get(name)()
    online = isinstance(algorithm, OnlineAlgorithm)
    needs = (
        ("reward", online),
        ("pairs", isinstance(algorithm, PreferenceAlgorithm)),
        ("good and bad responses", isinstance(algorithm, UnpairedAlgorithm)),
        ("groups", online and algorithm.least_group > 1),
        *((kind.title, declared(algorithm, kind) is not None) for kind in KINDS),
    )
    forwards = 1 + sum(need.passes for need in algorithm.inputs)
    if isinstance(algorithm, UnpairedAlgorithm):
        forwards *= 2  # responses to other prompts, which say how far the policy has moved
    there = tuple(need for need, here in needs if here)
    # of pairs nothing but logprobs of a reference may be needed, and those are taken before training
    remembered = isinstance(algorithm, PreferenceAlgorithm) and declared(algorithm, ReferenceDivergence) is None
    models = 1 + (declared(algorithm, ReferenceLogprobs) is not None and not remembered)
    models += declared(algorithm, TeacherLogprobs) is not None
    return Row(name, algorithm.family, algorithm.paper, there, models, forwards)


def rows() -> list[Row]:
    """Describe every registered algorithm, by name."""
    return [describe(name) for name in sorted(ALGORITHMS)]


def knobs(algorithm: type) -> list[Knob]:
    """List the fields of an algorithm's dataclass, each with its default and the docstring under it.

    Inherited fields are read from the class that declares them.
    """
    texts = field_docstrings(algorithm)
    return [Knob(field.name, field.default, texts.get(field.name, "")) for field in dataclasses.fields(algorithm)]


def explain(name: str) -> str:
    """Say everything about one algorithm: its file's docstring, its knobs with their defaults, the command.

    Raises `UserError` for an unknown name.
    """
    algorithm = type(get(name)())
    text = inspect.getdoc(inspect.getmodule(algorithm)) or ""
    lines = [text, "", "Knobs and their defaults:", ""]
    for knob in knobs(algorithm):
        lines.append(f"    {flag(knob.name)} {knob.default}")
        lines.extend(textwrap.wrap(knob.help, 110, initial_indent=" " * 8, subsequent_indent=" " * 8))
    command = f"posttrain {COMMANDS[algorithm.family]} --algorithm {name} --dataset {DATA[algorithm.family]}"
    command += "".join(f" {flag(option)} {example}" for kind, option, example in NAMED if declared(get(name)(), kind))
    lines += ["", "Run it:", "", f"    {command}"]
    if isinstance(get(name)(), PreferenceAlgorithm):
        lines += ["", "or on pairs of the policy's own completions:", ""]
        lines += [f"    posttrain online-preference --algorithm {name} --dataset {DATA['online']}"]
    lines += [""]
    return "\n".join(lines)


def page() -> str:
    """What docs/algorithms.md says: a table of all, and what `explain` says of each."""
    head = ("algorithm", "run by", "paper", "needs", "models in memory", "passes a step")
    lines = ["# The algorithms", "", *INTRODUCTION, "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows():
        arxiv = row.paper[:1].isdigit()
        paper = f"[{row.paper}](https://arxiv.org/abs/{row.paper})" if arxiv else row.paper
        cells = (f"[{row.name}](#{anchor(row.name)})", f"`posttrain {COMMANDS[row.family]}`", paper)
        lines.append("| " + " | ".join([*cells, ", ".join(row.needs), str(row.models), str(row.forwards)]) + " |")
    for row in rows():
        lines += [
            "",
            f'<a id="{anchor(row.name)}"></a>',
            "",
            f"## {row.name}",
            "",
            "```text",
            explain(row.name).rstrip(),
            "```",
        ]
    return "\n".join(lines) + "\n"


INTRODUCTION = (
    "Written by `python -m tests.examples.test_algorithms_page` from the files in `src/posttrain/algorithms/`: change "
    "those. `posttrain algorithms` prints the table, `posttrain explain NAME` one of the texts, and `posttrain advise` "
    "says which of them fits what you have.",
    "",
    "*Models in memory* is for all weights trained, with the default knobs. With `--lora-rank` every algorithm holds "
    "one network: the reference is the policy with its adapter off, and the critic a row on its trunk (`--critic own` "
    "holds a second); a teacher is a model of its own. What a reference says of pairs is read before training, so that "
    "it is not held, but by `online-preference` it is. *Passes a step* counts passes over the batch beside sampling: "
    "those of reference and teacher, the critic's values, and the one that is learned from, which goes back as well, "
    "once for each update.",
)


def anchor(name: str) -> str:
    """What a link to an algorithm's section says."""
    return name.replace("+", "-plus")


def flag(knob: str) -> str:
    """Name a knob as the command line does.

    Example:
        >>> flag("kl_coefficient")
        '--kl-coefficient'
    """
    return "--" + knob.replace("_", "-")
