"""One file's mutants: planted in a worker's copy of the source, one after another, each for the file's own tests."""

import random
import time
from functools import cache
from typing import NamedTuple

from tests.generated_mutants.mutants_of import Mutant, diff, sampled
from tests.mutants import Copy, outcome

MARKS = "not model and not gpu and not thorough and not nightly"
LONGEST = 300.0  # seconds that a file's tests may take
PATIENCE = 20.0  # seconds that a mutant has in any case, so that a busy machine is not taken for an endless loop


class Job(NamedTuple):
    """What a worker is asked."""

    file: str  # below src/posttrain
    tests: str  # below tests; several, separated by spaces
    seed: str
    sample: int
    deadline: float  # of time.monotonic


class Planted(NamedTuple):
    """One mutant, and what the tests said: `outcome` has the words."""

    line: int
    change: list[str]
    found: str


class Examined(NamedTuple):
    """All that were planted in one file."""

    file: str
    planted: list[Planted]
    unplanted: int = 0  # for lack of time
    trouble: str = ""  # why none was planted
    red: bool = False  # its tests are red without a mutant


@cache  # many files of a folder have the same tests
def unspoiled(tests: str) -> tuple[str, float]:
    """What `tests` say without a mutant, and after how many seconds."""
    start = time.monotonic()
    return outcome(Copy.folder, tests, marks=MARKS, seconds=LONGEST), time.monotonic() - start


def examine(job: Job) -> Examined:
    """Plant a sample of mutants in one file, until the time is up."""
    text = (Copy.folder / "src" / "posttrain" / job.file).read_text(encoding="utf-8")
    chosen = sampled(text, job.sample, random.Random(f"{job.seed} {job.file}"))
    if not chosen:
        return Examined(job.file, [])
    if not job.tests:
        return Examined(job.file, [], trouble="no tests are its own")
    if time.monotonic() > job.deadline:
        return Examined(job.file, [], len(chosen))
    found, seconds = unspoiled(job.tests)
    if found == "red by time":
        return Examined(job.file, [], trouble=f"{job.tests} take more than {LONGEST:.0f} s")
    if found == "empty":
        return Examined(job.file, [], trouble=f"{job.tests} need a model or a GPU")
    if found != "green":
        return Examined(job.file, [], trouble=f"without a mutant, {job.tests} should be green; it is {found}", red=True)
    planted: list[Planted] = []
    for mutant in chosen:
        if time.monotonic() > job.deadline:
            break
        found = plant(job, text, mutant, max(PATIENCE, 3 * seconds))
        planted.append(Planted(mutant.line, diff(text, mutant.text), found))
    return Examined(job.file, planted, len(chosen) - len(planted))


def plant(job: Job, text: str, mutant: Mutant, seconds: float) -> str:
    """What the tests say of one mutant. The copy is afterwards as it was."""
    path = Copy.folder / "src" / "posttrain" / job.file
    path.write_text(mutant.text, encoding="utf-8")
    try:
        return outcome(Copy.folder, job.tests, marks=MARKS, seconds=seconds)
    finally:
        path.write_text(text, encoding="utf-8")
