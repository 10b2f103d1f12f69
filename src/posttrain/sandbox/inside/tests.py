"""The box of the tests: runs them against stand-ins for what the solution defines, and writes the verdict.

The solution runs in another box. What it returns arrives as exact builtins or as handles (`wire.py`).
"""

from __future__ import annotations

import builtins
import json
import os
from collections.abc import Mapping, Sequence

from .start import begin, silence
from .wire import Closed, Link, Standin, Unsuitable

TYPE_CHECKING = False  # typing takes a tenth of the time to start
if TYPE_CHECKING:
    from typing import Any


class SolutionError(Exception):
    """What the solution raised, where it is none of Python's own exceptions."""


class Solution(Link):
    """The solution, as the tests see it."""

    def __init__(self, reads: int, writes: int) -> None:
        super().__init__(reads, writes)
        self.gone = ""  # why it is
        self.last = ""  # what it did last, in words

    def operate(self, operation: str, target: Standin, *args: Any, **named: Any) -> Any:
        """What an operation on one of its objects returns; raises what it raises."""
        try:
            answer = self.ask(operation, self.handle(target), args, named)
            if answer[0] == "error":
                raise self._error(answer, operation)
            value = self.decode(answer[1])
            # What a function did to its arguments is seen if it returns None, as functions that work in place do.
            # Otherwise one that empties a list and returns it would pass `assert ordered(a) == sorted(a)`.
            for place, now in answer[2].items() if value is None else ():
                _become(args[int(place)], self.decode(now))
        except Closed as error:
            self.gone = str(error)
            raise
        except Unsuitable:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
            if getattr(error, "solution", False):
                raise
            self.gone = f"it said what is no value ({type(error).__name__})"
            raise Closed(self.gone) from None
        if operation == "call":
            self.last = f"returned {_short(value)}"
        return value

    def _error(self, answer: list[Any], operation: str) -> Exception:
        names, text = [str(name)[:80] for name in answer[1]], str(answer[2])[:200]
        self.last = f"raised {names[0]}: {text}" if text else f"raised {names[0]}"
        if operation != "next" and "StopIteration" in names:
            names = []  # it would end the loop of `all(map(...))`, which is then True
        kinds = [getattr(builtins, name, None) for name in names]
        kind = next((one for one in kinds if isinstance(one, type) and issubclass(one, Exception)), SolutionError)
        try:
            error = kind(text)
        except TypeError:  # one that takes more than a text
            error = SolutionError(text)
        error.solution = True  # pyright: ignore[reportAttributeAccessIssue]
        return error

    def answer(self, operation: str, target: Any, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """As in `Link`; functions that tests have given can be called, and nothing else."""
        if operation != "call":
            raise Unsuitable(operation)
        given, words = self.decoded(args, named)
        function = self._kept[target["yours"]]
        return [self.encode(function(*given, **words))]

    def handle(self, value: Any) -> dict[str, Any]:
        """As in `Link`, of functions."""
        if type(value) is Standin or callable(value):
            return super().handle(value)
        raise Unsuitable(f"a test gives the solution a {type(value).__name__}, which stays in the box of the tests")


def _become(given: Any, now: Any) -> None:
    """What the solution made of a list, a dict, a set or a bytearray that it was given."""
    if type(given) is not type(now):
        raise ValueError("another type")
    if isinstance(given, list | bytearray):
        given[:] = now
    else:
        given.clear()
        given.update(now)


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:  # such as an int of too many digits
        text = f"a value without text ({type(error).__name__})"
    return text if len(text) <= 120 else text[:117] + "..."


def main() -> None:
    """Run the tests; the verdict is a list of [passed, why]."""
    job = begin()
    verdict = os.fdopen(os.dup(1), "wb")
    silence(0, 1, 2)
    solution = Solution(job["reads"], job["writes"])
    names: dict[str, Any] = {"__name__": "tests"}
    names |= {name: Standin(solution, {"name": name}, f"{name} of the solution") for name in job["names"]}
    trouble = ""
    try:
        answer = solution.receive()
        if answer[0] == "error":
            trouble = f"the solution raised {answer[1][0]}: {answer[2]} while it was loaded"
        else:
            exec(compile(job["trusted"], "trusted.py", "exec"), names)
    except BaseException as error:
        solution.gone = str(error) if isinstance(error, Closed) else ""
        trouble = solution.gone or f"the setup of the tests raised {type(error).__name__}: {_short(error)}"
    results = [[False, trouble] if trouble else _run(test, names, solution) for test in job["tests"]]
    verdict.write(json.dumps(results).encode())
    verdict.flush()


def _run(test: str, names: dict[str, Any], solution: Solution) -> list[Any]:
    solution.last = ""
    if solution.gone:
        return [False, solution.gone]
    try:
        exec(compile(test, "test.py", "exec"), names)
    except BaseException as error:
        if solution.gone:
            return [False, solution.gone]
        if isinstance(error, AssertionError):
            return [False, solution.last or "failed without a call"]
        if getattr(error, "solution", False):
            return [False, solution.last]
        told = f"; it {solution.last}" if solution.last else ""
        return [False, f"the test raised {type(error).__name__}: {_short(str(error))}{told}"[:400]]
    return [not solution.gone, solution.gone]
