"""The hyperparameters of an algorithm as a form, read from its source: its module imports torch."""

import ast
import dataclasses
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from posttrain.errors import UserError, unknown

_HERE = Path(__file__).resolve().parents[1] / "algorithms"
_PACKAGE = "posttrain.algorithms."
_TYPES: Mapping[str, Any] = {"float": float, "int": int, "bool": bool, "str": str}


class _Field(NamedTuple):
    kind: Any
    default: Any
    text: str


def hyperparameters(name: str, family: str) -> type:
    """A dataclass of an algorithm's hyperparameters, with the text of each.

    Args:
        name: one of the family, or FILE.py:Class.
        family: online or preference.

    Raises:
        UserError: there is no such algorithm, file or class.
    """
    file, owner = _home(name, family)
    fields = dict(_declared(file, owner))
    made = dataclasses.make_dataclass(
        owner, [(field, one.kind, one.default) for field, one in fields.items()], frozen=True
    )
    made.__doc__ = f"Hyperparameters of {name}."
    vars(made)["__annotations__"].update({field: one.kind for field, one in fields.items()})
    made.TEXTS = {field: one.text for field, one in fields.items()}  # pyright: ignore[reportAttributeAccessIssue]
    return made


def is_file(name: str) -> bool:
    """Whether an algorithm is one of the user's own, FILE.py:Class."""
    return ".py:" in name


def _home(name: str, family: str) -> tuple[Path, str]:
    """The file and the class of an algorithm."""
    if is_file(name):
        path, _, owner = name.rpartition(":")
        file = Path(path).expanduser()
        if not file.is_file():
            raise UserError(f"`algorithm`: there is no file '{path}' (looked in {Path.cwd()})")
        return file, owner
    tree = _parsed(_HERE / "__init__.py")
    families = {one: dict(_registered(tree, one)) for one in ("ONLINE", "PREFERENCE")}
    here = families[family.upper()]
    if name not in here:
        other = next((one.lower() for one, names in families.items() if name in names), "")
        if other:
            command, form = {"online": ("rl", "RL"), "preference": ("preference", "Preference")}[other]
            raise UserError(
                f'{name} is an algorithm of another command; type: posttrain {command} `algorithm="{name}"`, or in '
                f"Python {form}(algorithm='{name}')"
            )
        raise unknown("algorithm", name, here)
    return _imports(tree)[here[name]], here[name]


def _registered(tree: ast.Module, family: str) -> Iterator[tuple[str, str]]:
    """The names in a table of `algorithms/__init__.py`, and their classes."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == family and isinstance(node.value, ast.Dict):
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                if isinstance(key, ast.Constant):
                    yield str(key.value), ast.unparse(value)


def _imports(tree: ast.Module) -> dict[str, Path]:
    """The file of each class that is imported from the room of algorithms."""
    found = (node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module)
    return {
        alias.asname or alias.name: _HERE / f"{str(node.module).removeprefix(_PACKAGE)}.py"
        for node in found
        if str(node.module).startswith(_PACKAGE)
        for alias in node.names
    }


def _declared(file: Path, owner: str) -> Iterator[tuple[str, _Field]]:
    """The fields of a dataclass, those of its bases first."""
    tree = _parsed(file)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if owner not in classes:
        raise UserError(
            f"`algorithm`: '{file}' has no class '{owner}'; it has: {', '.join(sorted(classes)) or 'no class'}"
        )
    imported = _imports(tree)
    for base in map(ast.unparse, reversed(classes[owner].bases)):
        if base in classes:
            yield from _declared(file, base)
        elif base in imported:
            yield from _declared(imported[base], base)
    if any("dataclass" in ast.unparse(one) for one in classes[owner].decorator_list):
        yield from _own(classes[owner])


def _own(declaration: ast.ClassDef) -> Iterator[tuple[str, _Field]]:
    body = declaration.body
    for node, below in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or node.value is None or "ClassVar" in ast.unparse(node.annotation):
            continue
        said = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
        default = ast.literal_eval(node.value)
        yield ast.unparse(node.target), _Field(_kind(node.annotation), default, " ".join(str(said).split()))


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
