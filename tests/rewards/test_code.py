"""Completions judged by tests and by what programs print; what is refused before sampling."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import RewardError, UserError
from posttrain.rewards import TIME_LIMITS, CodeVerifier, parse_rewards
from posttrain.rewards.code import program_in
from posttrain.types import Episode, Message, Score, Task

LISTED = {"test_list": ["assert add(1, 2) == 3", "assert add(-1, 1) == 0", "assert add('a', 'b') == 'ab'"]}
PROMPT = 'import math\n\ndef twice(x):\n    return 2 * x\n\ndef area(r):\n    """Area of a disc."""\n'
CHECKED = {
    "entry_point": "area",
    "test": (
        "def check(candidate):\n    assert candidate(0) == 0\n"
        "    assert candidate(1) == math.pi == twice(math.pi) / 2\n"
    ),
}
PAIRS = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", ["7"]]}


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    TIME_LIMITS.keep_in(None)


def task(data: dict[str, Any], prompt: str = "Write it.") -> Task:
    return Task((Message("user", prompt),), metadata=data, id="t-1")


def scores(data: dict[str, Any], *completions: str, prompt: str = "Write it.", **options: Any) -> list[Score]:
    one = task(data, prompt)
    episodes = [Episode(one, (*one.prompt, Message("assistant", text))) for text in completions]
    return asyncio.run(CodeVerifier(**options).score_episodes(episodes))


def refusal(data: dict[str, Any], prompt: str = "Write it.") -> str:
    (why,) = asyncio.run(CodeVerifier().unreadable([task(data, prompt)]))
    return why


def test_the_last_fenced_block_is_the_program_else_all_of_it() -> None:
    assert program_in("a\n```\nx = 1\n```\nb\n```py\nx = 2\n```\nc") == "x = 2\n"
    assert program_in("```python\nx = 3") == "x = 3"
    assert program_in("x = 4") == "x = 4"
    assert program_in("````md\n```\nx = 5\n```\n````") == "```\nx = 5\n```\n"


def test_all_tests_or_the_share_of_them() -> None:
    half = "Here:\n```python\ndef add(a, b): return a + b if a > 0 else 9\n```"
    right, wrong = scores(LISTED, "```python\ndef add(a, b): return a + b\n```", half)
    assert (right.value, right.explanation, right.parsed) == (1.0, "", "def add(a, b): return a + b\n")
    assert wrong.value == 0.0 and not wrong.unparsed
    assert wrong.explanation == (
        "1 of 3 tests passed; test 2, assert add(-1, 1) == 0: returned 9; test 3, assert add('a', 'b') == 'ab': "
        "raised TypeError: '>' not supported between instances of 'str' and 'int'"
    )
    (share,) = scores(LISTED, half, partial_credit=True)
    assert share.value == pytest.approx(1 / 3)


def test_a_continuation_and_a_whole_function_of_a_prompt_that_is_code() -> None:
    whole = "```python\ndef area(r): return math.pi * r * r\n```"
    cheat = "```python\ndef twice(x): return x * 1\ndef area(r): return 0\n```"
    body, doubled, cheated = scores(CHECKED, "    return math.pi * r ** 2\n", whole, cheat, prompt=PROMPT)
    assert (body.value, doubled.value, cheated.value) == (1.0, 1.0, 0.0)
    assert cheated.explanation.endswith("returned 0")


def test_a_helper_of_the_prompt_is_the_prompts_own() -> None:
    data = {"entry_point": "area", "test": "def check(candidate):\n    assert twice(candidate(1)) == 8\n"}
    honest, cheat = scores(
        data, "    return 4\n", "```\ndef twice(x): return 8\ndef area(r): return 0\n```", prompt=PROMPT
    )
    assert (honest.value, cheat.value) == (1.0, 0.0)


def test_a_stub_in_the_prompt_is_the_function_that_tests_of_a_list_call() -> None:
    data = {"test_list": ["assert area(2) == twice(2)"]}
    stub = PROMPT + "\ndef other(x):\n    ...\n"
    right, wrong = scores(data, "def area(r): return 4", "def twice(x): return 0\ndef area(r): return 0", prompt=stub)
    assert (right.value, wrong.value) == (1.0, 0.0)
    assert scores(LISTED, "def add(a, b): return a + b", prompt="Add")[0].value == 1.0  # a name, for Python


def test_a_function_may_have_the_name_of_a_builtin_and_tests_use_modules_without_import() -> None:
    data = {"test_list": ["assert sum(1, 2) == 3", "assert sum(2, 2) == 4"]}
    assert scores(data, "def sum(a, b): return a + b")[0].value == 1.0
    data = {"test_list": ["assert math.isclose(half(3), 1.5)"]}
    right, cheat = scores(data, "def half(x): return x / 2", "class math:\n    isclose = max\ndef half(x): return 1")
    assert (right.value, cheat.value) == (1.0, 0.0)


def test_the_setup_runs_between_code_and_tests() -> None:
    setup = "import math\nclass Node:\n    def __init__(self, x): self.x = x\nroot = Node(3)\nexpected = 3\n"
    data = {
        "test_setup_code": setup,
        "test_list": ["assert top(root) == expected", "assert top(Node(4)) == math.floor(4.5)"],
    }
    cheat = "expected = 0\ndef top(n): return expected"
    right, wrong = scores(data, "def top(n): return n.x", cheat)
    assert (right.value, wrong.value) == (1.0, 0.0), (right, wrong)


def test_programs_by_input_and_output() -> None:
    right = "a, b = map(int, input().split())\nprint(a + b)"
    found = scores(PAIRS, right, "print(3)", "print(input(1 / 0))", right + "\nraise SystemExit(2)")
    assert [score.value for score in found] == [1.0, 0.0, 0.0, 0.0]
    assert found[1].explanation == "1 of 2 tests passed; test 2, input '3 4\\n': printed '3\\n'"
    assert "the program ended with exit status 1: ZeroDivisionError: division by zero" in found[2].explanation
    assert "the program ended with exit status 2" in found[3].explanation
    (share,) = scores(PAIRS, "print(3)", partial_credit=True)
    assert share.value == 0.5


def test_what_is_no_python_is_unparsed() -> None:
    prose, null = scores(LISTED, "I cannot.", "x = '\0'")
    assert (prose.value, prose.unparsed, prose.explanation) == (0.0, True, "not Python: invalid syntax, line 1")
    assert null.unparsed and scores(PAIRS, "print(")[0].unparsed


def test_an_explanation_is_one_line_of_printable_characters() -> None:
    (score,) = scores(LISTED, "def add(a, b): raise ValueError('\\x1b[31m<b>\\n\\u202e')")
    assert score.explanation.isprintable() and "\\x1b[31m" in score.explanation


def test_a_verdict_of_the_wall_clock_is_kept_and_used_again(tmp_path: Path) -> None:
    sleeps = "import time\ndef add(a, b): time.sleep(9)"
    with TIME_LIMITS.kept_in(tmp_path):
        (first,) = scores(LISTED, sleeps, wall_s=0.7)
        assert first.explanation == "verifier timed out: it did not finish within 0.7 s" and first.unparsed
        assert len((tmp_path / "timeouts.jsonl").read_text().splitlines()) == 1
        assert scores(LISTED, sleeps, wall_s=0.7, sandbox="none") == [first]  # without running it
        (busy,) = scores(LISTED, "def add(a, b):\n    while 1: pass", cpu_s=0.3)
        assert busy.explanation == "0 of 3 tests passed; the others: the solution used more than 0.3 CPU seconds"
        assert len((tmp_path / "timeouts.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({}, "finds no tests: it needs a column 'test_list', or 'test' and 'entry_point', or 'inputs' and 'outputs'"),
        ({"test_list": []}, "finds no tests"),
        ({"test": "assert f(1)"}, "finds no tests"),
        ({"test_list": ["assert f(1) = 2"]}, "finds that test 1, 'assert f(1) = 2', does not compile: invalid syntax"),
        (
            {"test_list": ["assert f(1) == 2", "assert True"]},
            "finds that test 2 calls nothing of a solution: 'assert True'",
        ),
        ({"test_list": ["assert f == 2"]}, "finds that test 1 calls nothing of a solution"),
        ({"test_list": [1]}, "finds a 'test_list' that is no list of texts"),
        ({"test": "def check(f):\n    pass", "entry_point": "g"}, "finds that 'check' of its 'test' never calls"),
        ({"test": "def check(f:", "entry_point": "g"}, "finds that 'test' does not compile"),
        ({"test_list": ["f(1)"], "test_setup_code": "x ="}, "finds that the setup of the tests does not compile"),
        ({"inputs": ["1"], "outputs": []}, "finds 1 'inputs' and 0 'outputs'; expected as many"),
        ({"inputs": "1", "outputs": "1"}, "finds 'inputs' and 'outputs' that are not two lists"),
    ],
)
def test_a_row_whose_tests_cannot_be_run_is_refused_before_sampling(data: dict[str, Any], why: str) -> None:
    assert refusal(data).startswith(f"reward 'code' {why}"), refusal(data)
    assert refusal(LISTED) == refusal(CHECKED, PROMPT) == refusal(PAIRS) == ""
    with pytest.raises(RewardError, match="reward 'code' finds"):
        scores(data, "x = 1")


def test_a_machine_without_isolation_is_refused_before_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise UserError("no bubblewrap")

    monkeypatch.setattr("posttrain.rewards.code.refuse_without_isolation", refuse)
    with pytest.raises(UserError, match="no bubblewrap"):
        refusal(LISTED)
    assert asyncio.run(CodeVerifier(sandbox="none").unreadable([task(LISTED)])) == [""]


def test_it_is_a_reward_by_name_with_options() -> None:
    rewards = parse_rewards("code?partial_credit=true&cpu_s=2&sandbox=none=0.5")
    ((reward, weight),) = rewards.parts
    assert reward == CodeVerifier(partial_credit=True, cpu_s=2, sandbox="none") and weight == 0.5
