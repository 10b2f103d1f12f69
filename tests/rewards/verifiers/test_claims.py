import doctest
from fractions import Fraction

import pytest

from posttrain.rewards.verifiers import units
from posttrain.rewards.verifiers.number_grammar import Number
from posttrain.rewards.verifiers.prose import final_formula, final_number

QUESTION = "Natalia sold clips to 48 friends in April and half as many in May. How many clips did she sell altogether?"


@pytest.mark.parametrize("number", ["72", "**72**", "72 clips", "$72$"])
@pytest.mark.parametrize(
    "text",
    [
        *("You told me {}.", "My teacher believes {}.", "According to Bob, {}.", "Bob's answer is {}."),
        *("The naive answer is {}.", "A common answer is {}.", "An answer is {}.", "My first answer was {}."),
        *("Initially {}.", "It used to be {}.", "It seems to be {}.", "I suspect {}.", "I refuse to answer {}."),
        *("The upper bound is {}.", "The maximum is {}.", "As many as {}.", "In excess of {}.", "{} tops."),
        *(
            "{} at most.",
            "{} and counting.",
            "{}, presumably.",
            "{}, to be confirmed.",
            "{} (estimated).",
            "{} in hex.",
        ),
        *("{} is a trap.", "{} is bogus.", "{} is one of the answers.", "{} was the answer.", "{} seems off."),
        *(
            "Room {}.",
            "Eq. {}",
            "Fig. {}",
            "Psalm {}.",
            "Draft: {}",
            "Teacher: {}",
            "Lower bound: {}",
            "Eliminated: {}",
        ),
        *("mindestens {}", "weniger als {}", "presque {}", "menos de {}", "niet {}", "forse {}", "\u00fcber {}"),
        *("\u043f\u043e\u0447\u0442\u0438 {}", "peut-\u00eatre {}", "{} Millionen", "{} \u5de6\u53f3"),
        *("73 (was {}).", "* 73\n* {}", "(a) 73\n(b) {}", "A: 73\nB: {}", "x = 73\ny = {}", "73; {}.", "73\n{}"),
        *("The answer is seventy-three. There are {} of them.", "I am {} years old.", "Call me at {}."),
        *("{} minus one.", "{} off.", "{} odd.", "{} plus."),
        *("It is {}, per Bob.", "It is {}, ignoring the boxes.", "Written down somewhere yesterday: {}"),
        *("Wikipedia has {}.", "Some people get {}.", "The code is {}.", "The checksum is {}.", "Running total: {}"),
        *(
            "It is {}. Add one.",
            "It is {}. Let me check.",
            "It is {}. Oops.",
            "It is {}. In thousands.",
            "Fake total: {}",
        ),
        *(
            "It is {}, plus one.",
            "It is {}, less the lost ones.",
            "It is {}, in dozens.",
            "Far from {}.",
            "It is n't {}.",
        ),
    ],
)
def test_a_number_that_is_said_as_something_else_is_no_answer(text, number):
    assert final_number(text.replace("{}", number), QUESTION) is None


@pytest.mark.parametrize(
    "text",
    [
        *(
            "72 is the answer.",
            "72 is what she sold in April and May.",
            "Mrs. Natalia sold 72 clips.",
            "Total clips: 72",
        ),
        *("Hence 72.", "Natalia sold 72.", "Altogether: **72**", "In May she sold 24 clips.\nAltogether: 72 clips"),
        *("In all she sold 96 \u2013 24 = 72 clips.", "48/2 = 24. 48 + 24 = 72.", "She has 96 - 24 = 72 remaining."),
        *("April: 48\nMay: 24\nTotal: 72", "The final answer is 72.", "Our answer is 72.", "Grand total of clips: 72"),
        *(
            "Adding both gives 72.",
            "The number of clips is 72.",
            "It is 72, and that is all.",
            "It is 72. She sold all.",
        ),
    ],
)
def test_a_number_that_is_said_as_what_was_asked_for_is_read(text):
    assert final_number(text, QUESTION) == Number(Fraction(72))


def test_what_the_question_asks_for_is_no_hedge():
    assert final_number("The maximum is 72.", "What is the maximum?") == Number(Fraction(72))
    assert final_number("Die L\u00f6sung ist 72.", "Was ist die L\u00f6sung f\u00fcr x?") == Number(Fraction(72))


def test_docstring_examples_run():
    assert doctest.testmod(units).failed == 0


def test_units_are_common_ones_and_words_of_the_question():
    assert units.is_unit(" eggs", "How many eggs?")
    assert not units.is_unit(" cents", "How many dollars?") and not units.is_unit(" million", "")


def test_of_two_formulas_neither_is_the_last():
    assert final_formula(r"So $x^2 = 4$. The answer is $2$.") == "2"
    assert final_formula(r"The answer is $2$ or $-2$.") is None


def test_labels_and_judgements_are_no_claims():
    assert units.is_claim("She sold ", " clips", "How many clips?")
    assert not units.is_claim("Room ", "", "") and not units.is_claim("", " is a lie", "")


def test_m_after_money_or_what_is_counted_may_be_millions():
    assert units.is_millions("m", "$") and units.is_millions(" m dollars", "")
    assert not units.is_millions(" m per day", "")


def test_a_number_in_words_is_one_that_would_be_said_so():
    assert units.leading_cardinal("Forty-two eggs") == (42, " eggs")
    assert units.leading_cardinal("twenty twenty") is units.leading_cardinal("a hundred") is None
