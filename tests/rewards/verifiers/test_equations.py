"""Equations of a text, the steps of a sum, and the reward that asks for all of them."""

import asyncio
import doctest
import time

import pytest

from posttrain.errors import RewardError, UserError
from posttrain.rewards import parse_rewards
from posttrain.rewards.verifiers import equations as module
from posttrain.rewards.verifiers.equations import AllSteps, chain_of, equations, labels_of
from posttrain.rewards.verifiers.numbers import NumberVerifier
from posttrain.types import Score, Task
from tests.rewards.episodes import episode


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3 + 4 = 7", [("3+4=7", True)]),
        ("<think>3+4=7, 7-2=4</think>4", [("3+4=7", True), ("7-2=4", False)]),
        ("so 3+4=7-2=5", [("3+4=7-2=5", False)]),  # sides of one equation
        ("3 \u00d7 4 = 12 and 12 \u00f7 5 = 2.4.", [("3*4=12", True), ("12/5=2.4", True)]),
        ("10/3 = 3.33, 10/3 = 3.34, 10/3 = 3", [("10/3=3.33", True), ("10/3=3.34", False), ("10/3=3", False)]),
        ("1.2 + 1.3 = 2.4", [("1.2+1.3=2.4", False)]),  # nothing is rounded in a sum
        ("x = 3 + 4 = 7", [("3+4=7", True)]),
        ("-3 + 1 = -2; (3 + 4) * 2 = 14", [("-3+1=-2", True), ("(3+4)*2=14", True)]),
        ("1. 2 + 2 = 4\n- 2 + 2 = 5", [("2+2=4", True), ("2+2=5", False)]),
        ("1,000 + 5 = 1,005", [("1000+5=1005", True)]),
        ("a total of 3 + 4 = 8", [("3+4=8", False)]),
        ("4 + 1 = \u22125", [("4+1=-5", False)]),
    ],
)
def test_what_arithmetic_can_check(text, expected):
    assert [tuple(one) for one in equations(text)] == expected


@pytest.mark.parametrize(
    "text",
    [
        *("7 = 7", "x + 1 = 3", "2x + 1 = 4", "2^3 + 1 = 9", "5 apples + 3 = 8", "5 apples - 3 + 1 = 4", "50% + 1 = 2"),
        *("half of 10 + 6 = 11", "sqrt 9 + 1 = 4", "Twice 3 + 4 = 10", "minus 3 + 4 = 1", "the square of 3 + 1 = 10"),
        *("3 + 4 =", "= 7", "3 + 4", "", "1/0 = 3", "2 ** 3 + 0 = 7", "$3 + $4 = $8", "3 + 4 = 7%", "3 + 4 = 7x"),
    ],
)
def test_what_it_cannot_check_is_no_equation(text):
    assert equations(text) == []


@pytest.mark.parametrize("sign", ["1", "1+", "1 + 1 = ", "=", "(", "((1+", " ", ".", "1,000", "- ", "1. "])
def test_long_texts_take_no_time(sign):
    began = time.process_time()
    equations(sign * (200_000 // len(sign)))
    assert time.process_time() - began < 2


SUM = Task((), metadata={"dataset": "chain_sum", "entry": {"metadata": {"expression": "4 - 1 + 3"}}})


@pytest.mark.parametrize(
    ("text", "solved", "expected"),
    [
        ("<think>4-1=3\n3+3=6</think>6", True, [True, True]),
        ("<think>4-1=2\n2+3=5</think>5", False, [False, False]),
        ("<think>4-1=3\n3+2=5</think>5", False, [True, False]),  # it holds, but the sum goes on otherwise
        ("<think>4-1=3\nso far\n3+3=6</think>6", True, [True, None, True]),
        ("<think>4-1=3\n3+3=6</think>7", False, [True, False]),  # the answer is another one
        ("4-1=3, 3+3=6\n6", True, [True, True]),
        ("4-1=3\n3+3=7 so 6", True, [True, False]),
        ("6", True, [True]),
        ("", False, []),
    ],
)
def test_the_rule_follows_the_sum_from_left_to_right(text, solved, expected):
    assert labels_of(SUM, text, solved) == expected


def test_without_the_sum_equations_alone_are_checked():
    assert labels_of(Task(()), "3+2=5\n1+1=3\nso 5", True) == [True, False, True]
    assert chain_of("12 - 30") == ["12-30=-18"]
    assert doctest.testmod(module).failed == 0


def scored(reward: AllSteps, *episodes):
    return asyncio.run(reward.score_episodes(episodes))


def test_all_steps_pays_a_right_answer_whose_steps_are_right():
    reward = AllSteps(NumberVerifier())
    found = scored(
        reward,
        *(episode(text, "7") for text in ("3+4=7\n#### 7", "3+3=7\n#### 7", "#### 7", "3+4=7\n#### 8", "no")),
    )
    assert [one.value for one in found] == [1.0, 0.0, 1.0, 0.0, 0.0]
    assert found[1].explanation == "the answer is right, and the step 3+3=7 is wrong" and found[1].parsed == "7"
    assert found[4].unparsed


def test_all_steps_counts_votes_as_its_verifier_and_takes_no_scores_by_seat():
    assert AllSteps(NumberVerifier()).alike("50%", "0.5")

    class BySeat(NumberVerifier):
        async def score_episodes(self, episodes):
            return [{"a": Score(1.0)} for _ in episodes]

    with pytest.raises(RewardError, match="a verifier with one score; got one by seat"):
        scored(AllSteps(BySeat()), episode("3+3=7", "7"))


def test_all_steps_asks_any_verifier_by_its_name():
    weighted = parse_rewards("all-steps?verifier=gym_bare=0.5")
    assert (
        weighted.weights == {"all-steps": 0.5}
        and weighted.outcome == "all-steps"
        and {"dataset", "entry"} <= set(weighted.columns)
    )
    assert asyncio.run(weighted.unreadable([Task((), id="t")]))[0].startswith("reward 'gym_bare' needs the keys")
    ((plain, _),) = parse_rewards("all-steps").parts
    with pytest.raises(RewardError, match=r"needs a number as task\.answer"):
        scored(plain, episode("#### 7", "seven apples"))
    for other in ("tags", "nothing"):
        with pytest.raises(UserError, match=f"'all-steps' asks a verifier; got '{other}'"):
            parse_rewards(f"all-steps?verifier={other}")
