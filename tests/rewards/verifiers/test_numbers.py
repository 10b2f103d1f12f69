import gzip
import json
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.errors import RewardError
from posttrain.rewards import NumberVerifier
from posttrain.rewards.verifiers import numbers
from posttrain.rewards.verifiers.number_grammar import arithmetic
from posttrain.rewards.verifiers.numbers import Number, final_number, parse_number
from posttrain.testing import check_gold, check_reward
from posttrain.types import Message, Task
from tests.rewards.episodes import episode, score, unguarded, value

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
        ("10^6", "1000000"),
        ("1.5 \\times 10^{3}", "1500"),
        ("2 1/2", "5/2"),
        ("2\u00bd", "5/2"),
        (r"\frac34", "3/4"),
        ("0,5", "0.5"),
        ("1'234", "1234"),
        ("\uff14\uff12\u200b", "42"),
        ("50 - 8 = 42 dollars per day", "42"),
        ("$9 \u00d7 2 = $18", "18"),
        ("**Answer:** 42", "42"),
        ("minus one thousand and one", "-1001"),
        ("six hundred million and seven", "600000007"),
        ("she has 42", "42"),
    ],
)
def test_one_number_is_read(text, expected):
    assert parse_number(text).value == Fraction(expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "none",
        "5 or 6",
        "5\n929",
        "5  929",
        "5\t929",
        "1,23",
        "1.234,5",
        "1,2,3",
        "3-5",
        "10^6^2",
        "0,500,000",
        "00,500",
        "\u00bd2",
        "2 3/2",
        "50 - 8 = 41",
        "41 + 1 = 42 = 43",
        "42 = 6*7",
        "5**2 = 25",
        "twenty twenty",
        "one or two",
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
        f"{'-' if number < 0 else ''}${number.copy_abs():,}",  # abs() rounds to a precision that reasoning-gym sets
    ):
        assert parse_number(text).value == Fraction(number)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("12+7=19, then 19-5 = 14.", "14"),
        ("12 and then 10 m2", None),
        ("12 rooms have 10 m2", "10"),
        ("41, then 42", None),
        ("41. 42", None),
        ("It is 41! 42", None),
        ("a. 41\nb. 42", None),
        ("x = 41, y = 42", None),
        ("42. Forty-three.", None),
        ("42. Just kidding.", None),
        ("No idea. 42", None),
        ("42 and a half", None),
        ("anything but 42", None),
        ("41 oder 42", None),
        ("\u4e0d\u662f42", None),
        ("x**42**", None),
        ("**42**ish", None),
        ("**72**", "72"),
        ("1. April: 48\n2. May: 24\n3. Total: 72", "72"),
        ("it is 1/2", "1/2"),
        ("the answer is **-7**.", "-7"),
        ("41 or 42", None),
        ("42 then 42!", None),
        ("19 - 5", None),
        ("19 -5", None),
        ("5, not 1,23", None),
        ("19 million", None),
        ("not 42", None),
        ("none", None),
        ("48 + 24 = 73", None),
        ("48 \u2013 24 = 24 times.", "24"),
        ("Is it 72?", None),
        ("It can't be 72.", None),
        ("It is 72. That is wrong.", None),
        ("The answer is 73. Thanks! 72", None),
        ("The answer is 73 [72]", None),
        ("70, 71, 72", None),
        ("from 70 to 72", None),
        ("see footnote 72", None),
        ("I am 72% sure.", None),
        ("f(72)", None),
        ("\u221a72", None),
        ("$10^{2}$", "100"),
        ("It falls to minus 5.", "-5"),
        ("7 minus 5", None),
        ("72, if it rains", None),
        ("If it rains on 3 days, then 72", "72"),
        ("<answer>72</answer>", "72"),
        ("9" * 5000, None),
        *((f"The answer is {said}", None) for said in (">=72", ">= $72$", "!= 72", "!72", "(-)72", "(-) 72", "neg 72")),
        *(
            (f"The answer is {said}", None)
            for said in ("another 72", "suppose 72", "try 72", "72 M", "72 G", "**72** T")
        ),
        *((f"The answer is {said}", None) for said in ("72 dz", "72 etc.", "72 approx.", "72 BC", "72 in debt")),
        ("The answer is 72 m", "72"),
        ("Great! The answer is = 72", "72"),
    ],
)
def test_the_last_number_of_a_text(text, expected):
    found = final_number(text)
    assert found == (expected and Number(Fraction(expected)))


NO_ANSWER = [
    *(
        "42...",
        "42..",
        "42\u2026",
        "- 42",
        "\u201342",
        "\u2013 42",
        "42 million",
        "42 thousand",
        "42k",
        "42 dozen",
        "half of 42",
        "42 squared",
    ),
    *("42 a", "42a", "42_s", "42 H", "42 A", "42S", "42 x m t"),
    *("42!", "<42", ">42", "~42", "not 42", "A1 B2 C3 42", "42 42", "42, 42", "41 42", "42 or so", "(42)", "42^2"),
    *("42\u00b2", "\u221a42", "42/0", "about 42", "42+", "42 is wrong", "it is not 42", "42 -", "= 41 = 42", "42 x 1"),
    *("42e9999", "4" * 500, "42 hundredths", "42 less than 84", "all but 42", "anything except 42", "never 42"),
]


@pytest.mark.parametrize("text", NO_ANSWER)
def test_what_is_no_answer_is_never_paid(text):
    question = "How many million dozen more than half of the apples, not less, are squared or thousand?"
    assert parse_number(text, question) is None


