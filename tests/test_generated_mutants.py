"""Generated mutants: which are made, of which files, for which tests, for how long, and what a night says of them."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

cst = pytest.importorskip("libcst", reason="the extra `dev` has mutmut, which makes the mutants")

from tests import mutants  # noqa: E402
from tests.generated_mutants import examine, mutants_of  # noqa: E402
from tests.generated_mutants.__main__ import jobs, parsed  # noqa: E402
from tests.generated_mutants.examine import Examined, Job, Planted  # noqa: E402
from tests.generated_mutants.mutants_of import diff, sampled  # noqa: E402
from tests.generated_mutants.report import MOST, at_least, counts, failures, summary, told  # noqa: E402
from tests.generated_mutants.selection import TESTS_OF, files, own_tests, room_of  # noqa: E402
from tests.mutations import ROOMS  # noqa: E402

SOURCE = mutants.ROOT / "src" / "posttrain"
TEXT = '''"""A file."""


def clipped(value: float, low: float = 0.0, high: float = 1.0) -> float:
    """Return `value` between `low` and `high`."""
    if low > high:
        raise ValueError(f"{low} is over {high}")
    found = value if value >= low else low
    return found if found <= high else high


def inside(values, low, high):
    return [one for one in values if low <= one and one <= high]
'''


def every(text: str) -> list[str]:
    return [mutant.text for mutant in sampled(text, 1000, random.Random(0))]


def test_the_sample_is_a_function_of_the_seed() -> None:
    assert sampled(TEXT, 5, random.Random("a")) == sampled(TEXT, 5, random.Random("a"))
    assert sampled(TEXT, 5, random.Random("a")) != sampled(TEXT, 5, random.Random("b"))


def test_each_is_of_another_line_while_there_are_lines_left() -> None:
    lines = [mutant.line for mutant in sampled(TEXT, 8, random.Random(0))]
    assert sorted(lines[:6]) == [4, 6, 7, 8, 9, 13]
    assert len(set(lines)) == 6


def test_a_mutant_changes_the_line_that_it_names_and_no_other() -> None:
    for mutant in sampled(TEXT, 1000, random.Random(0)):
        changed = [
            number
            for number, (old, new) in enumerate(zip(TEXT.split("\n"), mutant.text.split("\n"), strict=True), 1)
            if old != new
        ]
        assert changed == [mutant.line]
        old, new = diff(TEXT, mutant.text)
        assert old == f"- {TEXT.splitlines()[mutant.line - 1].strip()}"
        assert new == f"+ {mutant.text.splitlines()[mutant.line - 1].strip()}"


def test_nothing_is_not_put_in_the_place_of_nothing() -> None:
    assert every("a: bool = False\n") == ["a: bool = True\n"]
    for nothing in ("None", "()", '""'):
        assert every(f"a: A = {nothing}\n") == []
    assert every("a: A = (b,)\n") == ["a: A = None\n"]
    assert every("a, b = c\n") == []
    assert every("a = c\n") == ["a = None\n"]


def test_no_mutant_is_made_twice_and_comparisons_conditions_and_defaults_have_one() -> None:
    found = every(TEXT)
    assert len(set(found)) == len(found)
    for changed in (
        "if low >= high",
        "value > low",
        "(found <= high) and False",
        "low <= one or one",
        "high: float = 2",
    ):
        assert sum(changed in text for text in found) == 1, changed


@pytest.mark.parametrize(
    "line",
    [
        "def f(a: tuple[int, Literal[1]]): pass",
        "@dataclass(frozen=True)\nclass A: pass",
        "Interval = tuple[float, Literal[2]]",
        "from a import True_ as b",
        "if TYPE_CHECKING:\n    import a\n    A = 1",
        "zip(strict=True)",
        "open(encoding='utf-8')",
        "cast('A', a)",
        "'''A docstring of 1.'''",
        "print",
    ],
)
def test_types_decorators_guards_and_texts_have_none(line: str) -> None:
    assert every(line + "\n") == []


@pytest.mark.parametrize("code", ["return", "def", "yield"])
def test_a_mutant_that_does_not_compile_is_not_counted(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    def broken_once(node):
        return [cst.Name(code), node.with_changes(value="2")]

    monkeypatch.setattr(mutants_of, "OPERATORS", [(cst.Integer, broken_once)])
    assert every("a = 1\n") == ["a = 2\n"]


def test_a_mutant_that_says_the_same_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants_of, "OPERATORS", [(cst.Integer, lambda node: [cst.Integer("0x1"), cst.Integer("3")])])
    assert every("a = 1\n") == ["a = 3\n"]


def test_files_of_rooms_with_lists_and_migrations_are_left_out() -> None:
    found = files(SOURCE, [])
    assert {"data/chat.py", "statistics.py", "runs/trackers.py"} <= {*found}
    assert not [file for file in found if file.startswith(ROOMS) or "migrations" in file]
    assert files(SOURCE, ["data/ch", "stat"]) == [file for file in found if "data/ch" in file or "stat" in file]
    assert (room_of("data/chat.py"), room_of("statistics.py")) == ("data", "single files")


def test_the_tests_of_a_file_are_its_mirror_else_its_folders(tmp_path: Path) -> None:
    for name in ("data/test_chat.py", "recipes/test_verify.py", "runs/store/test_work.py", "test_cli.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert own_tests("data/chat.py", tmp_path) == TESTS_OF["data/chat.py"]
    assert own_tests("cli.py", tmp_path) == "test_cli.py"
    assert own_tests("recipes/verify/masks.py", tmp_path) == "recipes/test_verify.py"
    assert own_tests("recipes/sft.py", tmp_path) == "recipes"
    assert own_tests("runs/store/work.py", tmp_path) == "runs/store/test_work.py"
    assert own_tests("runs/store/tables.py", tmp_path) == "runs/store"
    assert own_tests("runs/jsonl.py", tmp_path / "runs") == TESTS_OF["runs/jsonl.py"]
    assert own_tests("runs/training.py", tmp_path) == ""
    assert own_tests("usage.py", tmp_path) == ""


def test_the_table_names_files_and_tests_that_exist() -> None:
    assert {*TESTS_OF} <= {*files(SOURCE, [])}
    assert all((mutants.ROOT / "tests" / name).is_file() for names in TESTS_OF.values() for name in names.split())


def test_the_order_of_files_is_a_function_of_the_seed() -> None:
    def order(seed: str) -> list[str]:
        return [job.file for job in jobs(parsed(["--seed", seed, "--files", "data/"]), mutants.ROOT)]

    assert order("1") == order("1") != order("2")
    assert sorted(order("1")) == sorted(order("2")) == files(SOURCE, ["data/"])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[float]:
    """A copy with one file in it, whose tests take one second, and a clock that only they move."""
    now = [0.0]

    def outcome(*_, **__) -> str:
        now[0] += 1
        return "green"

    (tmp_path / "src" / "posttrain").mkdir(parents=True)
    (tmp_path / "src" / "posttrain" / "a.py").write_text(TEXT, encoding="utf-8")
    monkeypatch.setattr(mutants.Copy, "folder", tmp_path)
    monkeypatch.setattr(examine, "outcome", outcome)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    examine.unspoiled.cache_clear()
    yield now
    examine.unspoiled.cache_clear()


@pytest.mark.parametrize(("deadline", "planted"), [(-1, 0), (0, 0), (1, 1), (3.5, 3), (100, 6)])
def test_when_the_time_is_up_nothing_more_is_planted(clock: list[float], deadline: float, planted: int) -> None:
    found = examine.examine(Job("a.py", "test_a.py", "1", 6, deadline))
    assert (len(found.planted), found.unplanted) == (planted, 6 - planted)
    assert clock[0] == (planted + 1 if deadline >= 0 else 0)
    assert (mutants.Copy.folder / "src" / "posttrain" / "a.py").read_text(encoding="utf-8") == TEXT


def test_what_is_red_or_too_slow_without_a_mutant_or_has_no_tests_is_said(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job("a.py", "test_a.py", "1", 6, 100.0)
    assert "no tests" in examine.examine(job._replace(tests="")).trouble
    for found, red in (("red", True), ("red by time", False), ("empty", False), ("broken: no", True)):
        monkeypatch.setattr(examine, "outcome", lambda *_, found=found, **__: found)
        examine.unspoiled.cache_clear()
        one = examine.examine(job)
        assert (one.planted, one.red) == ([], red) and "test_a.py" in one.trouble


def night(survived: int, noticed: int, file: str = "data/chat.py") -> Examined:
    words = ["green"] * survived + ["red", "red by time"] * (noticed // 2) + ["red"] * (noticed % 2) + ["broken: 2"]
    return Examined(file, [Planted(number, ["- a", "+ b"], word) for number, word in enumerate(words, 1)], 3)


def test_a_room_is_counted_without_what_cannot_be_imported() -> None:
    found = [night(1, 3), night(2, 4, "data/records.py"), night(0, 2, "cli.py"), Examined("runs/run.py", [])]
    assert counts(found) == {"data": (3, 10), "single files": (0, 2)}
    assert summary(found)[0].split()[:6] == ["data", "3", "of", "10", "survived,", "30%"]
    assert "15 planted: 3 could not be imported" in summary(found)[-1] and "9 were left" in summary(found)[-1]
    assert told(found[0]) == ["SURVIVED  data/chat.py:1", "    - a", "    + b"]


def test_the_least_share_is_wilsons() -> None:
    # Wilson 1927, of 5 of 10 at 95 %: 0.2366 to 0.7634
    assert at_least(5, 10) == pytest.approx(0.2366, abs=5e-5)
    assert at_least(0, 10) == pytest.approx(0.0, abs=1e-12)


def test_a_night_fails_by_a_room_by_red_tests_or_by_nothing() -> None:
    most = round(100 * MOST)
    assert failures([night(most, 100 - most)]) == []  # by chance
    assert "data" in failures([night(100 * most, 10000 - 100 * most - 2000)])[0]
    assert "data" in failures([night(9, 1), night(0, 9, "runs/run.py")])[0]
    assert "red" in failures([night(0, 9), Examined("cli.py", [], trouble="red", red=True)])[0]
    assert failures([night(0, 9), Examined("cli.py", [], trouble="slow")]) == []
    assert failures([Examined("cli.py", [])]) == ["no mutant was planted"]


NIGHT = """
import sys
from pathlib import Path
from tests import mutants
from tests.generated_mutants import __main__ as night
mutants.ROOT, night.SLOW_IMPORTS = Path(sys.argv[1]), ()
for file in ("heard", "deaf", "torn"):
    print("code", night.main(["--seed", "1", "--workers", "1", "--files", file]))
