"""The box of the solution: runs its code, then does with its objects what the box of the tests asks for.

It has no test, no expected value and no verdict: nothing here need be kept from the code that runs beside it.
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable
from types import ModuleType

from .start import begin, silence
from .wire import Link, Unsuitable, decode, encode

TYPE_CHECKING = False  # typing takes a tenth of the time to start
if TYPE_CHECKING:
    from typing import Any

_OPERATIONS: dict[str, Callable[..., Any]] = {
    **{"getattr": getattr, "setattr": setattr, "getitem": operator.getitem, "setitem": operator.setitem},
    **{"len": len, "iter": iter, "next": next, "str": str},
    "call": operator.call,
}
_MUTABLE = (list, dict, set, bytearray)


class Callback:
    """A function of the tests, which the solution was given."""

    def __init__(self, number: int, link: Link) -> None:
        self.number, self.link = number, link

    def __call__(self, *args: Any, **named: Any) -> Any:
        """What the function returns in the box of the tests."""
        link = self.link
        sent = [encode(one, link.handle) for one in args], {key: encode(one, link.handle) for key, one in named.items()}
        answer = link.ask("call", {"callback": self.number}, *sent)
        if answer[0] == "value":
            return decode(answer[1], link.found)
        raise RuntimeError(f"a function of the tests raised {answer[1][0]}: {answer[2]}")


def main() -> None:
    """Run the code, then serve."""
    job = begin()
    reads, writes = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    silence(0, 1, 2)
    module = ModuleType("solution")
    sys.modules["solution"] = module
    kept: list[Any] = []
    numbers: dict[int, int] = {}

    def handle(value: Any) -> dict[str, Any]:
        if type(value) is Callback:
            return {"callback": value.number}
        if id(value) not in numbers:
            numbers[id(value)] = len(kept)
            kept.append(value)
        return {"object": [numbers[id(value)], type(value).__name__[:80]]}

    def found(tag: str, inner: Any) -> Any:
        if tag == "object":
            return kept[inner]
        if tag == "name":
            if inner not in vars(module):
                raise NameError(f"the solution does not define {inner}")
            return vars(module)[inner]
        if tag == "callback":
            return Callback(inner, link)
        raise Unsuitable(tag)

    def answers(message: list[Any]) -> list[Any]:
        operation, target, args, named = message
        given = [decode(one, found) for one in args]
        value = _OPERATIONS[operation](
            decode(target, found), *given, **{key: decode(one, found) for key, one in named.items()}
        )
        changed: dict[int, Any] = {}
        for place, one in enumerate(given if value is None else ()):
            if type(one) in _MUTABLE and (now := encode(one, handle)) != args[place]:
                changed[place] = now
        return ["value", encode(value, handle), changed]

    link = Link(reads, writes, answers, handle, found)
    try:
        for source in job["code"]:
            exec(compile(source, "solution.py", "exec"), vars(module))
    except BaseException as error:
        link.send(["error", [type(error).__name__], str(error)[:200]])
        return
    link.send(["value", None])
    link.serve()
