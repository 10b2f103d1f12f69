"""docs/reference.md is made from the public face. Run as a program, this writes it anew."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import posttrain
from posttrain import verbs
from posttrain.algorithms import ALGORITHMS
from posttrain.options import kinds
from posttrain.options.hyperparameters import field_docstrings
from posttrain.options.option import Form, options_of
from tests.examples.test_algorithms_page import anchor
from tests.test_public import member, ours, overloads, signature, typed

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"
INTRODUCTION = """# Reference of `import posttrain as pt`

Written by `python -m tests.examples.test_reference_page` from the source: change that. `tests/public.txt` freezes the
names and signatures. The options of a form are those of the command of the same work, with `_` for `-`.
"""


def page() -> str:
    """Verbs, forms, results, objects, algorithms, kits."""
    values = {name: getattr(posttrain, name) for name in posttrain.__all__}
    forms = {name: value for name, value in values.items() if isinstance(value, type) and issubclass(value, Form)}
    algorithms = {value: name for name, value in ALGORITHMS.items()}
    others = [(name, value) for name, value in values.items() if isinstance(value, type) and name not in forms]
    lines = [INTRODUCTION, "## Verbs"]
    for name in ("run", "resume", "load", "split", "reward_function"):
        lines += ["", f"### {name}", "", code(f"{name}{signature(values[name])}\n\n{inspect.getdoc(values[name])}")]
    lines += ["", "## Forms and their results", "", "| form | result of `run` |", "|---|---|"]
    results = [(asked.partition(",")[0].partition(": ")[2], typed(result)) for asked, result in overloads(verbs.run)]
    for name, form in forms.items():
        result = next(result for asked, result in results if issubclass(form, getattr(verbs, asked)))
        if result != "Any":
            links = " or ".join(f"[{kind}](#{kind.lower()})" for kind in result.split(" | "))
            lines.append(f"| [{name}](#{name.lower()}) | {links} |")
    lines += ["", "What an option of these kinds may be, in Python:", "", "| kind | |", "|---|---|"]
    lines += [f"| {name} | {text} |" for name, text in texts_of_kinds()]
    for name, form in forms.items():
        inherited = [f"[{base.__name__}](#{base.__name__.lower()})" for base in form.__mro__[1:] if own_options(base)]
        lines += ["", f"### {name}", "", first_line(form), ""]
        lines += [*table(form), *(["", f"Also the options of {', '.join(inherited)}."] if inherited else [])]
    lines += ["", "## Options that several forms have"]
    bases = {base.__name__: base for form in forms.values() for base in form.__mro__[1:] if base not in forms.values()}
    for name, base in sorted(bases.items()):
        if own_options(base):
            lines += ["", f"### {name}", "", first_line(base), "", *table(base)]
    lines += ["", "## Results"]
    for name, kind in sorted(result_classes().items()):
        lines += ["", f"### {name}", "", first_line(kind), "", *attributes(kind)]
    lines += ["", "## Objects"]
    for name, kind in others:
        if kind not in algorithms:
            lines += [
                "",
                f"### {name}",
                "",
                code(f"{name}{signature(kind) if is_dataclass(kind) else ''}\n\n{inspect.getdoc(kind)}"),
            ]
            lines += ["", *attributes(kind)] if any(members(kind)) else []
    lines += [
        "",
        "## Algorithms",
        "",
        "With their hyperparameters; [docs/algorithms.md](algorithms.md) has their equations.",
        "",
    ]
    for name, kind in others:
        if said := algorithms.get(kind):
            bases = [base for base in kind.__mro__[1:] if own_options(base)]
            inherited = [f"[{base.__name__}](#{base.__name__.lower()})" for base in bases if base in algorithms][:1]
            hidden = [base for base in bases if base not in algorithms]
            beside = f", and those of {', '.join(inherited)}" if inherited else ""
            lines += [
                "",
                f"### {name}",
                "",
                f"[{said}](algorithms.md#{anchor(said)}){beside}.",
                "",
                *table(kind, *hidden),
            ]
    lines += ["", "## Conformance kits: `pt.testing`"]
    for name in posttrain.testing.__all__:
        value = getattr(posttrain.testing, name)
        shown = f"{name}{'' if isinstance(value, type) else signature(value)}"
        lines += ["", f"### testing.{name}", "", code(f"{shown}\n\n{inspect.getdoc(value)}")]
    return "\n".join(lines) + "\n"


def code(text: str) -> str:
    """A block of text as it is."""
    return f"```text\n{text}\n```"


def first_line(value: Any) -> str:
    """The first sentence of a docstring."""
    return (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")


def own_options(form: type) -> list[str]:
    """The options that a form itself declares, or gives another default."""
    known = options_of(form) if is_dataclass(form) else {}
    return [name for name in vars(form).get("__annotations__", {}) if name in known]


def table(form: type, *hidden: type) -> Iterator[str]:
    """The form's own options, and those of bases that have no heading."""
    texts, options = field_docstrings(form), options_of(form)
    names = dict.fromkeys(name for one in (form, *hidden) for name in own_options(one))
    if not names:
        return
    yield "| option | type | default | range | |"
    yield "|---|---|---|---|---|"
    for name in names:
        option = options[name]
        kind = option.kind or f"`{typed(option.type)}`"
        cells = (f"`{name}`", kind, f"`{option.default!r}`", str(option.range or ""), texts.get(name, ""))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def members(kind: type) -> Iterator[tuple[str, str]]:
    """Methods and properties of a class and its bases, each with the first sentence of its text."""
    for key in dict.fromkeys(key for base in kind.__mro__ if ours(base) for key in vars(base)):
        owner = next(base for base in kind.__mro__ if key in vars(base))
        if line := member(owner, key):
            yield line, first_line(vars(owner)[key])


