"""Checks the shape annotations of posttrain while tests run; `--jaxtyping-packages` in pyproject.toml names it.

Only annotations with shapes are handed to beartype. All others are the static type checker's business: at run time an
`int` is welcome where `float` is written, and a test may pass a small fake where a protocol is written.

The import hook decorates every function, and what it puts around one costs more than most functions do, at each call
and, of a nested function, at each definition. So functions without shapes are left as they were written: a third of
the time of all tests.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import jaxtyping
from beartype import beartype

_decorator: Callable[..., Callable[..., Any]] = jaxtyping.jaxtyped


def _with_shapes(*, typechecker: Callable[..., Any]) -> Callable[..., Any]:
    """In place of `jaxtyping.jaxtyped`, which the hook looks up by its name: the same, of what has shapes alone."""
    decorate = _decorator(typechecker=typechecker)

    def decorated(thing: Any) -> Any:
        hints = getattr(thing.__init__ if isinstance(thing, type) else thing, "__annotations__", {}).values()
        return decorate(thing) if any("jaxtyping" in repr(hint) for hint in hints) else thing

    return decorated


jaxtyping.jaxtyped = _with_shapes  # pyright: ignore[reportAttributeAccessIssue]


def shapes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function` so that arguments and results annotated by jaxtyping are checked; leave others as they are."""
    hints = {name: hint for name, hint in getattr(function, "__annotations__", {}).items() if "jaxtyping" in repr(hint)}
    if not hints or not isinstance(function, FunctionType):
        return function
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__, copy.__module__, copy.__doc__ = function.__qualname__, function.__module__, function.__doc__
    copy.__annotations__ = hints
    return beartype(copy)
