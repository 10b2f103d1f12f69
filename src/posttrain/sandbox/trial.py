"""Tests of a solution that cannot see them: the solution in one box, the tests in another.

Arguments of a call go to the solution's box and its values come back as tagged JSON (`inside/wire.py`). The verdict
leaves by a pipe of the tests' box alone. So a solution can lie about nothing but its own values: it has no test to
read, no checker to patch, no clock that anybody reads, no verdict to print.
"""

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from posttrain.sandbox.box import DEFAULT, Box, Limits, Stop, read
from posttrain.sandbox.inside.wire import GONE  # what the tests' box can say of a solution that is gone
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
    calls, calls_end, values, values_end = ours = [*os.pipe(), *os.pipe()]
    job = {"tests": list(tests), "names": list(names), "trusted": trusted, "reads": values, "writes": calls_end}
    patient = replace(limits, wall_s=limits.wall_s + 5)  # a solution that sleeps is stopped first
    with ExitStack() as stack:
        for end in ours:
            stack.callback(os.close, end)
        solution = Box("candidate.main", {"code": [*code, shared]}, limits, sandbox, stdin=calls, stdout=values_end)
        with (
            closing(solution) as one,
            closing(Box("tests.main", job, patient, sandbox, descriptors=(values, calls_end))) as other,
        ):
            stack.close()  # the boxes have them
            assert other.process.stdout is not None
            (said,) = read([other, one], [other.process.stdout.fileno()])
            results = _verdict(said, len(tests))
            if results is None:
                results = [TestResult(False, f"the tests' own process {other.ended()}")] * len(tests)
            if any(result.why == GONE for result in results):
                how = f"the solution {one.ended()}"
                results = [replace(result, why=how) if result.why == GONE else result for result in results]
    return Trial(tuple(results), one.stopped or other.stopped)


def _verdict(said: bytes, tests: int) -> list[TestResult] | None:
    """The verdict, if it is one: its process has handled what the solution said."""
    try:
        found = [TestResult(passed is True, str(why)[:500]) for passed, why in json.loads(said)]
    except (ValueError, TypeError, RecursionError):
        return None
    return found if len(found) == tests else None
