import doctest
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.errors import RewardError
from posttrain.rewards import MathVerifier
from posttrain.rewards.verifiers import formula, math
from posttrain.rewards.verifiers.prose import final_formula
from posttrain.rewards.verifiers.size import too_large
from posttrain.testing import check_reward
from tests.rewards.episodes import episode, score, scores, value

VERIFIER = MathVerifier()


@pytest.mark.parametrize(
    "boxed, answer",
    [
        (r"\frac{1}{2}", "0.5"),
        ("0.5", r"\frac12"),
        ("0.5", r"$\frac{1}{2}$"),
        ("2x+1", "1+2x"),
        ("x=5", "5"),
        (r"2\sqrt{2}", r"\sqrt{8}"),
        (r"1{,}000", 1000),
        (r"\$5", "5"),
        ("(1,2]", "(1,2]"),
        (r"\{2, 1\}", r"\{1,2\}"),
        (r"10\%", "0.1"),
        (r"\text{east}", r"\text{east}"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
        ("3", ["2", "3"]),
        ("-7", -7),
    ],
)
def test_equal_answers_score_1(boxed, answer):
    assert value(VERIFIER, rf"So \boxed{{{boxed}}}.", answer) == 1.0


@pytest.mark.parametrize(
    "boxed, answer",
    [
        (r"\frac{1}{3}", "0.5"),
        ("2x+1", "2"),
        ("2", "2x+1"),
        ("1, 2", "2"),
        (r"5 \text{ or } 6", "5"),
        ("-5", "5"),
        ("[1,2]", "(1,2]"),
        ("15", "5"),
    ],
)
def test_other_answers_are_wrong_and_not_unparsed(boxed, answer):
    got = score(VERIFIER, rf"\boxed{{{boxed}}}", answer)
    assert (got.value, got.unparsed, got.parsed) == (0.0, False, boxed)
    assert "expected" in got.explanation


# What has the right value somewhere, and is no answer.
NO_ANSWER = [
    *("41 = 42", r"\neq 42", "41, 42", r"42 \text{ million}", r"\approx 42", "42_8", "x=y=42", "$41$ $42$", "42 43"),
    *(r"\text{not }42", r"42\pm 0", r"41 \text{ or } 42", r"x\ne42", "42?", "42!", "42;42", r"\lnot 42", "42..."),
    *(r"6\cdot7=43", "not 42", "42 dozen", r"42\%\%", r"\sim 42", "<42", r"\{41,42\}", r"\underline{42}", "42/0"),
    *(
        "x=42,x=41",
        r"42\lor 43",
        r"\boxed{41}\boxed{42}",
        "42 thousand",
        "42k",
        "- 42",
        r"42 \to 43",
        "minus 42",
        r"\foo 42",
    ),
]


@pytest.mark.parametrize("text", NO_ANSWER)
def test_what_is_no_answer_is_never_paid(text):
    assert value(VERIFIER, rf"\boxed{{{text}}}", "42") == 0.0


@given(
    st.sampled_from(["42", r"\frac{1}{2}", r"2\sqrt{3}", "x+1", r"\pi", "(1,2)"]),
    st.sampled_from(
        [r"\neq {}", "7 = {}", r"{}, 7", r"{} \text{{ or }} 7", r"\text{{not }} {}", r"{} \text{{ thousand}}",
         r"{} \approx 7", r"7 > {}", r"{} \pm 0", "${}$ $7$", "{}; {}", "{}?", r"\text{{about }}{}", "{}, {}"]
    ),
    st.sampled_from(["{}", "${}$", r"\mathbf{{{}}}", "**{}**", "x = {}", "{}."]),
)  # fmt: skip
@settings(max_examples=60)
def test_a_changed_formula_is_never_paid_however_it_is_decorated(gold, change, decoration):
    answer = decoration.format(change.format(gold, gold))
    assert value(VERIFIER, rf"\boxed{{{answer}}}", gold) == 0.0


@pytest.mark.parametrize(
    "boxed, answer",
    [
        (r"1\,234", "1234"),
        ("1 234", "1234"),
        ("1.234e3", "1234"),
        ("\u00bd", "0.5"),
        ("\u00bd", r"\frac{1}{2}"),
        ("0,5", "0.5"),
        ("**5**", "5"),
        ("3, -3", r"\pm 3"),
        (r"\pm 3", "3,-3"),
        (r"(5,\infty)", "x>5"),
        ("x=1,x=2", "1,2"),
        ("1.5x", r"\frac{3x}{2}"),
        ("0.1x+0.2x", "0.3x"),
        (r"\$2\sqrt{3}", r"\sqrt{12}"),
        ("2.0", r"\sqrt{4}"),
        (r"42\text{ cm}", "42"),
    ],
)
def test_more_ways_to_write_it_are_right(boxed, answer):
    assert value(VERIFIER, rf"\boxed{{{boxed}}}", answer) == 1.0


@pytest.mark.parametrize(
    "boxed, answer",
    [
        ("3.1415926535", r"\pi"),
        ("1.41421356", r"\sqrt2"),
        ("0.333333", r"\frac13"),
        ("0." + "3" * 32, r"\frac13"),
        ("3.14+0", r"\pi"),
    ],
)
def test_what_is_near_is_not_equal(boxed, answer):
    assert value(VERIFIER, rf"\boxed{{{boxed}}}", answer) == 0.0


@pytest.mark.parametrize(
    "gold, text",
    [
        *(("42", text) for text in (
            r"\not= 42", r"42\text{k}", r"42\text{M}", "42'", r"42 \mid x", "42\u202e", "42\u548c43", "42\u222a43",
            "42\u00b2",
            "42\u2030", "42\u219243", "\u7ea6 42", "c. 42", "42+", "42^*", r"42^{\text{nd}}", "42^{[1]}", "42^T",
            r"42\\43",
            "42&43", r"42 \cup\{43\}", r"42\setminus 43", r"42\text{ (43)}", "43. 42", "1) 43 2) 42", "43 | 42", "--42",
            r"42\right|", "42\u0338", "[43, 42]",
        )),
        (r"\frac{1}{2}", "1:2"), (r"\frac{1}{2}", "\\frac12\n\\frac13"), ("(2,3)", r"\{2,3\}"), (r"\{1,2\}", "(1,2)"),
        ("-2", "-2-"),
        (r"\pi", r"\pi'"), (r"42 \text{ cm}", r"42 \text{ mm}"),
    ],
)  # fmt: skip
def test_a_sign_that_algebra_passes_over_is_not_paid(gold, text):
    got = score(VERIFIER, rf"\boxed{{{text}}}", gold)
    assert got.value == 0.0


@pytest.mark.parametrize(
    "gold, text",
    [
        ("42", r"6\cdot7=42"), ("42", r"\text{The answer is } 42"), ("42", r"42\mathrm{~cm}^2"), ("42", "f(3) = 42"),
        ("42", "\uff14\uff12"), (r"\pi", "pi"), (r"3\sqrt{2}", "3\u221a2"), ("3+4i", r"3+4\mathrm{i}"),
        ("(2,3)", "(x,y) = (2,3)"),
        (r"\{1,2\}", "1, 2"), (r"\{1,2\}", r"x = 1 \text{ or } x = 2"), ("x>3", "3 < x"), ("x>3", r"x \in (3,\infty)"),
        ("[0,1)", r"x \in [0,1)"), (r"\frac{1}{2}", r"{1 \over 2}"),
    ],
)  # fmt: skip
def test_what_people_write_around_a_formula_is_read(gold, text):
    assert value(VERIFIER, rf"\boxed{{{text}}}", gold) == 1.0


PROSE = [
    *(
        "The answer is not {}.",
        "{} or $43$",
        "$43$ or {}",
        "$43$, {}",
        "The answer is $43$. The answer is {}.",
        "{} million",
    ),
    *(
        "about {}",
        "at most {}",
        "half of {}",
        "-{}",
        "minus {}",
        "{} is wrong",
        "Is it {}?",
        "x = $43$, y = {}",
        "f({})",
    ),
    *(
        "{}. Just kidding.",
        "{}ish",
        "\u2248 {}",
        "10^{}",
        "0.{}",
        "step {}",
        "one of $43$, {}",
        r"\boxed{{43}} \boxed{{42}}",
    ),
    *("{} plus 1", "unlike {}", "\u221a{}", "{}\u00b2", "{} if it rains", "anything but {}", "$43$; {}", "2{}", "1,{}"),
]


@pytest.mark.parametrize("where", ["text", "outside_think", "after_think"])
def test_prose_that_hedges_is_never_paid(where):
    verifier = MathVerifier(answer_in=where)
    texts = [text.format(gold) for text in PROSE for gold in ("$42$", r"\(42\)", r"\boxed{42}", "42")]
    got = scores(verifier, [episode("<think>hm</think>" * (where == "after_think") + text, "42") for text in texts])
    assert [text for text, one in zip(texts, got, strict=True) if one.value > 0] == []


def test_prose_that_ends_on_one_formula_is_paid():
    texts = ["So $6 \\cdot 7 = 42$. The answer is {}.", "{}", "Janet sells {} eggs.", "Thus,\n\n{}", "The answer: {}"]
    verifier = MathVerifier(answer_in="text")
    for text in (text.format(gold) for text in texts for gold in ("$42$", r"\[42\]", r"$\boxed{42}$", "**42**")):
        assert value(verifier, text, "42") == 1.0, text
    assert value(verifier, r"Adding both, we get $x = \frac{1}{2}$.", "0.5") == 1.0


@pytest.mark.parametrize(
    "text",
    [
        *("9^{9^{9^9}}", "9^9^9", "(9^9)^{9^9}", "9**9**9", "2^{99999}", "2**99999", "99999!", "(5!)!", "5!!"),
        *(r"\binom{99999}{500}", "1" * 51, "(" * 31 + "1" + ")" * 31, "1+" * 600),
        *("(x+1)^{9999}", "((x+1)^{50}+1)^{50}", "(x+y+z)^{60}", r"(1+\sqrt2)^{999}", r"\binom{x}{999}", "2^{1e9}"),
        *(
            "{9^{999}}^{999}",
            "e^{e^{e^{e^e}}}",
            "i^{i^{i^i}}",
            "1.000001^{9999}",
            "(" * 13 + "x" + ")" * 13,
            "|x|" * 20,
        ),
        *(
            "(x+1)" * 30,
            "x^2" * 50,
            r"\sin x" * 7,
            r"\sqrt2+" * 7 + "1",
            "1=" * 20 + "1",
            "-" * 9 + "1",
            "1," * 99 + "1",
        ),
        *(
            "1 " * 40,
            "12e" * 20,
            r"\begin{pmatrix}1&2\\3&4\end{pmatrix}^{99}",
            r"\begin{vmatrix}a b c d e f g h i j\end{vmatrix}",
        ),
    ],
)
def test_what_is_too_large_never_reaches_the_worker(text, monkeypatch):
    monkeypatch.setattr(math, "workers_for", lambda target: pytest.fail("asked"))
    got = score(VERIFIER, rf"\boxed{{{text}}}", "x")
    assert got.unparsed and got.explanation.startswith("too large")


def test_a_hostile_text_in_prose_takes_no_time():
    hostile = [
        "$1" * 30_000,
        "\\boxed{" * 8_000,
        "\\boxed{1}" * 8_000,
        "=1" * 40_000,
        "1. " * 30_000,
        "\\(" * 30_000,
        "twenty-" * 9_000,
    ]
    start = time.process_time()
    assert [final_formula(text + " 7 or 8") for text in hostile] == [None] * len(hostile)
    assert time.process_time() - start < 10


def test_the_size_of_a_hostile_formula_takes_no_time():
    hostile = [
        "9",
        "9 ",
        "9.",
        "1e",
        "^9",
        "(x+1)",
        ")^9",
        "{",
        "(",
        "[",
        "|x",
        "\\sin",
        "-",
        "- ",
        "=",
        "a",
        "\\$",
        " ",
        "e^{",
        "\\begin{vmatrix}",
    ]
    start = time.process_time()
    for part in hostile:
        too_large((part * 1000)[:1000])
        formula.unexplained("42" + (part * 1000)[:950], "42")
    assert time.process_time() - start < 5


def test_what_mathematics_needs_is_not_too_large():
    for text in (
        "2^{2025}",
        r"e^{x^2}",
        "100!",
        r"\binom{100}{50}",
        "x^{2}^{}",
        r"\frac{1}{1+\frac{1}{1+x}}",
        "(x+1)^{10}",
        *(
            "(x-1)^2(x+1)^3",
            r"2^3\cdot3^2\cdot5",
            "(x+1)^{499}",
            "e^{e^x}",
            r"\begin{vmatrix}a&b\\c&d\end{vmatrix}",
            "1" * 50,
        ),
        *(",".join(map(str, range(50))), r"\{1,\frac{\sqrt{3}}{2}\}", r"\sin x\cos y+\cos x\sin y", "12^{999}"),
    ):
        assert too_large(text) is None


@pytest.mark.parametrize("completion", ["5", "<think>\\boxed{5}</think>", r"\boxed{}", r"\boxed{the dog}"])
def test_no_readable_answer_is_unparsed_and_not_wrong(completion):
    got = score(VERIFIER, completion, "5")
    assert got.value == 0.0 and got.unparsed and got.explanation


def test_the_answer_may_be_prose_where_one_looks_at_text():
    prose = MathVerifier(answer_in="text")
    assert value(prose, "Adding them up, the answer is 42.", "42") == 1.0
    assert value(prose, r"The answer is $\frac{84}{2}$.", "42") == 1.0
    assert value(prose, "The answer is 43.", "42") == 0.0


def test_an_answer_that_hangs_is_unparsed_counted_by_its_explanation_and_spares_its_neighbours(monkeypatch):
    monkeypatch.setattr(math, "too_large", lambda text: None)
    start = time.monotonic()
    value(VERIFIER, r"\boxed{1}", "1")  # start the process before the clock matters
    quick = MathVerifier(timeout_s=3.0)
    batch = [episode(rf"\boxed{{{x}}}", "5") for x in ("5", "9^{9^{9^{9}}}", "5", "6")]
    got = scores(quick, batch)
    assert [s.value for s in got] == [1.0, 0.0, 1.0, 0.0]
    assert [s.unparsed for s in got] == [False, True, False, False]
    assert got[1].explanation.startswith("verifier timed out")
    assert time.monotonic() - start < 30


def test_it_works_off_the_main_thread():
    got: list[float] = []
    thread = threading.Thread(target=lambda: got.append(value(VERIFIER, r"\boxed{\frac{4}{2}}", "2")))
    thread.start()
    thread.join()
    assert got == [1.0]


@pytest.mark.parametrize("answer", [None, [], "the dog"])
def test_a_task_without_a_mathematical_answer_raises_and_names_the_task(answer):
    with pytest.raises(RewardError, match=r"'math'.*'t'"):
        score(VERIFIER, r"\boxed{a b the cat}", answer)


def test_conforms():
    episodes = [episode(c, "5", id=c) for c in (r"\boxed{5}", r"\boxed{6}", "none", r"\boxed{cats}")]
    check_reward(VERIFIER, episodes)


def test_docstring_examples_run():
    assert doctest.testmod(formula).failed == 0


def test_signs_and_labels_that_algebra_drops_are_found():
    signs = [(r"42\text{!}", "42"), (r"42\text{ km/h}", "42"), (r"\pi^\circ", r"\pi")]
    assert [formula._stray(*pair) for pair in signs] == ["!", None, r"^\circ"]
    assert [formula._label_of_others(text, "x+1") for text in ("f(x) = x+1", "x = x+1")] == [None, "x ="]


@pytest.mark.parametrize("letter", "abcdfjknopqrtuvwxyzABCDEFHKNPQRSXYZ")
@pytest.mark.parametrize(
    "said", ["42{}", "42 {}", "42 + {}", "42 - {}", r"42 \cdot {}", "42_{}", "42^{}", r"42 \text{{ {}}}"]
)
def test_a_letter_that_the_right_answer_has_not_is_never_paid(said, letter):
    assert value(MathVerifier(), rf"\boxed{{{said.format(letter)}}}", "42") == 0.0


@pytest.mark.parametrize("said", ["x + 42m", "x + 42 s", "x + 42 + g", "42^e", "42//1", "42^{}", "42 + l"])
def test_a_letter_of_a_unit_is_one_at_the_end_of_a_number_alone(said):
    assert value(MathVerifier(), rf"\boxed{{{said}}}", "x + 42" if "x" in said else "42") == 0.0


@pytest.mark.parametrize(
    "said", ["42 m", "42m", r"42\,s", "42 g", "42 L", r"42 \text{ h}", "x = 42", "f(x) = 42", r"e^{\ln 42}"]
)
def test_a_unit_a_label_and_a_constant_are_right(said):
    assert value(MathVerifier(), rf"\boxed{{{said}}}", "42") == 1.0
