"""Programs, judged by unit tests or by what they print (`posttrain.sandbox`, docs/sandbox.md)."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.errors import RewardError
from posttrain.rewards.code_tests import NoTests, pairs_of, read_tests, sources_of, why_no_python
from posttrain.rewards.verifiers.extraction import question_of
from posttrain.rewards.verifiers.workers import TIME_LIMITS, TIMED_OUT, InWorkers
from posttrain.sandbox import Limits, Sandbox, Stop, TestResult, refuse_without_isolation, run_program, try_solution
from posttrain.types import Episode, Score, Task

_FENCED = re.compile(r"^[ \t]*(```+|~~~+)[^\n`]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_SHOWN = 3  # failed tests in an explanation


@dataclass(frozen=True)
class CodeVerifier(InWorkers):
    """1 if the program in the completion passes all tests of its task, else 0.

    The program is the last fenced block of the completion; where there is none, all of it. The tests are in columns of
    the data: `test_list`, statements, with `test_setup_code` that runs before them; or `test`, whose `check` is called
    with the function `entry_point`, one test; or `inputs` and `outputs`, lists of what a whole program reads and must
    print. A completion that does not define the functions that tests call continues its prompt, if that is code.

    A program that is no Python is `unparsed`. So is one that reached the wall clock's limit, whose verdict a resumed
    run reuses: it depends on the machine's load. CPU seconds, which do not, are part of the tests' verdict.

    Args:
        partial_credit: the share of tests that pass, in place of all or nothing.
        cpu_s: CPU seconds of a program, for all of its tests; with `inputs`, for each.
        wall_s: seconds by the clock, likewise: a backstop.
        memory_mb: address space of a program, in MiB.
        sandbox: "none" runs programs without isolation.

    Raises (while scoring):
        UserError: programs cannot be isolated on this machine, with cause and remedy.
        RewardError: a task without tests, or with one that does not compile or calls nothing.
    """

    partial_credit: bool = False
    cpu_s: float = 8.0
    wall_s: float = 30.0
    memory_mb: int = 512
    sandbox: Sandbox = "bubblewrap"
    name: str = "code"
    patient = True  # each program has limits of its own
    columns = ("test_list", "test_setup_code", "test", "entry_point", "inputs", "outputs")

    def __post_init__(self) -> None:
        self._limits()  # raises for one that is none

    def _limits(self) -> Limits:
        return Limits(cpu_s=self.cpu_s, wall_s=self.wall_s, memory_mb=self.memory_mb)

    async def unreadable(self, tasks: Sequence[Task]) -> list[str]:
        """Of each task, why its tests cannot be run; "" where they can."""
        if self.sandbox != "none":
            refuse_without_isolation()
        return [self._refusal(task) for task in tasks]

    def _refusal(self, task: Task) -> str:
        try:
            if not pairs_of(task):
                read_tests(task)
        except NoTests as error:
            return f"reward '{self.name}' {error}"
        return ""

    def _score_one(self, episode: Episode) -> Score:
        task = episode.task
        if refusal := self._refusal(task):
            raise RewardError(f"{refusal}; task {task.id!r}")
        program = program_in(episode.completion)
        limits = self._limits()
        tests = {name: task.metadata[name] for name in self.columns if name in task.metadata}
        digest = hashlib.sha256(repr(("code", question_of(task), tests, program, limits)).encode()).hexdigest()
        late = Score(0.0, program, f"{TIMED_OUT}: it did not finish within {self.wall_s:g} s", unparsed=True)
        if digest in TIME_LIMITS.known:
            return late
        judged = self._judged_pairs if pairs_of(task) else self._judged_tests
        score, stopped = judged(task, program, limits)
        if stopped is Stop.WALL:
            TIME_LIMITS.add(digest)
            return late
        return score

    def _judged_tests(self, task: Task, program: str, limits: Limits) -> tuple[Score, Stop | None]:
        tests = read_tests(task)
        sources = sources_of(program, tests, task)
        if why := why_no_python(*sources):
            return Score(0.0, program, _plain(f"not Python: {why}"), unparsed=True), None
        trial = try_solution(
            sources,
            tests.tests,
            tests.names,
            shared=tests.shared,
            trusted=tests.trusted,
            limits=limits,
            sandbox=self.sandbox,
        )
        return self._score(program, tests.tests, trial.results), trial.stopped

    def _judged_pairs(self, task: Task, program: str, limits: Limits) -> tuple[Score, Stop | None]:
        if why := why_no_python(program):
            return Score(0.0, program, _plain(f"not Python: {why}"), unparsed=True), None
        pairs, results = pairs_of(task), list[TestResult]()
        for given, expected in pairs:
            ran = run_program(program, given, limits=limits, sandbox=self.sandbox)
            if ran.stopped is Stop.WALL:
                return Score(0.0), Stop.WALL
            right = not ran.ended and _lines(ran.output) == _lines(expected)
            said = (ran.error.strip().splitlines() or [""])[-1]
            why = (
                f"the program {ran.ended}{': ' if said else ''}{said}" if ran.ended else f"printed {ran.output[:80]!r}"
            )
            results.append(TestResult(right, "" if right else why))
            if not right and not self.partial_credit:
                break
        results += [TestResult(False, "not run")] * (len(pairs) - len(results))
        return self._score(program, [f"input {given[:40]!r}" for given, _ in pairs], results), None

    def _score(self, program: str, tests: Sequence[str], results: Sequence[TestResult]) -> Score:
        told = enumerate(zip(tests, results, strict=True), 1)
        failed = [(number, test, result.why) for number, (test, result) in told if not result.passed]
        share = 1 - len(failed) / len(results)
        value = share if self.partial_credit else float(not failed)
        return Score(value, program, _plain(_explained(failed, len(results))) if failed else "")


def _explained(failed: Sequence[tuple[int, str, str]], of: int) -> str:
    """Which tests failed, and why."""
    text = f"{of - len(failed)} of {of} tests passed"
    if len(failed) > 1 and len({why for _, _, why in failed}) == 1:
        return f"{text}; the others: {failed[0][2]}"
    told = [f"test {number}, {' '.join(test.split())[:80]}: {why}" for number, test, why in failed[:_SHOWN]]
    more = [f"{len(failed) - _SHOWN} more"] if len(failed) > _SHOWN else []
    return "; ".join([text, *told, *more])


def _plain(text: str) -> str:
    """One line of printable characters: a program wrote part of it."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def program_in(completion: str) -> str:
    r"""The last fenced block, which the end of the text closes too; without one, all of it.

    Example:
        >>> program_in("So:\n```python\nx = 1\n```\nDone.")
        'x = 1\n'
    """
    found = _FENCED.findall(completion)
    return found[-1][1] if found else completion


def _lines(text: str) -> list[str]:
    """The lines of an output, without spaces at their ends and empty lines at its end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]
