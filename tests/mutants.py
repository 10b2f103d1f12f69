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
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECONDS = 300  # an endless loop is noticed too
SLOW_IMPORTS = ("torch", "torch.distributed.tensor", "hypothesis", "pytest", "jaxtyping", "beartype")


def copy_tree(folder: Path) -> None:
    """Copy what the tests need; no caches, which would outlive a mutation."""
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "pyproject.toml", folder)


def run_tests(folder: Path, tests: str) -> None:
    """In a child: run `tests` against the copy in `folder`, silently, and exit with pytest's code."""
    import pytest

    os.chdir(folder)
    sys.dont_write_bytecode = True
    for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "posttrain")]:
        del sys.modules[name]
    sys.path[:0] = [str(folder), str(folder / "src")]
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        paths = [f"tests/{name}" for name in tests.split()]
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), *paths])
    loaded = sys.modules.get("posttrain")
    ours = loaded is not None and Path(str(loaded.__file__)).is_relative_to(folder)
    os._exit(int(code) if ours else 99)


def outcome(folder: Path, tests: str) -> str:
    """`green`, `red`, or why neither: a mutant that cannot even be imported proves nothing about a test."""
    child = multiprocessing.get_context("fork").Process(target=run_tests, args=(folder, tests))
    child.start()
    child.join(SECONDS)
    if child.is_alive():
        child.kill()
        child.join()
        return "red"
    match child.exitcode:
        case 0:
            return "green"
        case 1:
            return "red"
        case int(code) if code < 0:  # a fault that brings the whole process down is noticed by everybody
            return "red"
        case 99:
            return "broken: the tests did not import the copy"
        case code:
            return f"broken: pytest ended with {code} before any test had failed"


def main(words: list[str]) -> int:
    from tests.mutations import collect

    for name in SLOW_IMPORTS:
        importlib.import_module(name)
    mutations = [m for m in collect() if not words or any(word in m.file for word in words)]
    start, survivors = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="posttrain-mutants-") as name:
        folder = Path(name).resolve()
        copy_tree(folder)
        for tests in sorted({m.tests for m in mutations}):
            if (found := outcome(folder, tests)) != "green":
                print(f"without a mutation, {tests} should be green; it is {found}")
                return 1
        for m in mutations:
            path = folder / "src" / "posttrain" / m.file
            text = path.read_text(encoding="utf-8")
            if text.count(m.old) != 1:
                found = f"broken: {text.count(m.old)} places match"
            else:
                path.write_text(text.replace(m.old, m.new), encoding="utf-8")
                found = outcome(folder, m.tests)
                path.write_text(text, encoding="utf-8")
            if found != "red":
                survivors += 1
                print(f"{'SURVIVED' if found == 'green' else found}  {m.file}\n    - {m.old!r}\n    + {m.new!r}")
    seconds = time.monotonic() - start
    print(f"{len(mutations) - survivors} of {len(mutations)} mutants were noticed, in {seconds:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
