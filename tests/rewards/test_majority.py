"""The majority of a group as its label."""

import asyncio

import pytest

from posttrain.errors import UserError
from posttrain.rewards import parse_rewards
from posttrain.rewards.majority import Majority
from posttrain.rewards.reward import role_of, score_all
from posttrain.testing import check_reward
from posttrain.types import EpisodeGroup
from tests.rewards.episodes import episode


def group(*answers: str) -> EpisodeGroup:
    said = tuple(episode(f"<answer>{answer}</answer>" if answer else "none") for answer in answers)
    return EpisodeGroup(said[0].task, said)


def values(*answers: str) -> list[float]:
    (found,) = asyncio.run(Majority().score([group(*answers)]))
    return [score.value for score in found]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (("7", "8", "7"), [1, 0, 1]),
        (("7", "7.0", "seven", "8", "8"), [1, 1, 1, 0, 0]),  # as numbers
        (("50%", "0.5", "0.5"), [0, 1, 1]),  # as they are written
        (("in  Paris", "in Paris", "in paris"), [1, 1, 0]),  # as texts
        (("7", "8"), [1, 1]),  # a tie teaches nothing
        (("7", "8", "9", "8", "7"), [1, 1, 0, 1, 1]),
        (("", "", "7"), [0, 0, 1]),  # without an answer there is no vote
        (("", ""), [0, 0]),
    ],
)
def test_what_most_completions_answer_earns_1(answers, expected):
    assert values(*answers) == expected


def test_the_score_says_how_many_agree_and_what_has_no_answer():
    (found,) = asyncio.run(Majority().score([group("7", "8", "7", "")]))
    assert [(score.parsed, score.unparsed) for score in found] == [
        ("7", False),
        ("8", False),
        ("7", False),
        (None, True),
    ]
    assert found[0].explanation == "2 of 4 agree" and "<answer>" in found[3].explanation


def test_it_conforms_and_is_no_verifier():
    reward = Majority()
    check_reward(reward, [group("7", "8", "7"), group("", "a")])
    assert role_of(reward) == "rule" and parse_rewards("majority").outcome == ""  # agreement is not accuracy
    with pytest.raises(UserError, match="compares 2 or more"):
        asyncio.run(score_all(reward, [group("7")], timeout_s=10))
    rewards = parse_rewards("majority?answer_in=outside_think=2 tags=0.1")
    assert rewards.weights == {"majority": 2.0, "tags": 0.1} and rewards.min_group == 2
