import doctest
import time

import pytest

from posttrain.rewards import ExactVerifier, MathVerifier, NumberVerifier
from posttrain.rewards.verifiers import boxes
from posttrain.rewards.verifiers.boxes import doubt_around_box
from tests.rewards.episodes import score, value

QUESTION = "What is the length in cm?"
NO_ANSWER = [
    "-{}", "+ {}", "$-{}$", r"\neq {}", r"$x \neq {}$", r"$\approx {}$", r"$x < {}$", r"$x \ge {}$", "2{}",
    r"$2\cdot {}$", r"$\frac{{{}}}{{2}}$", r"$\sqrt{{{}}}$", "${}^2$", "${}!$", "{}?", r"{} \text{{ thousand}}",
    "{} million", "{} dozen", "{} or 41", r"\boxed{{41}} or {}", r"\boxed{{41}}, {}", r"\boxed{{41}}{}",
    "{} is wrong.", "{} is not the answer.", "{}, no wait, 41.", "{}.\n\nWait, that is wrong.",
    "{}\n\nThe answer is 41.", "The answer is not {}.", "It cannot be {}.", "The answer is not\n\n{}", "You said {}.",
    "Is it {}?", "Perhaps {}", "about {}", "at most {}", "half of {}", "minus {}", "{} if x > 0",
    "If x > 0 then {}, else 41.", "~~{}~~", "<s>{}</s>", "<del>{}</del>", r"\sout{{{}}}", r"\cancel{{{}}}",
    r"\phantom{{{}}}", r"\not{{{}}}", r"\text{{not }}{}", "% {}", "<!-- {} -->",
    r"\begin{{comment}}{}\end{{comment}}", r"\iffalse {}\fi", r"\def\a{{{}}} 41", r"\footnote{{{}}} 41",
    r"${} \pm 1$", "${} + C$", "$1 + {}$", "${} = 41$", "$41 = {}$", r"${} \cdot 10^3$", "10^{}", "0.{}", "1,{}",
    "{}.5", "{}5", "{}_8", "{}...", r"$\log {}$", "f({})", "f{}", "[{}, 41]", "({}, 41)", r"\{{{}, 41\}}", "|{}|",
    "nicht {}", "{} oder 41", "\u4e0d\u662f{}", "{}\u621641", "{} mm", "{} and 41", "$x = 41$, {} km",
    r"\boxed{{41}} then comes {}", "Step {}",
    "$41$ {}", "${} > 41$", "x = 40\n-\n{}", r"\begin{{align}} 40 &+ {} \end{{align}}",
]  # fmt: skip
ANSWERS = [
    "{}", "${}$", "$$\n{}\n$$", r"\[{}\]", "**{}**", "**${}$**", "Thus, the answer is ${}$.",
    "The answer is:\n\n$${}$$", "$x = 40 + 2 = {}.$", r"$$\begin{{aligned}} x &= 40+2 \\ &= {} \end{{aligned}}$$",
    r"\[ \sqrt{{1764}} = {}. \]", "$2^3 + 34 = {}$", "**Final Answer**\n{}", "### Final Answer\n\n\\[\n{}\n\\]",
    "The final answer is: ${}$ cm.", r"${}\text{{ cm}}$", r"The angle is ${}^\circ$.", r"It is {}\%.", "---\n\n{}",
    "---\n\n$${}$$", "- **Answer:** {}", "\u2705 {}", "> **Answer:** ${}$", r"$\text{{Area}} = {}$",
    r"$\therefore {}$", "which is equal to\n$${}$$", "We get $20+22=42$. {}",
    "The number that is not divisible by 3 is ${}$.", "It is not possible to have 41. So it is ${}$.",
    "${}$ (since 41 fails)", "{}\n\nNote that 41 is not a solution.", r"${}$. $\blacksquare$", r"{{\large {}}}",
    r"$\color{{blue}}{{{}}}$", "`{}`", "<answer>{}</answer>", "<b>{}</b>", "```\n{}\n```", "$m + n = $ ${}$",
    "Great! It is {}!", "{}<|im_end|>", "${}$, as desired.", "\\boxed{{41}} is the first.\n\n{}",
    "The answer is {}.\n\nThe answer is 42.", r"Janet makes \${} every day.", "${} every day.",
    "It costs $20 and $22 and $3: {}", "\u7b54\u6848\u662f{}\u3002", "\ub2f5\uc740 {}\uc785\ub2c8\ub2e4.",
    r"Die Antwort ist ${}$.",
]  # fmt: skip