def attributes(kind: type) -> Iterator[str]:
    """Fields, properties and methods of a class; those of `RunResult` stand there."""
    inherited = posttrain.RunResult if posttrain.RunResult in kind.__mro__[1:] else None
    if inherited:
        yield "What [RunResult](#runresult) has, and:\n"
    for field in fields(kind) if is_dataclass(kind) else ():
        if field.name not in getattr(inherited, "__annotations__", {}):
            yield f"- `{field.name}: {typed(field.type)}`"
    shared = [*members(inherited)] if inherited else []
    yield from (f"- `{line}`: {text}" for line, text in members(kind) if (line, text) not in shared)


def texts_of_kinds() -> Iterator[tuple[str, str]]:
    """The kinds of options that name something, and what they may be."""
    body = ast.parse(inspect.getsource(kinds)).body
    for statement, text in pairwise(body):
        if isinstance(statement, ast.Assign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            name = ast.unparse(statement.value).rpartition("Kind('")[2].partition("'")[0]
            yield name, str(text.value.value)


def result_classes() -> dict[str, type]:
    """The classes of results, which the verbs name for type checkers alone."""
    tree = ast.parse(inspect.getsource(verbs))
    named = [node for part in tree.body if isinstance(part, ast.If) for node in part.body]
    homes = {alias.name: node.module for node in named if isinstance(node, ast.ImportFrom) for alias in node.names}
    return {
        name: getattr(importlib.import_module(str(home)), name)
        for name, home in homes.items()
        if name.endswith("Result")
    }


def test_the_page_in_docs_is_current():
    said = PAGE.read_text(encoding="utf-8")
    assert said == page(), "type: python -m tests.examples.test_reference_page"
    headings = {line.removeprefix("### ").lower() for line in said.splitlines() if line.startswith("### ")}
    assert set(re.findall(r"\]\(#([^)]*)\)", said)) <= headings


def test_every_public_name_is_on_the_page():
    said = page()
    assert [
        name for name in posttrain.__all__ if not re.search(rf"^### {name}$|^\| \[{name}\]|\.{name}`$", said, re.M)
    ] == []


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
