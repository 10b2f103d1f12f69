"""Reference documentation of each algorithm, generated from its own file."""

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

DATA = {"online": "gym:chain_sum", "preference": "pairs.jsonl"}  # an example dataset for each family

NAMED = ((TeacherLogprobs, "teacher", "OWNER/NAME"), (PretrainingNLL, "pretraining_dataset", "texts.jsonl"))
"""Inputs that a command-line option provides, with an example value."""


class CatalogueEntry(NamedTuple):
    """One line of `posttrain algorithms`."""

    name: str
    family: str
    paper: str  # arXiv identifier, or author and year
    needs: tuple[str, ...]  # other than the policy, with default hyperparameters
    models: int  # networks in memory: all weights trained; with an adapter, reference and trunk are the policy's own
    forwards: int  # forward passes over the batch per update, sampling excluded; one has a backward pass


class Knob(NamedTuple):
    """One hyperparameter: the dataclass field's name, its default as published, and its help text."""

    name: str
    default: object
    help: str


def describe(name: str) -> CatalogueEntry:
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
        forwards *= 2  # responses to other prompts, for the KL estimate
    there = tuple(need for need, here in needs if here)
    # a pairwise algorithm may need only reference logprobs, which are precomputed before training
    remembered = isinstance(algorithm, PreferenceAlgorithm) and declared(algorithm, ReferenceDivergence) is None
    models = 1 + (declared(algorithm, ReferenceLogprobs) is not None and not remembered)
    models += declared(algorithm, TeacherLogprobs) is not None
    return CatalogueEntry(name, algorithm.family, algorithm.paper, there, models, forwards)


def rows() -> list[CatalogueEntry]:
    """Describe every registered algorithm, by name."""
    return [describe(name) for name in sorted(ALGORITHMS)]


def knobs(algorithm: type) -> list[Knob]:
    """List the fields of an algorithm's dataclass, each with its default and the docstring under it.

    Inherited fields are read from the class that declares them.
    """
    texts = field_docstrings(algorithm)
    return [Knob(field.name, field.default, texts.get(field.name, "")) for field in dataclasses.fields(algorithm)]


def explain(name: str) -> str:
    """Document one algorithm: its module docstring, its hyperparameters with their defaults, the command.

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
    """Render docs/algorithms.md: a table of all algorithms, then `explain` of each."""
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
    "recommends one for your data and hardware.",
    "",
    "*Models in memory* is for full fine-tuning with default hyperparameters. With `--lora-rank` every algorithm holds "
    "one network: the reference is the policy with its adapter disabled, and the critic a value head on its trunk "
    "(`--critic own` holds a second network); a teacher is always a separate model. Reference logprobs of pairs are "
    "precomputed before training, so the reference is not held, except by `online-preference`. *Passes a step* counts "
    "forward passes over the batch, sampling excluded: of reference, teacher and critic, and of the policy, which has "
    "a backward pass too, once for each update.",
)


def anchor(name: str) -> str:
    """The anchor of an algorithm's section."""
    return name.replace("+", "-plus")


def flag(knob: str) -> str:
    """The command-line option of a hyperparameter.

    Example:
        >>> flag("kl_coefficient")
        '--kl-coefficient'
    """
    return "--" + knob.replace("_", "-")
