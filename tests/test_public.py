"""The public face, `import posttrain as pt`, is frozen in public.txt. Run as a program, this writes it anew.

Later versions add names, options and methods; one that goes is a line in CHANGELOG.md.
"""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import pytest

import posttrain
from posttrain.options.option import Form, options_of

ROOT = Path(__file__).parents[1]
FACE = Path(__file__).parent / "public.txt"
SOURCE = ROOT / "src" / "posttrain" / "__init__.py"


def face() -> str:
    """Every public name and what belongs to it, a line each; a class that others inherit is described once."""
    values = {name: getattr(posttrain, name) for name in posttrain.__all__}
    kinds = [value for value in values.values() if isinstance(value, type) and not issubclass(value, Form)]
    inherited = {base for kind in kinds for base in kind.__mro__ if ours(base)} - {*kinds}
    values |= {base.__name__: base for base in sorted(inherited, key=lambda base: base.__name__)}
    return "".join(f"{line}\n" for name, value in values.items() for line in lines_of(name, value))


def lines_of(name: str, value: Any) -> Iterator[str]:
    """The lines of one name."""
    if isinstance(value, types.ModuleType):
        yield name
        public = getattr(value, "__all__", [key for key in vars(value) if not key.startswith("_")])
        yield from (line for key in sorted(public) for line in lines_of(f"{name}.{key}", getattr(value, key)))
    elif not isinstance(value, type):
        yield f"{name}{signature(value)}"
        yield from (f"{name} as ({typed(asked)}) -> {typed(result)}" for asked, result in overloads(value))
    elif issubclass(value, Form):
        yield f"{name}: form"
        options = sorted(options_of(value).values(), key=lambda option: option.name)
        yield from (f"{name}.{option.name}: {typed(option.type)} = {option.default!r}" for option in options)
    else:
        bases = ", ".join(base.__name__ for base in value.__bases__ if ours(base))
        yield f"{name}{signature(value) if is_dataclass(value) else ''}{f': {bases}' if bases else ''}"
        yield from (f"{name}.{line}" for key in sorted(vars(value)) if (line := member(value, key)))


def overloads(function: Any) -> list[tuple[str, str]]:
    """Parameters and result of each overload, from the source: wrappers of the tests hide them from `get_overloads`."""
    tree = ast.parse(inspect.getsource(inspect.getmodule(function) or function))
    named = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function.__name__]
    told = [node for node in named if any(ast.unparse(one) == "overload" for one in node.decorator_list)]
    return [(ast.unparse(node.args), ast.unparse(node.returns or node)) for node in told]


def member(kind: type, key: str) -> str:
    """A public method or property of a class, unless it is as in one that the class inherits."""
    told = vars(kind).get(key)
    found = told.__func__ if isinstance(told, classmethod | staticmethod) else told
    if key.startswith("_"):
        line = ""
    elif isinstance(found, property | cached_property):
        getter = found.fget if isinstance(found, property) else found.func
        line = f"{key}: {typed(inspect.signature(getter).return_annotation)}"  # pyright: ignore[reportArgumentType]
    else:
        line = f"{key}{signature(found)}" if inspect.isfunction(found) else ""
    return "" if line in [member(base, key) for base in kind.__mro__[1:]] else line


def ours(kind: type) -> bool:
    """Whether a class is one of posttrain's."""
    return kind.__module__.startswith("posttrain")


def signature(function: Any) -> str:
    """Parameters, annotations and defaults, whatever the names of modules and the places of objects are."""
    found = inspect.signature(function)
    shown: list[str] = []
    for each in found.parameters.values():
        if each.kind is each.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        annotation = "" if each.annotation is each.empty else f": {typed(each.annotation)}"
        default = "..." if "factory" in repr(each.default) else repr(each.default)
        shown.append(f"{stars}{each.name}{annotation}{'' if each.default is each.empty else f' = {default}'}")
    returns = "" if found.return_annotation is inspect.Signature.empty else f" -> {typed(found.return_annotation)}"
    return f"({', '.join(shown)}){returns}"


def typed(annotation: Any) -> str:
    """An annotation without the names of modules."""
    named = isinstance(annotation, type) and not get_args(annotation)
    said = annotation if isinstance(annotation, str) else annotation.__qualname__ if named else repr(annotation)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)", "", said).replace("'", "").replace("~", "")


def declared() -> dict[str, tuple[str, str]]:
    """What type checkers see: each name, its module and its name there."""
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_the_face_is_as_it_was():
    assert face() == FACE.read_text(encoding="utf-8"), "type: python -m tests.test_public, and tell CHANGELOG.md"


def test_a_name_that_is_gone_since_the_last_commit_is_in_the_changelog():
    shown = subprocess.run(["git", "show", "HEAD:tests/public.txt"], cwd=ROOT, capture_output=True, text=True)
    if shown.returncode:
        pytest.skip("no commit has the face")
    assert not unsaid(shown.stdout, face(), (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))


def test_a_removal_is_found():
    before = "run(form)\nRL: a form\nRL.steps: int = 1\nSFT: a form\nSFT.lr: float = 1\n"
    assert unsaid(before, "run(form)\nRL: a form\n", "`SFT` is gone, and `RL.step`") == ["RL.steps"]
    assert unsaid(before, before.replace("1", "2") + "load(run)\n", "") == []
    assert unsaid(before, "", "") == ["run", "RL", "SFT"]


def unsaid(before: str, now: str, changelog: str) -> list[str]:
    """The names that are gone, unless the changelog has them in backticks; of what is gone whole its own name alone."""
    then, still = (dict.fromkeys(re.findall(r"^[\w.]+", text, re.MULTILINE)) for text in (before, now))
    gone = [name for name in then if name not in still]
    whole = [name for name in gone if name.rpartition(".")[0] not in gone]
    return [name for name in whole if f"`{name}`" not in changelog]


def test_type_checkers_see_what_is_loaded():
    assert declared() == posttrain._HOME  # pyright: ignore
    for name, (module, own) in declared().items():
        home = importlib.import_module(module)
        assert getattr(posttrain, name) is getattr(home, own, None) or name == "testing", name


def test_the_import_is_light():
    code = (
        "import time; began = time.process_time(); import posttrain, sys; used = time.process_time() - began\n"
        "print(used, [name for name in ('torch', 'numpy', 'transformers', 'datasets') if name in sys.modules])\n"
        "posttrain.RL, posttrain.Score, posttrain.reward_function, posttrain.UserError\n"
        "print([name for name in ('torch', 'transformers', 'datasets') if name in sys.modules])"
    )
    told = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=told)
    first, second = done.stdout.splitlines()
    used, _, modules = first.partition(" ")
    assert (modules, second) == ("[]", "[]")
    assert float(used) < 0.3


def test_an_unknown_name_is_told_the_nearest():
    with pytest.raises(AttributeError, match="did you mean 'GRPO'"):
        posttrain.Grpo  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    assert set(dir(posttrain)) == set(posttrain.__all__)


if __name__ == "__main__":
    FACE.write_text(face(), encoding="utf-8")
