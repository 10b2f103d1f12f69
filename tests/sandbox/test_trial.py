"""A solution in one box and its tests in another: what passes between them, and what does not."""

import pytest

from posttrain.sandbox import Limits, Stop, TestResult, Trial, try_solution

PASSED = TestResult(True, "")


def told(code: str, *tests: str, names: str = "f", **options: object) -> list[str]:
    """Of each test "", or why it failed."""
    trial = try_solution([code], tests, names.split(), **options)  # pyright: ignore[reportArgumentType]
    return [result.why if not result.passed else "" for result in trial.results]


def test_each_test_has_a_verdict_and_a_reason() -> None:
    trial = try_solution(["def f(x): return x + 1"], ["assert f(1) == 2", "assert f(2) == 4", "f([1])"], ["f"])
    assert trial == Trial(
        (
            PASSED,
            TestResult(False, "returned 3"),
            TestResult(False, 'raised TypeError: can only concatenate list (not "int") to list'),
        ),
        None,
    )


@pytest.mark.parametrize(
    "value",
    [
        *(
            "None",
            "True",
            "-7",
            "2**70",
            "1e-300",
            "float('inf')",
            "'\\ud800\\n'",
            "b'\\x00'",
            "bytearray(b'a')",
            "1j",
            "range(1, 9, 2)",
        ),
        *("[1, (2, {3: frozenset({4})})]", "{(1, 2): [3]}", "set()", "int", "ValueError"),
        *("__import__('collections').Counter('aab')", "__import__('collections').OrderedDict(a=1)"),
        *(
            "__import__('collections').deque([1])",
            "__import__('decimal').Decimal('1.10')",
            "__import__('fractions').Fraction(1, 3)",
        ),
        "__import__('datetime').datetime(2020, 1, 2, 3)",
    ],
)
def test_plain_values_arrive_as_they_are_in_both_directions(value: str) -> None:
    test = f"value = {value}\ngot = f(value)\nassert type(got) is type(value) and got == value and g() == value"
    assert told(f"def f(x):\n    assert x == {value}, x\n    return x\ndef g(): return {value}", test, names="f g") == [
        ""
    ]


def test_other_values_stay_and_work_from_there() -> None:
    code = """
class Stack:
    def __init__(self): self.items = []
    def push(self, x): self.items.append(x); return self
    def __len__(self): return len(self.items)
    def __getitem__(self, n): return self.items[n]
def squares():
    n = 0
    while True: yield n * n; n += 1
def adder(n): return lambda x: x + n
"""
    tests = (
        "s = Stack()\ns.push(1).push([2])\n"
        "assert len(s) == 2 and s[1] == [2] and list(s) == [1, [2]] and s.items[0] == 1",
        "a = Stack()\na.top = 5\nassert a.top == 5 and a == a and a != Stack()",
        "import itertools\nassert list(itertools.islice(squares(), 4)) == [0, 1, 4, 9]",
        "assert adder(2)(3) == 5",
        "s = squares()\nnext(s)\nassert next(s) == 1 and sum(Stack().push(4)) == 4",
        "assert apply(lambda x: x * 2, [1, 2]) == [2, 4]",
    )
    code += "def apply(g, xs): return [g(x) for x in xs]\n"
    assert told(code, *tests, names="Stack squares adder apply") == [""] * 6


def test_arguments_changed_in_place_are_seen_only_where_nothing_is_returned() -> None:
    test = "a, b = [3, 1], {}\nf(a, b)\nassert (a, b) == ([1, 3], {1: 2})"
    assert told("def f(a, b): a.sort(); b[1] = 2", test) == [""]
    assert told("def f(a, b): a.sort(); b[1] = 2; return a", test) == ["returned [1, 3]"]


def test_exceptions_arrive_by_their_builtin_name() -> None:
    test = (
        "try:\n    f(0)\nexcept ZeroDivisionError as error:\n"
        "    assert 'by zero' in str(error)\nelse:\n    assert False"
    )
    assert told("def f(x): return 1 / x", test) == [""]
    assert told("class Mine(KeyError): pass\ndef f(x): raise Mine('no')", "try: f(1)\nexcept KeyError: pass") == [""]
    assert told("class Mine(Exception): pass\ndef f(x): raise Mine('no')", "f(1)") == ["raised Mine: no"]


def test_a_test_that_expects_any_exception_is_not_passed_by_a_process_that_ends() -> None:
    test = "try: f(1)\nexcept Exception: pass\nexcept BaseException: pass"
    assert told("import os\ndef f(x): os._exit(0)", test, "f(2)") == ["the solution ended with exit status 0"] * 2


def test_what_is_trusted_stays_with_the_tests_and_what_is_shared_goes_to_the_solution() -> None:
    code = "def helper(x): return 7\ndef f(x): return Node(x)"
    shared, trusted = "class Node:\n    def __init__(self, x): self.x = x", "def helper(x): return x.x"
    assert told(
        code, "assert helper(f(3)) == 3", "assert helper(Node(4)) == 4", names="f Node", shared=shared, trusted=trusted
    ) == ["", ""]


def test_a_limit_fails_the_tests_behind_it_and_is_told() -> None:
    limits = Limits(cpu_s=0.3, wall_s=20)
    trial = try_solution(
        ["def f(x):\n    while x: pass\n    return x"], ["assert f(0) == 0", "f(1)", "f(0)"], ["f"], limits=limits
    )
    late = TestResult(False, "the solution used more than 0.3 CPU seconds")
    assert trial == Trial((PASSED, late, late), Stop.CPU)
    sleeps = try_solution(["import time\ndef f(x): time.sleep(9)"], ["f(1)"], ["f"], limits=Limits(wall_s=1))
    assert sleeps == Trial((TestResult(False, "the solution did not finish within 1 s"),), Stop.WALL)


def test_a_name_that_is_missing_and_a_setup_that_fails_are_told() -> None:
    assert told("g = 1", "f(1)") == ["raised NameError: the solution does not define f"]
    assert told("f = len", "f('')", trusted="1 / 0") == [
        "the setup of the tests raised ZeroDivisionError: ZeroDivisionError('division by zero')"
    ]


def test_what_a_test_cannot_give_is_told_as_the_tests_own_fault() -> None:
    assert told("def f(x): return x", "f(object())")[0].startswith(
        "the test raised Unsuitable: 'a test gives the solution a object"
    )
