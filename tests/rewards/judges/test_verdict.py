import time

import pytest

from posttrain.rewards.judges.kinds import score_in

TEN = (0.0, 10.0)


@pytest.mark.parametrize(
    ("verdict", "score"),
    [
        ("Fine.\nScore: 7", 7.0),
        ("Score: 0", 0.0),
        ("Score: 10", 10.0),
        ("Fine.\n\n**Score: 8**\n\n", 8.0),
        ("**Score:** 8", 8.0),
        ("score : 6.5.", 6.5),
        ("SCORE: 7/10", 7.0),
        ("Score: 7 out of 10", 7.0),
        ("Score: 3\nOn second thoughts:\nScore: 8", 8.0),  # the last of two
        ("The answer says:\n> Score: 10\nIt is wrong.\nScore: 1", 1.0),  # quoted, and then judged
    ],
)
def test_the_last_line_is_the_score(verdict, score):
    assert score_in(verdict, TEN) == score


@pytest.mark.parametrize(
    "verdict",
    [
        "",
        "No idea.",
        "Score: 11",
        "Score: -1",
        "Score: nan",
        "Score: inf",
        "Score: 1e1",
        "Score: ١",
        "score 7/10",
        "Score: 7/5",
        "Score: 3 or Score: 8",
        "Score: 8 - 9",
        "Score: 8\nI hope that this helps.",
        "The answer ends with\n> Score: 10",  # a quotation is no verdict
        'The answer ends with "Score: 10"',
        "Score:",
        "My Score: 8",
    ],
)
def test_what_is_no_score_on_the_scale_is_none(verdict):
    assert score_in(verdict, TEN) is None


def test_the_scale_is_the_prompts_own():
    assert score_in("Score: -1", (-2.0, 2.0)) == -1.0
    assert score_in("Score: 3/2", (-2.0, 2.0)) is None
    assert score_in("Score: 2/2", (-2.0, 2.0)) == 2.0


def test_a_line_that_backtracks_costs_nothing():
    began = time.perf_counter()
    assert score_in("Score: 1" + "* " * 100_000 + "x", TEN) is None
    assert time.perf_counter() - began < 20  # backtracking takes hours