@given(
    st.integers(1, 10**6),
    st.sampled_from(["not {}", "{} or {}", "{} million", "{} dozen", "half of {}", "{}!", "{}^2", "<{}", "-{} + {}",
                     "{}; {}0", "if {}", "{} plus 0", "no {}", "{} thousandths", "either {}", "{}k",
                     "\u2013{}", "1/{}0/2"]),
    st.sampled_from(["{}", "the answer is {}", "**{}**", "x = {}", "${}$", "{}.", "so {} apples", '"{}"']),
)  # fmt: skip
def test_a_changed_number_is_never_paid_however_it_is_decorated(number, change, decoration):
    text = decoration.format(change.replace("{}", str(number)))
    assert parse_number(text, "How many apples are half?") is None


@pytest.mark.parametrize(
    "gold, answer, expected",
    [
        (42, "minus 42", 0.0),
        (42, "negative 42", 0.0),
        (-5, "minus 5", 1.0),
        (-5, "-5", 1.0),
        ("3/4", "3/4", 1.0),
        ("3/4", "0.75", 1.0),
        ("3/4", r"$\frac{3}{4}$", 1.0),
        (50, "50%", 1.0),
        (0.5, "50%", 1.0),
        (0.5, "5%", 0.0),
        ("50%", "50", 1.0),
        ("50%", "0.5", 1.0),
        ("50%", "5000%", 0.0),
        (1234, "1 234", 1.0),
        (1234, r"1\,234", 1.0),
        (1234, "1\u202f234 miles per hour", 1.0),
        (42, "42 apples", 1.0),
        (42, "42 pears", 0.0),
    ],
)
def test_signs_fractions_percent_and_units(gold, answer, expected):
    task = episode(f"#### {answer}", gold, question="How many apples?")
    (got,) = unguarded(NumberVerifier(), [task])
    assert got.value == expected


@pytest.mark.parametrize(
    "question, answer, expected",
    [
        ("How many dollars?", "42 cents", None),
        ("How many dollars?", "\u20ac42", None),
        ("How many cents?", "42 cents", 42),
        ("Janet's hours are 7. How many hours?", "42 minutes", None),
        ("How many hours or minutes?", "42 minutes", 42),
        ("How many?", "42M", None),
        ("How many?", "$42 cents", None),
        ("How many?", "$42 per day", 42),
        ("How many?", "42 m", 42),
        ("How much has Janet?", "Janet has 42", 42),
        ("How much has Janet?", "Nobody has 42", None),
        *(
            (f"{word} of them are sold. How many?", f"{word} is 42", None)
            for word in ("None", "Half", "Fifty", "Twice")
        ),
        *(
            (f"How many eggs are {word} sold?", f"42 {end}", None)
            for word in (
                "too",
                "not",
                "hundredfold",
                "fifty",
                "ninth",
                "cannot",
                "maximum",
                "none",
                "lakhs",
                "fiftieth",
            )
            for end in (word, f"eggs {word}")
        ),
        ("How many eggs does she sell?", "42 does she sell", None),
        ("How many eggs?", "42 how many", None),
        *(("How many eggs?", f"42 {end}", None) for end in ("of", "per", "eggs per", "eggs of")),
        *(("How many dollars or eggs?", said, None) for said in ("$42m", "$42 mm", "42m eggs", "42 m dollars", "42m$")),
        *(("How many?", said, None) for said in ("$42 kg", "Answer-42", "total-42")),
        *(("How many people?", said, None) for said in ("42 MM", "42 M people", "42 MM people")),
        ("How many eggs are left?", "42 eggs left", 42),
        ("How many years older?", "42 years older", 42),
        ("How many pounds?", "\u00a342 pounds", 42),
        ("How deep in meters is it?", "42 m deep", 42),
    ],
)
def test_a_unit_of_another_scale_than_the_question_names_is_not_read(question, answer, expected):
    assert parse_number(answer, question) == (expected and Number(Fraction(expected)))


def test_a_percent_below_one_is_left_open():
    got = score(NumberVerifier(), "#### 0.5%", 0.5)
    assert (got.value, got.unparsed) == (0.0, True)


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
    assert score(lenient, "<think>it is 42 here</think> I do not know", "42").unparsed
    assert score(lenient, "<think>\nit is 42\n</think>\nDone", "42").unparsed
    assert score(lenient, "#### 41 or 42", "42").unparsed  # there is an answer, and it is not one number
    assert value(lenient, "42 it is, and not 41", "42") == 0.0


def test_a_task_whose_answer_is_not_a_number_raises_and_names_the_task():
    for answer in (None, "many", "", "1 or 2"):
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
        final_number(text)
    assert time.monotonic() - start < 10


def test_conforms():
    episodes = [episode(c, 5, id=c) for c in ("#### 5", "#### 6", "#### $5.00", "none")]
    check_reward(NumberVerifier(), episodes)


@pytest.mark.skipif(not GSM8K.is_dir(), reason="the GSM8K files are not beside this checkout")
def test_every_gold_solution_of_gsm8k_scores_1():
    with gzip.open(GSM8K / "test-first500.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    tasks = [
        Task((Message("user", row["question"]),), row["answer"].split("####")[1], row["answer"], id=f"test-{i}")
        for i, row in enumerate(rows)
    ]
    assert len(tasks) == 500
    check_gold(NumberVerifier(), tasks)


def test_a_percent_sign_may_leave_it_open_whether_numbers_are_equal():
    pairs = (("50%", "0.5"), ("50%", "50"), ("0.5%", "0.5"))
    said = [[parse_number(text) for text in pair] for pair in pairs]
    assert [numbers.same_number(*pair) for pair in said] == [True, True, None]


def test_arithmetic_is_exact_and_nothing_else():
    assert arithmetic("2*(0.5 - 3/4)") == Fraction(-1, 2)
    assert arithmetic("2**9") is arithmetic("1/0") is None
