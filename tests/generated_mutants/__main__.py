"""Plants generated mutants in a copy of the source and reports those that no test notices: `make mutants-nightly`.

The sample of a file is a function of the seed, which is the date unless it is given. Files come in a random order, and
each is one worker's job. Exits 1 if a room has too many survivors, if tests are red without a mutant, or if nothing
was planted.
"""

import argparse
import datetime
import importlib
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tests import mutants
from tests.generated_mutants.examine import Examined, Job, examine
from tests.generated_mutants.report import failures, summary, told
from tests.generated_mutants.selection import files, own_tests

SLOW_IMPORTS = (
    *mutants.SLOW_IMPORTS,
    *("transformers", "peft", "fastapi", "sqlalchemy", "scipy.optimize", "crowdkit.aggregation", "krippendorff"),
)


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.generated_mutants", description=__doc__)
    today = datetime.date.today().isoformat()
    parser.add_argument("--seed", default=today, help="of the sample and of the order of files; default: the date")
    parser.add_argument("--sample", type=int, default=10, help="mutants of a file; default: 10")
    parser.add_argument("--minutes", type=float, default=240, help="no mutant is planted after them; default: 240")
    parser.add_argument("--files", nargs="*", default=[], metavar="WORD", help="only files whose path has a WORD")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="default: one for each core")
    return parser.parse_args(arguments)


def jobs(options: argparse.Namespace, root: Path) -> list[Job]:
    """Return a job for every file, in the order of the seed."""
    chosen = files(root / "src" / "posttrain", options.files)
    random.Random(options.seed).shuffle(chosen)
    deadline = time.monotonic() + 60 * options.minutes
    return [Job(file, own_tests(file, root / "tests"), options.seed, options.sample, deadline) for file in chosen]


def examined(asked: list[Job], workers: int) -> Iterator[Examined]:
    """Yield what was found in each file, as soon as it is known."""
    fork = multiprocessing.get_context("fork")
    with (
        tempfile.TemporaryDirectory(prefix="posttrain-mutants-") as name,
        ProcessPoolExecutor(workers, fork, mutants.Copy.make, (Path(name).resolve(),)) as pool,
    ):
        for done in as_completed([pool.submit(examine, job) for job in asked]):
            yield done.result()


def main(arguments: list[str]) -> int:
    options = parsed(arguments)
    asked = jobs(options, mutants.ROOT)
    if not asked:
        print(f"no file with generated mutants has {' or '.join(options.files)} in its path")
        return 1
    print(
        f"{len(asked)} files, --seed {options.seed}, --sample {options.sample}, {options.minutes:g} minutes", flush=True
    )
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
    for name in SLOW_IMPORTS:
        importlib.import_module(name)
    start, found = time.monotonic(), []
    for one in examined(asked, options.workers):
        found.append(one)
        lines = told(one)
        passed = time.monotonic() - start
        left = min(passed / len(found) * (len(asked) - len(found)), max(0.0, 60 * options.minutes - passed))
        planted = f"{len(one.planted)} planted in {one.file}"
        print(*lines, f"{len(found)} of {len(asked)}, {planted}, about {left / 60:.0f} min left", sep="\n", flush=True)
    why = failures(found)
    print(*summary(found), *(f"FAILED  {line}" for line in why), sep="\n")
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