@pytest.mark.parametrize("text", NO_ANSWER)
def test_what_stands_around_a_box_may_take_it_back(text):
    got = score(MathVerifier(), text.format(r"\boxed{42}"), "42", question=QUESTION)
    assert (got.value, got.unparsed) == (0.0, True)


@pytest.mark.parametrize("text", ANSWERS)
def test_what_people_write_around_a_box_is_read(text):
    assert doubt_around_box(text.format(r"\boxed{42}"), QUESTION) is None


@pytest.mark.parametrize("box", [r"\boxed {5}", "\\boxed\n{5}", r"\boxed { 5 }", r"\boxed 5", r"\boxed5", r"\fbox 5"])
def test_a_box_is_read_as_tex_reads_it(box):
    for reward in (MathVerifier(), MathVerifier(answer_in="text"), NumberVerifier(answer_in="boxed")):
        assert value(reward, f"The answer is ${box}$.", "5") == 1.0
        assert value(reward, f"The answer is ${box}$.", "4") == 0.0
    for text in (
        rf"\boxed{{4}} or ${box}$",
        f"It is not ${box}$.",
        rf"$\boxed {{4}}$ and ${box}$",
        rf"\boxed 4, ${box}$",
    ):
        for reward in (MathVerifier(), NumberVerifier(answer_in="boxed")):
            got = score(reward, text, "5")
            assert (got.value, got.unparsed) == (0.0, True), (reward, text)


@pytest.mark.parametrize(
    "box", [r"\boxed 57", r"\boxed 5 7", r"\boxed 5.7", r"\boxed -5", r"\boxed \pi", r"\boxed x^2"]
)
def test_a_box_that_holds_less_than_is_meant_is_unparsed(box):
    for answer in ("57", "5", "5.7", "-5", r"\pi", "x^2", "x"):
        for before in ("", f"First $\\boxed{{{answer}}}$.\n\n"):
            got = score(MathVerifier(), f"{before}The answer is ${box}$.", answer)
            assert (got.value, got.unparsed) == (0.0, True)


def test_a_rounded_value_is_an_answer_where_the_question_rounds():
    completion = r"$\sqrt{1760} \approx \boxed{42}$"
    assert value(MathVerifier(), completion, "42", question="What is it, to the nearest integer?") == 1.0
    assert value(MathVerifier(), completion, "42") == 0.0


def test_a_wrong_box_is_wrong_and_not_unparsed_whatever_stands_around_it():
    assert not score(MathVerifier(), r"It is not \boxed{41}.", "42").unparsed


@pytest.mark.parametrize(
    "text",
    [
        *("It is not {}.", "It cannot be {}", "{} is wrong", "{}?", "{} or 7", "<answer>y</answer> or {}", "~~{}~~"),
        *("<!-- {} -->", "<s>{}</s>", "{}, no wait, y", "{}\n\nScratch that.", "You said {}."),
    ],
)
def test_tags_that_are_denied_struck_out_or_taken_back_are_no_answer(text):
    got = score(ExactVerifier(), text.format("<answer>x</answer>"), "x")
    assert (got.value, got.unparsed) == (0.0, True)


@pytest.mark.parametrize("text", ["{}", "So it is {}.", "It is not y.\n{}", "{}\n", "```\n{}\n```", "Wait, no: {}"])
def test_tags_in_a_text_are_an_answer(text):
    assert value(ExactVerifier(), text.format("<answer>x</answer>"), "x") == 1.0


def test_a_hostile_text_around_a_box_takes_no_time():
    hostile = [
        "$",
        "$1",
        r"\(",
        r"\[",
        r"\text{",
        "~",
        " ",
        "<!--",
        "~~",
        "*",
        "=",
        "answer is 1 ",
        "{",
        r"\quad ",
        "wait ",
        "a",
        "}",
    ]
    start = time.process_time()
    for part in hostile:
        doubt_around_box(part * 20_000 + r"\boxed{1}" + part * 20_000)
    assert time.process_time() - start < 5


def test_docstring_examples_run():
    assert doctest.testmod(boxes).failed == 0
