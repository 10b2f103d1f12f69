import asyncio

import pytest

from posttrain.environments import ScoredEnvironment, SingleTurn
from posttrain.environments.scored import of_seat
from posttrain.errors import RewardError
from posttrain.rewards import Weighted, apart, from_function, parse_rewards
from posttrain.testing import ScriptedSeat, check_environment
from posttrain.types import Episode, EpisodeGroup, Message, Outcome, Score, Task

PROMPT = (Message("system", "Be brief."), Message("user", "2 + 2?"))
TASK = Task(PROMPT, answer=4, gold="<think>2 + 2 = 4</think>\n#### 4", id="sum")
ENVIRONMENT = ScoredEnvironment(parse_rewards("tags=0.1 numbers=2"))


def test_the_policy_is_shown_the_prompt_once_and_its_reply_ends_the_episode():
    seat = ScriptedSeat(["#### 4", "#### 5"])
    assert asyncio.run(SingleTurn().play(TASK, {"policy": seat}, 0)) == Outcome()
    assert seat.told == [PROMPT] and len(seat.said) == 1


def test_scores_by_name_and_their_total():
    episodes = [Episode(TASK, (*PROMPT, Message("assistant", text))) for text in (TASK.gold, "#### 4", "4")]
    (parts,) = asyncio.run(ENVIRONMENT.reward.score_parts([EpisodeGroup(TASK, tuple(episodes))]))
    assert [{name: s.value for name, s in p.items()} for p in parts] == [
        {"tags": 1.0, "numbers": 1.0},
        {"tags": 0.0, "numbers": 1.0},
        {"tags": 0.0, "numbers": 0.0},
    ]
    assert [ENVIRONMENT.reward.total(p) for p in parts] == pytest.approx([2.1, 2.0, 0.0])
    assert (ENVIRONMENT.outcome, parts[2]["numbers"].unparsed) == ("numbers", True)


def test_a_score_is_for_every_seat_unless_it_is_by_seat():
    scores = {"both": Score(1.0), "each": {"a": Score(2.0)}}
    assert of_seat(scores, "a") == {"both": Score(1.0), "each": Score(2.0)}
    other = of_seat(scores, "b")
    assert other["both"] == Score(1.0) and not other["each"].applicable


def test_a_failed_reward_is_an_error_and_not_a_0():
    def fails(completion):
        raise OSError("down")

    environment = ScoredEnvironment(Weighted(((from_function(fails), 1.0),)))
    with pytest.raises(RewardError, match="'fails' raised OSError: down"):
        asyncio.run(environment.reward.score_parts(apart([Episode(TASK, PROMPT)])))


def test_conforms():
    tasks = [TASK, Task((Message("user", "3 + 3?"),), answer=6, id="other")]
    check_environment(SingleTurn(), tasks)


def test_a_verifier_says_what_is_solved():
    assert ScoredEnvironment(parse_rewards("tags=0.1 numbers=2")).outcome == "numbers"
