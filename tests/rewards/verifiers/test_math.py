import asyncio
import threading
import time

import pytest

from posttrain.errors import RewardError
from posttrain.rewards import MathVerifier, check_reward
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


@pytest.mark.parametrize("completion", ["5", "<think>\\boxed{5}</think>", r"\boxed{}", r"\boxed{the dog}"])
def test_no_readable_answer_is_unparsed_and_not_wrong(completion):
    got = score(VERIFIER, completion, "5")
    assert got.value == 0.0 and got.unparsed and got.explanation


def test_the_answer_may_be_prose_where_one_looks_at_text():
    prose = MathVerifier(answer_in="text")
    assert value(prose, "Adding them up, the answer is 42.", "42") == 1.0
    assert value(prose, r"The answer is $\frac{84}{2}$.", "42") == 1.0
    assert value(prose, "The answer is 43.", "42") == 0.0


def test_an_answer_that_hangs_is_unparsed_counted_by_its_explanation_and_spares_its_neighbours():
    start = time.monotonic()
    value(VERIFIER, r"\boxed{1}", "1")  # start the process before the clock matters
    quick = MathVerifier(timeout_s=0.7)
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
    assert asyncio.run(check_reward(VERIFIER, episodes)) == []
