"""What there is to know about each algorithm, drawn from its own file, so that it cannot say anything else."""

import ast
import dataclasses
import inspect
import textwrap
from typing import NamedTuple

from posttrain.algorithms import ALGORITHMS, COMMANDS, get
from posttrain.algorithms.algorithm import OnlineAlgorithm, PreferenceAlgorithm, UnpairedAlgorithm

DATA = {"online": "gym:chain_sum", "preference": "pairs.jsonl"}  # an example of what each family learns from


class Row(NamedTuple):
    """One line of `posttrain algorithms`."""

    name: str
    family: str
    paper: str  # arXiv identifier, or author and year
    needs: tuple[str, ...]  # beside the policy and a reward or feedback, with the default knobs


class Knob(NamedTuple):
    """One field of an algorithm's dataclass: its name, its published default, and what it does."""

    name: str
    default: object
    help: str


def describe(name: str) -> Row:
    """Summarise one algorithm in a row; raises `UserError` for an unknown name.

    Example:
        >>> describe("grpo")
        Row(name='grpo', family='online', paper='2402.03300', needs=('groups', 'reference policy'))
    """
    algorithm = get(name)()
    needs = (
        ("pairs", isinstance(algorithm, PreferenceAlgorithm)),
        ("good and bad responses", isinstance(algorithm, UnpairedAlgorithm)),
        ("groups", isinstance(algorithm, OnlineAlgorithm) and algorithm.least_group > 1),
        ("greedy completions", isinstance(algorithm, OnlineAlgorithm) and algorithm.needs_greedy),
        ("reference policy", algorithm.needs_reference),
    )
    return Row(name, algorithm.family, algorithm.paper, tuple(need for need, there in needs if there))


def rows() -> list[Row]:
    """Describe every registered algorithm, by name."""
    return [describe(name) for name in sorted(ALGORITHMS)]


def knobs(algorithm: type) -> list[Knob]:
    """List the fields of an algorithm's dataclass, each with its default and the docstring under it.

    Inherited fields are read from the class that declares them.
    """
    texts: dict[str, str] = {}
    for owner in reversed(algorithm.__mro__):
        if dataclasses.is_dataclass(owner):
            texts |= _field_docstrings(owner)
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
    lines += ["", "Run it:", "", f"    {command}", ""]
    return "\n".join(lines)


def flag(knob: str) -> str:
    """Name a knob as the command line does.

    Example:
        >>> flag("kl_coefficient")
        '--kl-coefficient'
    """
    return "--" + knob.replace("_", "-")


def _field_docstrings(owner: type) -> dict[str, str]:
    """Read the string under each annotated field of a class from its source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            found[statement.target.id] = " ".join(str(following.value.value).split())
    return found
