"""Tests of a solution that cannot see them: the solution in one box, the tests in another.

Arguments of a call go to the solution's box and its values come back as tagged JSON (`inside/wire.py`). The verdict
leaves by a pipe of the tests' box alone. So a solution can lie about nothing but its own values: it has no test to
read, no checker to patch, no clock that anybody reads, no verdict to print.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from posttrain.sandbox.box import DEFAULT, Box, Limits, Stop, read
from posttrain.sandbox.isolation import Sandbox


@dataclass(frozen=True)
class TestResult:
    """What became of one test."""

    passed: bool
    why: str
    """Why it failed, in words; text of the solution is in it as it is."""

    __test__ = False


@dataclass(frozen=True)
class Trial:
    """What became of all tests of a solution."""

    results: tuple[TestResult, ...]
    stopped: Stop | None
    """The limit at which the solution, or the tests of its values, were stopped."""


def try_solution(
    code: Sequence[str],
    tests: Sequence[str],
    names: Sequence[str],
    *,
    shared: str = "",
    trusted: str = "",
    limits: Limits = DEFAULT,
    sandbox: Sandbox = "bubblewrap",
) -> Trial:
    """Run tests against a solution.

    Args:
        code: the solution: sources that run one after another in one module.
        tests: statements, each a test that passes if it raises nothing.
        names: what the tests use of the solution.
        shared: code that runs behind the solution, in its box: classes that tests give it objects of.
        trusted: code that runs before the tests, in theirs: what they use and the solution need not define.
        limits: of each box; what ends the solution fails the tests behind it, too.
        sandbox: "none" runs them in two plain processes.

    Raises:
        UserError: programs cannot be isolated on this machine, with cause and remedy.
        SandboxError: a box did not start.
    """
    calls, calls_end = os.pipe()
    values, values_end = os.pipe()
    ours = [calls, calls_end, values, values_end]
    try:
        with Box("candidate", {"code": [*code, shared]}, limits, sandbox, stdin=calls, stdout=values_end) as one:
            job = {"tests": list(tests), "names": list(names), "trusted": trusted}
            job |= {"reads": values, "writes": calls_end}
            patient = replace(limits, wall_s=limits.wall_s + 5)  # a solution that sleeps is stopped first
            with Box("tests", job, patient, sandbox, descriptors=(values, calls_end)) as other:
                while ours:
                    os.close(ours.pop())
                assert other.process.stdout is not None
                (said,) = read([other, one], [other.process.stdout.fileno()])
                verdict = _verdict(said, len(tests))
                how = f"the solution {one.ended()}" if verdict and verdict["gone"] == "its process ended" else ""
                if verdict is None:
                    verdict, how = {"results": [[False, ""]] * len(tests)}, f"the tests' own process {other.ended()}"
    finally:
        while ours:
            os.close(ours.pop())
    results = [TestResult(passed, "" if passed else how if _unsaid(why) else why) for passed, why in verdict["results"]]
    return Trial(tuple(results), one.stopped or other.stopped)


def _unsaid(why: str) -> bool:
    return why in ("", "its process ended")


def _verdict(said: bytes, tests: int) -> dict[str, Any] | None:
    """The verdict, if it is one: it has handled what the solution said."""
    try:
        found = json.loads(said)
        results = [(bool(passed), str(why)[:500]) for passed, why in found["results"]]
        return {"results": results, "gone": str(found["gone"])} if len(results) == tests else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return cast(None, None)
