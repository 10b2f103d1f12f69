"""Plants each mutation of `tests/mutations/` in a copy of the source and reports those that no test notices.

    python -m tests.mutants [WORD ...]      only mutations of files whose path has one of the words

A numeric test is finished when somebody has seen it fail. This sees it, for every listed fault, each time it runs.
Each mutant's tests run in a forked child, in which the slow imports are already done. Exits 1 if a mutant survives.
"""

import contextlib
import importlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.mutations import Mutation, collect

ROOT = Path(__file__).parents[1]
SECONDS = 120  # an endless loop is noticed too
SLOW_IMPORTS = ("torch", "torch.distributed.tensor", "hypothesis", "pytest", "jaxtyping", "beartype")


def copy_tree(folder: Path) -> None:
    """Copy what the tests need; no caches, which would outlive a mutation."""
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "pyproject.toml", folder)


def run_tests(folder: Path, tests: str, only: str, marks: str) -> None:
    """In a child: run `tests` against the copy in `folder`, silently, and exit with pytest's code."""
    import pytest

    os.chdir(folder)
    os.environ["POSTTRAIN_MUTANTS"] = "1"
    sys.dont_write_bytecode = True
    for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "posttrain")]:
        del sys.modules[name]
    sys.path[:0] = [str(folder), str(folder / "src")]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])  # of processes that the tests start
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        paths = [f"tests/{name}" for name in tests.split()]
        options = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "--rootdir", str(folder)]
        code = pytest.main([*options, "-k", only, "-m", marks, *paths])
    loaded = sys.modules.get("posttrain")
    ours = loaded is not None and Path(str(loaded.__file__)).is_relative_to(folder)
    os._exit(int(code) if ours else 99)


def outcome(folder: Path, tests: str, only: str = "", marks: str = "", seconds: float = SECONDS) -> str:
    """`green`, `red`, `red by time`, `empty` (of `marks` there is no test), or why none.

    A mutant that cannot be imported proves nothing about a test.
    """
    child = multiprocessing.get_context("fork").Process(target=run_tests, args=(folder, tests, only, marks))
    child.start()
    child.join(seconds)
    if child.is_alive():
        child.kill()
        child.join()
        return "red by time"
    match child.exitcode:
        case 0:
            return "green"
        case 5 if only:  # no test has such a name
            return "green"
        case 5 if marks:
            return "empty"
        case 1:
            return "red"
        case int(code) if code < 0:  # a fault that brings the whole process down is noticed by everybody
            return "red"
        case 99:
            return "broken: the tests did not import the copy"
        case code:
            return f"broken: pytest ended with {code} before any test had failed"


class Copy:
    """The copy of the source that this process may spoil; every worker has its own."""

    folder = Path()

    @classmethod
    def make(cls, within: Path) -> None:
        import torch

        torch.set_num_threads(1)  # one worker per core, and two that spin for the same core crawl
        cls.folder = within / str(os.getpid())
        cls.folder.mkdir()
        copy_tree(cls.folder)


def unspoiled(tests: str) -> str:
    return outcome(Copy.folder, tests)


def planted(m: Mutation) -> str:
    """What the tests say of one mutation."""
    path = Copy.folder / "src" / "posttrain" / m.file
    text = path.read_text(encoding="utf-8")
    if text.count(m.old) != 1:
        return f"broken: {text.count(m.old)} places match"
    path.write_text(text.replace(m.old, m.new), encoding="utf-8")
    # tests that are named after the file see most faults in a part of the time; what they miss, all of them look at
    stem = path.stem.replace("_pp", "++")
    found = outcome(Copy.folder, m.tests, only=f"{stem} or {stem.replace('_', '-')}")
    if found == "green":
        found = outcome(Copy.folder, m.tests)
    path.write_text(text, encoding="utf-8")
    return found


def main(words: list[str]) -> int:
    for name in SLOW_IMPORTS:
        importlib.import_module(name)
    mutations = [m for m in collect() if not words or any(word in m.file for word in words)]
    if not mutations:
        print(f"no mutation is of a file whose path has {' or '.join(words)}")
        return 1
    start, survivors, endless = time.monotonic(), 0, 0
    with (
        tempfile.TemporaryDirectory(prefix="posttrain-mutants-") as name,
        ProcessPoolExecutor(
            os.cpu_count(), multiprocessing.get_context("fork"), Copy.make, (Path(name).resolve(),)
        ) as pool,
    ):
        needed = sorted({m.tests for m in mutations})
        for tests, found in zip(needed, pool.map(unspoiled, needed), strict=True):
            if found != "green":
                print(f"without a mutation, {tests} should be green; it is {found}")
                pool.shutdown(cancel_futures=True)
                return 1
        first = time.monotonic()
        for done, (m, found) in enumerate(zip(mutations, pool.map(planted, mutations), strict=True), 1):
            if found == "red by time":
                endless += 1
                print(f"ran for over {SECONDS} s  {m.file}\n    - {m.old!r}\n    + {m.new!r}")
            elif found != "red":
                survivors += 1
                print(f"{'SURVIVED' if found == 'green' else found}  {m.file}\n    - {m.old!r}\n    + {m.new!r}")
            left = (time.monotonic() - first) / done * (len(mutations) - done)
            if done % 20 == 0:
                print(f"{done} of {len(mutations)} planted, about {left / 60:.0f} min left", flush=True)
    seconds = time.monotonic() - start
    noticed = f"{len(mutations) - survivors} of {len(mutations)} mutants were noticed"
    print(f"{noticed}, {endless} by their time alone, in {seconds:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
