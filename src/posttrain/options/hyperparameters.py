"""What stands in the source of a dataclass: the texts of its fields, and an algorithm's hyperparameters as a form.

An algorithm is not imported for that, since its module imports torch.
"""

import ast
import contextlib
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from posttrain.errors import UserError, unknown

_HERE = Path(__file__).resolve().parents[1] / "algorithms"
_PACKAGE = "posttrain.algorithms."
_TYPES: Mapping[str, Any] = {"float": float, "int": int, "bool": bool, "str": str}
_FORMS = {"online": ("rl", "RL"), "preference": ("preference", "Preference"), "supervised": ("sft", "SFT")}
"""By family: the command and the form that run its algorithms."""


def field_docstrings(form: type) -> dict[str, str]:
    """The text under each field of a dataclass, on one line; an inherited one is of the class that declares it.

    A field without a text is left out, and all fields of a class that was made without source.
    """
    found: dict[str, str] = dict(getattr(form, "TEXTS", {}))  # of a form that was made without source
    for owner in reversed(form.__mro__):
        if dataclasses.is_dataclass(owner) and "__annotations__" in vars(owner):
            with contextlib.suppress(OSError):
                found |= _texts_of(owner)
    return found


@cache
def _texts_of(owner: type) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    assert isinstance(tree, ast.ClassDef)
    return _texts(tree)


def _texts(declaration: ast.ClassDef) -> dict[str, str]:
    """The text under each annotated field of a class."""
    return {
        ast.unparse(node.target): " ".join(str(below.value.value).split())
        for node, below in pairwise(declaration.body)
        if isinstance(node, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    }


def hyperparameters(name: str, family: str) -> type:
    """A dataclass of the hyperparameters of an algorithm, a name of the family or FILE.py:Class, with the text of each.

    Raises `UserError` where there is no such algorithm, file or class.
    """
    file, owner = _home(name, family)
    fields: dict[str, tuple[str, Any, Any]] = {}
    texts: dict[str, str] = {}
    for declaration in _declarations(file, owner):
        for node in declaration.body:
            if isinstance(node, ast.AnnAssign) and node.value and "ClassVar" not in ast.unparse(node.annotation):
                field = ast.unparse(node.target)
                fields[field] = field, _kind(node.annotation), ast.literal_eval(node.value)
        texts |= _texts(declaration)
    said = {
        "__doc__": f"Hyperparameters of {name}.",
        "TEXTS": {field: texts[field] for field in fields if field in texts},
    }
    return dataclasses.make_dataclass(owner, fields.values(), namespace=said, frozen=True)


def is_file(name: str) -> bool:
    """Whether an algorithm is one of the user's own, FILE.py:Class."""
    return ".py:" in name


def _home(name: str, family: str) -> tuple[Path, str]:
    if is_file(name):
        path, _, owner = name.rpartition(":")
        file = Path(path).expanduser()
        if not file.is_file():
            raise UserError(f"`algorithm`: there is no file '{path}' (looked in {Path.cwd()})")
        return file, owner
    tree = _parsed(_HERE / "__init__.py")
    families = {one: dict(_registered(tree, one.upper())) for one in _FORMS}
    if name in families[family]:
        owner = families[family][name]
        return _imports(tree)[owner], owner
    for other, (command, form) in _FORMS.items():
        if name in families[other]:
            raise UserError(
                f'{name} is an algorithm of another command; type: posttrain {command} `algorithm="{name}"`, or in '
                f"Python {form}(algorithm='{name}')"
            )
    raise unknown("algorithm", name, families[family])


def _registered(tree: ast.Module, family: str) -> Iterator[tuple[str, str]]:
    """The names in a table of `algorithms/__init__.py`, and their classes."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == family and isinstance(node.value, ast.Dict):
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                if isinstance(key, ast.Constant):
                    yield str(key.value), ast.unparse(value)


def _imports(tree: ast.Module) -> dict[str, Path]:
    """The file of each class that is imported from the room of algorithms."""
    return {
        alias.asname or alias.name: _HERE / f"{node.module.removeprefix(_PACKAGE)}.py"
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(_PACKAGE)
        for alias in node.names
    }


def _modules(tree: ast.Module) -> list[str]:
    """The names under which posttrain is imported."""
    names = (alias for node in tree.body if isinstance(node, ast.Import) for alias in node.names)
    return [alias.asname or alias.name for alias in names if alias.name in ("posttrain", _PACKAGE[:-1])]


def _declarations(file: Path, owner: str) -> Iterator[ast.ClassDef]:
    """The dataclasses that declare the fields of one, those of its bases first."""
    tree = _parsed(file)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if owner not in classes:
        raise UserError(
            f"`algorithm`: '{file}' has no class '{owner}'; it has: {', '.join(sorted(classes)) or 'no class'}"
        )
    homes = _imports(tree) | dict.fromkeys(classes, file)
    packaged = _imports(_parsed(_HERE / "__init__.py"))  # as `import posttrain as pt` has them
    homes |= {f"{name}.{kind}": packaged[kind] for name in _modules(tree) for kind in packaged}
    for base in map(ast.unparse, reversed(classes[owner].bases)):
        if base in homes:
            yield from _declarations(homes[base], base.rpartition(".")[2])
    if any("dataclass" in ast.unparse(one) for one in classes[owner].decorator_list):
        yield classes[owner]


def _kind(annotation: ast.expr) -> Any:
    """The type that an annotation names: a plain one, a `Literal`, or one of several."""
    if isinstance(annotation, ast.BinOp):
        return _kind(annotation.left) | _kind(annotation.right)
    if isinstance(annotation, ast.Constant) and annotation.value is None:
        return type(None)
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        choices = ast.literal_eval(annotation.slice)
        return Literal[choices if isinstance(choices, tuple) else (choices,)]
    if (name := ast.unparse(annotation)) in _TYPES:
        return _TYPES[name]
    raise UserError(f"a hyperparameter of an algorithm is a number, text, true or false; got the type {name}")


@cache
def _parsed(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise UserError(f"`algorithm`: '{file}' cannot be read as Python: {error}") from error
