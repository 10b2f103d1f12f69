import doctest

import pytest

from posttrain.rewards import MathVerifier
from posttrain.rewards.verifiers import size
from tests.rewards.episodes import value

VERIFIER = MathVerifier()


@pytest.mark.parametrize(
    "gold, text",
    [
        *(("42", f"42{mark}") for mark in (
            r"\text{!}", r"\text{-}", r"\text{ or}", r"\times", r"\sqrt{}", r"\vec", r"\over", "^{-}", "^{+}",
            r"\rfloor", r"\rangle", r"\mathbb{R}", "\u221e", "\u221a", r"\to0", r"\sim43", r"\cdot",
        )),
        ("42", '4"2'), ("42", r"4\$2"), (r"\frac12", r"\begin{array}{cc}\frac12&41\end{array}"),
        ("2^{10}", "2^{10}_2"), (r"\pi", r"\pi^\circ"), (r"\pi", r"\pi\text{ degrees}"),
        (r"\frac{\pi}{3}", r"\frac{\pi}{3}^{\circ}"), ("x+1", r"x+1^\circ"), ("x+1", r"x+1\text{\%}"),
        ("(2,3)", r"(2\%,3)"), ("[0,1)", "[0%41,1)"), ("y=2x+1", r"y=2^\circ x+1"),
    ],
)  # fmt: skip
def test_a_mark_that_algebra_drops_is_not_paid(gold, text):
    assert value(VERIFIER, rf"\boxed{{{text}}}", gold) == 0.0


@pytest.mark.parametrize(
    "gold, text",
    [
        *((r"\pi", text) for text in (
            r"\pi+e^{-100}", r"\pi+e^{-9999}", r"\pi+\sqrt2\cdot10^{-50}", r"\pi^{1+e^{-100}}",
        )),
        *(("x+1", text) for text in (
            "x+1+e^{-100}", "(x+1)(1+e^{-100})", r"x+\sqrt{1+e^{-99}}",
        )),
        ("x>3", "x>3+e^{-100}"), ("y=2x+1", "y=2x+1+e^{-100}"), ("3+4i", "3+4i+e^{-100}"),
        (r"\sqrt2", r"\sqrt{2+e^{-100}}"),
        (r"\sqrt2", r"\sqrt{2+e^{-999}}"),
    ],
)  # fmt: skip
def test_a_difference_that_algebra_rounds_away_is_not_paid(gold, text):
    assert value(VERIFIER, rf"\boxed{{{text}}}", gold) == 0.0


@pytest.mark.parametrize(
    "gold, text",
    [
        ("x+1", "x=x+1"), ("x+1", "f(y)=x+1"), ("(2,3)", "(y,x)=(2,3)"), (r"\{1,2\}", "x=1,y=2"),
        ("y=2x+1", r"\sqrt{y}=\sqrt{2x+1}"), ("y=2x+1", r"\frac{y}{2x+1}=1"),
    ],
)  # fmt: skip
def test_a_label_of_another_thing_and_an_equation_with_another_domain_are_not_paid(gold, text):
    assert value(VERIFIER, rf"\boxed{{{text}}}", gold) == 0.0


@pytest.mark.parametrize(
    "gold, text",
    [
        (r"\pi", r"\pi\text{ radians}"), (r"\frac{\pi}{3}", r"\frac{\pi}{3}\text{ rad}"), ("42", r"42\text{ (cm)}"),
        ("42", r"42\text{ km/h}"), ("360", r"2^3\cdot3^2\cdot5"), ("(x-1)^2(x+1)^3", "(x+1)^3(x-1)^2"),
        ("x+1", "f(x)=x+1"), ("(2,3)", "(a,b)=(2,3)"), (r"\{1,2\}", "x_1=1, x_2=2"), ("x+1", r"\frac{x^2-1}{x-1}"),
        (r"\sqrt{2}+1", r"\sqrt{3+2\sqrt{2}}"),
    ],
)  # fmt: skip
def test_what_the_rules_for_marks_must_leave_alone(gold, text):
    assert value(VERIFIER, rf"\boxed{{{text}}}", gold) == 1.0


def test_docstring_examples_run():
    assert doctest.testmod(size).failed == 0


def test_size_is_that_of_what_is_multiplied_out():
    terms = [size.terms_multiplied_out(text) for text in ("(x+1)^{9}", "2^{2025}", "(x+y+1)^3(x-1)^2")]
    assert terms == [10, 1, 30]
    assert [size.highest_power(text) for text in ("(2^{9})^{99}", "2^{9} + 3^{8}")] == [891, 9]
