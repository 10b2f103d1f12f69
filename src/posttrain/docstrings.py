"""Attribute docstrings of dataclasses."""

import ast
import contextlib
import dataclasses
import inspect
import textwrap
from functools import cache


def field_docstrings(form: type) -> dict[str, str]:
    """The text under each field of a dataclass, on one line; an inherited one is of the class that declares it.

    A field without a text is left out, and all fields of a class that was made without source.
    """
    found: dict[str, str] = dict(getattr(form, "TEXTS", {}))  # of a form that was made without source
    for owner in reversed(form.__mro__):
        if dataclasses.is_dataclass(owner) and "__annotations__" in vars(owner):
            with contextlib.suppress(OSError):
                found |= _own(owner)
    return found


@cache
def _own(owner: type) -> dict[str, str]:
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
