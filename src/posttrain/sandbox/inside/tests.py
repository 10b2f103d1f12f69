"""The box of the tests: runs them against stand-ins for what the solution defines, and writes the verdict.

The solution runs in another box. What it returns arrives as exact builtins or as handles (`wire.py`).
"""

from __future__ import annotations

import builtins
import json
import os
from collections.abc import Iterator

from .start import begin, silence
from .wire import Closed, Link, Unsuitable, decode, encode

TYPE_CHECKING = False  # typing takes a tenth of the time to start
if TYPE_CHECKING:
    from typing import Any


class SolutionError(Exception):
    """What the solution raised, where it is none of Python's own exceptions."""


class Standin:
    """A name or an object of the solution. Operations on it are done in the solution's box; it equals only itself."""

    def __init__(self, link: Solution, where: dict[str, Any]) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_where", where)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """What it returns there."""
        return self._link.operate("call", self, *args, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._link.operate("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._link.operate("setattr", self, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._link.operate("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._link.operate("setitem", self, key, value)

    __contains__ = None  # what says yes to everything, or counts without end, would contain every answer

    def __len__(self) -> int:
        return self._link.operate("len", self)

    def __iter__(self) -> Iterator[Any]:
        return self._link.operate("iter", self)

    def __next__(self) -> Any:
        return self._link.operate("next", self)

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return self._link.operate("str", self)

    def __repr__(self) -> str:
        ((tag, inner),) = self._where.items()
        return f"an object of class {inner[1]}" if tag == "object" else f"{inner} of the solution"


class Solution:
    """The solution, as the tests see it."""

    def __init__(self, reads: int, writes: int) -> None:
        self.link = Link(os.fdopen(reads, "rb"), os.fdopen(writes, "wb"), self._answer, self._handle, self._found)
        self.objects: dict[int, Standin] = {}
        self.functions: list[Any] = []
        self.gone = ""  # why it is
        self.last = ""  # what it did last, in words

    def operate(self, operation: str, target: Standin, *args: Any, **named: Any) -> Any:
        """What an operation on one of its objects returns; raises what it raises."""
        try:
            sent = [encode(one, self._handle) for one in args]
            named = {key: encode(one, self._handle) for key, one in named.items()}
            answer = self.link.ask(operation, self._handle(target), sent, named)
            if answer[0] == "error":
                return self._raise(answer, operation)
            value = decode(answer[1], self._found)
            # What a function did to its arguments is seen if it returns None, as functions that work in place do.
            # Otherwise one that empties a list and returns it would pass `assert ordered(a) == sorted(a)`.
            for place, now in answer[2].items() if value is None else ():
                _become(args[int(place)], decode(now, self._found))
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

    def _raise(self, answer: list[Any], operation: str) -> None:
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
        raise error

    def _answer(self, message: list[Any]) -> list[Any]:
        """A function of the tests is called by the solution."""
        _, target, args, named = message
        function = self.functions[target["callback"]]
        value = function(
            *(decode(one, self._found) for one in args),
            **{key: decode(one, self._found) for key, one in named.items()},
        )
        return ["value", encode(value, self._handle)]

    def _handle(self, value: Any) -> dict[str, Any]:
        if type(value) is Standin:
            where = value._where
            return where if "object" not in where else {"object": where["object"][0]}
        if callable(value):
            if value not in self.functions:
                self.functions.append(value)
            return {"callback": self.functions.index(value)}
        raise Unsuitable(f"a test gives the solution a {type(value).__name__}, which stays in the box of the tests")

    def _found(self, tag: str, inner: Any) -> Any:
        if tag == "object":
            number, name = inner
            return self.objects.setdefault(int(number), Standin(self, {"object": [int(number), str(name)[:80]]}))
        if tag == "callback":
            return self.functions[inner]
        raise ValueError(tag)


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
    names |= {name: Standin(solution, {"name": name}) for name in job["names"]}
    trouble = ""
    try:
        answer = solution.link.receive()
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