"""


@pytest.mark.slow
def test_a_test_that_looks_notices_every_mutant_and_one_that_does_not_none(tmp_path: Path) -> None:
    cases = {
        "heard": "assert (moved(1, 3, 2), moved(3, 3, 2)) == (-2, 5)",
        "deaf": "assert moved",
        "torn": "assert not moved",
    }
    written = {
        "src/posttrain/__init__.py": "",
        "pyproject.toml": '[tool.pytest.ini_options]\nmarkers = ["model", "gpu", "nightly"]\n',
    }
    for name, claim in cases.items():
        written[f"src/posttrain/data/{name}.py"] = (
            "def moved(value, low, high):\n    return value - low if value < low else value + high\n"
        )
        written[f"tests/data/test_{name}.py"] = (
            f"from posttrain.data.{name} import moved\n\ndef test_it():\n    {claim}\n"
        )
    for path, text in written.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", NIGHT, str(tmp_path)], cwd=mutants.ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    heard, deaf, torn, _ = done.stdout.split("code ")
    assert "SURVIVED" not in heard and "0 of    5 survived" in heard
    assert deaf.startswith("0") and deaf.count("SURVIVED  data/deaf.py:2\n    - return value - low if") == 5
    assert torn.startswith("1") and "without a mutant" in torn
    assert done.stdout.endswith("code 1\n")
