import doctest
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.rewards.verifiers import extraction
from posttrain.rewards.verifiers.extraction import (
    NOT_FOUND,
    AnswerIn,
    braced,
    extract,
    outside_reasoning,
    plain_characters,
    reasoning,
)

NAMES = get_args(AnswerIn)


@pytest.mark.parametrize(
    "completion, answer_in, expected",
    [
        ("<think>a</think> b ", "after_think", "b"),
        ("<think>a</think> b </think> c", "after_think", "c"),
        ("a</think>b", "after_think", "b"),  # the prompt opened it
        ("<think>a</think>  ", "after_think", None),
        ("no tags", "after_think", None),
        ("<answer>1</answer>", "answer", "1"),
        ("<answer> 1\n2 </answer> and so on", "answer", "1\n2"),
        ("<answer>1</answer> no: <answer>2</answer>", "answer", "2"),
        ("<answer>1<answer>2</answer>", "answer", "2"),
        ("<answer>1</answer><answer>2", "answer", "1"),
        ("<answer></answer>", "answer", None),
        ("1</answer>", "answer", None),
        ("</answer><answer>", "answer", None),
        ("<think><answer>1</answer></think>", "answer", None),
        ("<think><answer>1</answer></think><answer>2</answer>", "answer", "2"),
        ("<answer>1</answer><think>so far", "answer", "1"),
        ("<think>so far <answer>1</answer>", "answer", None),
        (r"\boxed{1}", "boxed", "1"),
        (r"\boxed{1} or \boxed{\frac{1}{2}} ok}", "boxed", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", "boxed", r"\{1, 2\}"),
        (r"\boxed{\}}", "boxed", r"\}"),
        (r"\boxed{a}b} \fbox{7}", "boxed", "7"),
        (r"\boxed{1} \boxed{\frac{1}{2}", "boxed", None),
        (r"\boxed{1\\", "boxed", None),
        (r"\boxed{\boxed{1}\boxed{2}}", "boxed", r"\boxed{1}\boxed{2}"),
        (r"\boxed{1}\boxed{2}", "boxed", "2"),
        (r"\boxed{ so \boxed{2}", "boxed", "2"),
        (r"\\boxed{2}", "boxed", "2"),
        (r"\boxed", "boxed", None),
        (r"\boxed {5}", "boxed", "5"),
        ("\\boxed\n{5}", "boxed", "5"),
        (r"\fbox { \frac {1}{2} }", "boxed", r"\frac {1}{2}"),
        (r"\boxed{4} \boxed {5}", "boxed", "5"),
        (r"\boxed {a \boxed {5}}", "boxed", r"a \boxed{5}"),
        (r"$\boxed 5$", "boxed", "5"),
        (r"$\boxed5$", "boxed", "5"),
        (r"\boxed x.", "boxed", "x"),
        (r"\boxed 5 \text{ cm}", "boxed", "5"),
        (r"\boxed{\boxed 5}", "boxed", r"\boxed{5}"),
        (r"\boxed{4} \boxed 5, so", "boxed", "5"),
        (r"\boxedx", "boxed", None),  # another command
        # TeX boxes less than is meant: no answer, nor is the box before it
        (r"\boxed{3} \boxed 57", "boxed", None),
        (r"\boxed{3} \boxed 5 7", "boxed", None),
        (r"\boxed{3} \boxed 5.7", "boxed", None),
        (r"\boxed{3} \boxed 5x", "boxed", None),
        (r"\boxed{3} \boxed 5^2", "boxed", None),
        (r"\boxed{3} \boxed -5", "boxed", None),
        (r"\boxed{3} \boxed .5", "boxed", None),
        (r"\boxed{3} \boxed \frac{1}{2}", "boxed", None),
        (r"\boxed{3} \boxed x_1", "boxed", None),
        (r"\boxed{3} \boxed 5{,}000", "boxed", None),
        (r"\boxed{3}, in \boxed as asked", "boxed", "3"),  # a word about the command
        (r"<think>\boxed{1}</think> 2", "boxed", None),
        ("a\n#### 42\nb", "hashes", "42"),
        ("#### 1\n#### 2", "hashes", "2"),
        ("####", "hashes", None),
        ("### 42", "hashes", None),
        ("<think>a</think> 4 ", "outside_think", "4"),
        (" 4 ", "outside_think", "4"),
        ("<think>a 4", "outside_think", None),
        (" a <think>b</think> ", "text", "a <think>b</think>"),
        ("  ", "text", None),
    ],
)
def test_extract(completion, answer_in, expected):
    assert extract(completion, answer_in) == expected


@given(st.text(alphabet="<>/think answer\\boxed{}#\n12", max_size=60), st.sampled_from(NAMES))
def test_whatever_is_found_is_stripped_not_empty_and_from_the_completion(completion, answer_in):
    found = extract(completion, answer_in)
    assert found is None or (found and found == found.strip() and found in braced(completion))


@given(st.text(alphabet="ab<>/think \n", max_size=20), st.text(alphabet="abc123 {}", max_size=20).map("{}1".format))
def test_a_well_formed_answer_is_found_whatever_stands_before_it(before, answer):
    completion = f"{before.replace('<think>', '')}</think><answer>{answer}</answer>"
    assert extract(completion, "answer") == answer.strip()


def test_a_hostile_completion_takes_no_time():
    for hostile in (
        "<answer>" * 100_000,
        r"\boxed{" * 100_000,
        r"\boxed " * 100_000,
        "\\boxed" + " " * 400_000,
        "####" * 100_000,
        "<think>" * 100_000,
        "{" * 500_000,
    ):
        for answer_in in NAMES:
            extract(hostile, answer_in)


def test_reasoning_and_what_is_outside_it():
    assert reasoning("<think>a</think>b") == "a"
    assert reasoning("a</think>b</think>c") == "a b"
    assert reasoning("<think>a") == "a"
    assert reasoning("a") == "a"
    assert outside_reasoning("<think>a</think>b") == "b"
    assert outside_reasoning("b<think>a") == "b"
    assert outside_reasoning("b") == "b"


def test_every_way_says_what_it_did_not_find():
    assert len({NOT_FOUND[answer_in] for answer_in in NAMES}) == len(NAMES) == 6


def test_forms_of_characters_are_one_and_a_turned_direction_is_none():
    assert plain_characters("\uff14\uff12\u200b") == "42" and plain_characters("24\u202e") is None


def test_docstring_examples_run():
    assert doctest.testmod(extraction).failed == 0
