"""Checks the shape annotations of posttrain while tests run; `--jaxtyping-packages` in pyproject.toml names it.

Only annotations with shapes are handed to beartype. All others are the static type checker's business: at run time an
`int` is welcome where `float` is written, and a test may pass a small fake where a protocol is written.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any

from beartype import beartype


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
