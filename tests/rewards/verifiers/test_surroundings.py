import time

import pytest

from posttrain.rewards import ChoiceVerifier, NumberVerifier
from posttrain.rewards.verifiers.extraction import AnswerIn, around, taken_back
from posttrain.types import Score
from tests.rewards.episodes import episode, unguarded

PLACES: dict[AnswerIn, str] = {"hashes": "#### 42", "answer": "<answer>42</answer>", "boxed": r"$\boxed{42}$"}
LETTERS: dict[AnswerIn, str] = {"answer": "<answer>B</answer>", "boxed": r"$\boxed{B}$"}


def number(completion: str, answer_in: AnswerIn) -> Score:
    task = episode(completion, 42, question="How many eggs does she sell?")
    return unguarded(NumberVerifier(answer_in=answer_in), [task])[0]


def letter(completion: str, answer_in: AnswerIn) -> Score:
    task = episode(completion, "B", question="Where?\nA) London\nB) Paris\nC) Rome")
    return unguarded(ChoiceVerifier(answer_in=answer_in), [task])[0]


TAKEN_BACK = [
    *("Not {}", "It is not {}", "The answer is not\n{}", "The answer is about {}", "Maybe {}", "It is more than {}"),
    *("The wrong answer would be {}", "If it rains: {}", "My friend said {}", "You said: {}", "I doubt it is {}"),
    *("<!-- {}\n-->", "<del>{}\n</del>", "~~\n{}\n~~", "The format is {}"),
    *("{}\nNo wait, that is wrong.", "{}\nWait, actually not.", "{}\n(not sure)", "{}\nJust kidding", "{}\n?"),
    *("{}\nor 43", "{}\nmillion", "{}\n, maybe", "{}\nIs that right?", "{}\n<think>Let me see.", "{}\n<answer>"),
]


@pytest.mark.parametrize("answer_in", PLACES)
@pytest.mark.parametrize("text", TAKEN_BACK)
def test_an_answer_that_its_surroundings_take_back_is_unparsed(text, answer_in):
    assert number(text.replace("{}", PLACES[answer_in]), answer_in).unparsed


@pytest.mark.parametrize("answer_in", LETTERS)
@pytest.mark.parametrize("text", [*TAKEN_BACK, "{}\nC", "{}\nThe answer is C", "{}, C", "{}\nI choose C"])
def test_a_letter_that_its_surroundings_take_back_is_unparsed(text, answer_in):
    assert letter(text.replace("{}", LETTERS[answer_in]), answer_in).unparsed


KEPT = [
    *("{}", "She does not sell 8 of 50. So\n{}", "It is not 41.\n{}", "The final answer is\n{}", "<s>\n{}\n</s>"),
    *("{}\n", "```\n{}\n```", "{}\nShe eats the others, which are not sold.", "{}\n\nQuestion: What is wrong?\nNot 7."),
    *("{}\n\n### Human: Wait, no.", "If she sells 8, then 42.\n{}"),
]


@pytest.mark.parametrize("text", KEPT)
def test_what_stands_around_an_answer_otherwise_does_not_matter(text):
    for answer_in, place in PLACES.items():
        assert number(text.replace("{}", place), answer_in).value == 1.0
    for answer_in, place in LETTERS.items():
        assert letter(text.replace("{}", place), answer_in).value == 1.0


@pytest.mark.parametrize(
    "other", ["{}\n43", "{}\n43 eggs", "{}\nAs we saw, the answer is 43.", "{}\nThe answer is forty-three."]
)
def test_another_number_after_an_answer_leaves_it_open(other):
    for answer_in, place in PLACES.items():
        assert number(other.replace("{}", place), answer_in).unparsed
        assert number(other.replace("{}", place).replace("43", "42").replace("three", "two"), answer_in).value == 1.0


def test_of_two_answers_in_a_line_neither_counts_and_of_two_lines_the_last():
    for answer_in, place in PLACES.items():
        assert number(f"{place.replace('42', '41')} {place}", answer_in).unparsed
        assert number(f"{place} {place}", answer_in).value == 1.0
        assert number(f"{place.replace('42', '41')}\n{place}", answer_in).value == 1.0
    for answer_in, place in LETTERS.items():
        assert letter(f"{place.replace('B', 'A')} {place}", answer_in).unparsed
        assert letter(f"{place.replace('B', 'A')}\n{place}", answer_in).value == 1.0


@pytest.mark.parametrize(
    "text",
    [
        *(r"x \ne {}", "-{}", "2{}", "1/{}", "< {}", r"\sqrt{{}}", r"\frac{{}}{2}", "\u2248 {}"),
        *("{}^2", "{}!", r"{}\%", "{}/2", "{} - 1", r"{} \times 2", "{}\u00b2", "{}'"),
    ],
)
def test_a_box_that_is_a_part_of_a_formula_is_unparsed(text):
    assert number(text.replace("{}", r"\boxed{42}"), "boxed").unparsed


def test_hostile_surroundings_take_no_time():
    noise = ("\n" * 99_999, "\nq" + " " * 99_999, "(" * 99_999, "if " * 33_333, ". if" * 25_000, "~~" * 50_000)
    start = time.monotonic()
    for answer_in, place in PLACES.items():
        for text in noise:
            number(text + place + "\n" + text, answer_in)
    assert time.monotonic() - start < 10


def test_what_stands_around_an_answer_is_its_text():
    assert around("It is\n#### 42\nThe end", "hashes", "42") == ("It is\n", "\nThe end")
    assert around("So <answer>B</answer>.", "answer", "B") == ("So ", ".")


@pytest.mark.parametrize(
    ("before", "after", "back"),
    [
        ("It is not ", "", True), ("It is not 41. So ", "", False), ("", "Wait, no.", True), ("", "or 43", True),
        ("", "The others are not sold.", False),
    ],
)  # fmt: skip
def test_an_answer_is_taken_back_by_what_is_said_of_it(before, after, back):
    assert taken_back(before, after) is back
