"""The box of the solution: runs its code, then does with its objects what the box of the tests asks for.

It has no test, no expected value and no verdict: nothing here need be kept from the code that runs beside it.
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

from .start import begin, silence
from .wire import Link

TYPE_CHECKING = False  # typing takes a tenth of the time to start
if TYPE_CHECKING:
    from typing import Any

_OPERATIONS: dict[str, Callable[..., Any]] = {
    **{"getattr": getattr, "setattr": setattr, "getitem": operator.getitem, "setitem": operator.setitem},
    **{"len": len, "iter": iter, "next": next, "str": str, "call": operator.call},
}
_MUTABLE = (list, dict, set, bytearray)


class Tests(Link):
    """The tests, as the solution's box sees them."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        super().__init__(os.dup(0), os.dup(1))
        self._names = names

    def found(self, tag: str, inner: Any) -> Any:
        """As in `Link`; a name is one that the solution defines."""
        if tag != "name":
            return super().found(tag, inner)
        if inner not in self._names:
            raise NameError(f"the solution does not define {inner}")
        return self._names[inner]

    def answer(self, operation: str, target: Any, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """As in `Link`, with what has become of arguments that can change."""
        given, words = self.decoded(args, named)
        value = _OPERATIONS[operation](self.decode(target), *given, **words)
        changed: dict[int, Any] = {}
        for place, one in enumerate(given if value is None else ()):
            if type(one) in _MUTABLE and (now := self.encode(one)) != args[place]:
                changed[place] = now
        return [self.encode(value), changed]


def main() -> None:
    """Run the code, then serve."""
    job = begin()
    module = sys.modules["solution"] = ModuleType("solution")
    tests = Tests(vars(module))
    silence(0, 1, 2)
    try:
        for source in job["code"]:
            exec(compile(source, "solution.py", "exec"), vars(module))
    except BaseException as error:
        tests.send(["error", [type(error).__name__], str(error)[:200]])
        return
    tests.send(["value", None])
    tests.serve()
