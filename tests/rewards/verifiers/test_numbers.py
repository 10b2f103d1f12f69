import asyncio
import doctest
import gzip
import json
import time
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.errors import RewardError
from posttrain.rewards import NumberVerifier, check_gold, check_reward
from posttrain.rewards.verifiers import numbers
from posttrain.rewards.verifiers.numbers import find_numbers, parse_number
from posttrain.types import Message, Task
from tests.rewards.episodes import episode, score, value

GSM8K = Path(__file__).parents[4] / "shared" / "data" / "gsm8k"


@pytest.mark.parametrize(
    "text, expected",
    [
        ("42", "42"),
        ("42.", "42"),
        ("-42", "-42"),
        ("+42", "42"),
        ("\u221242", "-42"),
        ("$42", "42"),
        ("-$42.50", "-42.50"),
        ("$-42", "-42"),
        (r"\$42", "42"),
        ("€ 42", "42"),
        ("1,234,567.8", "1234567.8"),
        ("1{,}234", "1234"),
        (".5", ".5"),
        ("50%", "50"),
        ("42 dollars", "42"),
        ("42kg", "42"),
        ("10 m2", "10"),
        ("x = 7", "7"),
        ("**7**", "7"),
        ("007", "7"),
        ("1e3", "1000"),
    ],
)
def test_one_number_is_read(text, expected):
    assert parse_number(text) == Decimal(expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "none",
        "5 or 6",
        "1,23",
        "1.234,5",
        "1,2,3",
        "1/2",
        "3-5",
        "10^6",
        "1.2.3",
        "1,234,56",
        "٤",
        "5 x 10",
        "1e99999",
    ],
)
def test_no_number_or_several_are_not_one(text):
    assert parse_number(text) is None


@given(st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**12), max_value=10**12))
def test_every_way_of_writing_a_number_reads_the_same(number):
    for text in (
        f"{number}",
        f"{number:,}",
        f"{number}.",
        f"it is {number:,} dollars",
        f"{'-' if number < 0 else ''}${abs(number):,}",
    ):
        assert parse_number(text) == number


def test_all_numbers_in_order():
    assert find_numbers("12+7=19, then 19-5 = 14. Not m2, not 1,23.") == [12, 7, 19, 19, 5, 14]


@pytest.mark.parametrize("answer", ["42", 42, 42.0, "42.00", "$42", "6 times 7\n#### 42"])
def test_right_and_wrong(answer):
    right, wrong = score(NumberVerifier(), "so\n#### 42", answer), score(NumberVerifier(), "so\n#### 24", answer)
    assert (right.value, right.parsed, right.unparsed) == (1.0, "42", False)
    assert (wrong.value, wrong.parsed, wrong.unparsed) == (0.0, "24", False)
    assert wrong.explanation.startswith("expected 42")


def test_decimals_are_compared_as_decimals():
    assert value(NumberVerifier(), "#### 0.10", ".1") == 1.0
    assert value(NumberVerifier(), "#### 0.1", "0.1000000000000000000001") == 0.0
    assert value(NumberVerifier(), "#### 9007199254740993", "9007199254740992") == 0.0


@pytest.mark.parametrize(
    "completion", ["the answer is 42", "####", "#### many", "#### 41 or 42", "<think>#### 42</think>"]
)
def test_no_single_number_where_it_belongs_is_unparsed_even_if_it_is_in_the_text(completion):
    got = score(NumberVerifier(), completion, "42")
    assert (got.value, got.unparsed) == (0.0, True) and got.explanation


def test_the_last_number_counts_only_when_asked_for_and_only_outside_the_reasoning():
    lenient = NumberVerifier(last_number=True)
    assert value(lenient, "6 times 7 is 42", "42") == 1.0
    assert score(lenient, "<think>42</think> I do not know", "42").unparsed
    assert score(lenient, "#### 41 or 42", "42").unparsed  # there is an answer, and it is not one number
    assert value(lenient, "42 it is, and not 41", "42") == 0.0


def test_a_task_whose_answer_is_not_a_number_raises_and_names_the_task():
    for answer in (None, "forty-two", "", "1 or 2"):
        with pytest.raises(RewardError, match=r"'numbers' needs a number as task.answer; task 't'"):
            score(NumberVerifier(), "#### 42", answer)


def test_a_hostile_completion_takes_no_time():
    hostile = (
        "1" * 50_000 + ",2",
        "1," * 50_000,
        "a" * 50_000,
        "1.1" * 30_000,
        "-" * 50_000,
        "$ " * 50_000,
        "111,111" * 10_000,
    )
    start = time.monotonic()
    for text in hostile:
        parse_number(text + " 7")
        find_numbers(text)
    assert time.monotonic() - start < 10


def test_conforms():
    episodes = [episode(c, 5, id=c) for c in ("#### 5", "#### 6", "#### $5.00", "none")]
    assert asyncio.run(check_reward(NumberVerifier(), episodes)) == []


@pytest.mark.skipif(not GSM8K.is_dir(), reason="the GSM8K files are not beside this checkout")
def test_every_gold_solution_of_gsm8k_scores_1():
    with gzip.open(GSM8K / "test-first500.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    tasks = [
        Task((Message("user", row["question"]),), row["answer"].split("####")[1], row["answer"], id=f"test-{i}")
        for i, row in enumerate(rows)
    ]
    assert len(tasks) == 500
    assert asyncio.run(check_gold(NumberVerifier(), tasks)) == []


def test_docstring_examples_run():
    assert doctest.testmod(numbers).failed == 0
