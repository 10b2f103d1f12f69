"""Rewards that a model learned, with a lambda for the model."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import fmean, pvariance

import pytest

from posttrain.errors import RewardError, UserError
from posttrain.rewards import CachedScores, Disagreement, LearnedReward, Named, SoftOverlong, Tags, Weighted
from posttrain.rewards.verifiers.numbers import NumberVerifier
from posttrain.types import Episode, Message, Task
from tests.rewards.episodes import parts as parts_of
from tests.rewards.episodes import scores as scores_of

SAID = {"a": (1.0, 3.0, 8.0), "b": (-2.0, -2.0, -2.0)}


def episodes(*texts: str) -> list[Episode]:
    task = Task((Message("user", "q"),))
    return [Episode(task, (*task.prompt, Message("assistant", text))) for text in texts]


def ask(conversations):
    assert all(one[0] == Message("user", "q") for one in conversations)
    return [SAID[one[-1].content] for one in conversations]


def scores(reward, *texts: str) -> list[float]:
    return [score.value for score in scores_of(reward, episodes(*texts), timeout_s=5)]


@pytest.mark.parametrize(
    ("use", "expected"), [("mean", 4.0), ("worst", 1.0), ("uncertain", 4.0 - 0.25 * pvariance((1.0, 3.0, 8.0)))]
)
def test_what_is_made_of_an_ensemble(use, expected):
    assert scores(LearnedReward(ask, use=use, penalty=0.25), "a", "b") == pytest.approx([expected, -2.0])
    assert scores(LearnedReward(ask), "a")[0] == fmean(SAID["a"])


def test_disagreement_is_the_standard_deviation_of_the_members():
    assert scores(Disagreement(ask), "a", "b") == pytest.approx([pvariance((1.0, 3.0, 8.0)) ** 0.5, 0.0])


def test_a_model_is_asked_once_by_those_who_share_it():
    asked = []
    started = threading.Barrier(2)

    def slow(conversations):
        asked.append(len(conversations))
        time.sleep(0.1)  # in which the other one asks, too
        return ask(conversations)

    shared = CachedScores(slow)

    def one(text: str):
        started.wait()
        return shared([[Message("user", "q"), Message("assistant", text)]])

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(one, ["a", "a"])) == [[SAID["a"]]] * 2
    assert asked == [1]
    assert shared([[Message("user", "q"), Message("assistant", "b")]]) == [SAID["b"]]
    assert asked == [1, 1]


def test_no_score_of_a_learned_reward_means_solved():
    learned, verifier = (LearnedReward(ask), 1.0), (NumberVerifier(), 0.5)
    assert Weighted((learned,)).outcome == ""
    assert Weighted((learned, verifier)).outcome == "numbers"
    assert Weighted((learned, (Named(NumberVerifier(), "gold"), 0.0))).outcome == ""
    assert Weighted((learned, (SoftOverlong(), 1.0))).outcome == ""
    beside = ((Named(LearnedReward(ask), "gold"), 0.0), (Disagreement(ask), 0.0))
    assert Weighted((*beside, (Tags(), 1.0))).outcome == "tags"


def test_a_model_may_take_longer_than_rewards_may():
    def slow(conversations):
        time.sleep(0.2)
        return ask(conversations)

    for reward, weight in ((LearnedReward(slow), 1.0), (Named(LearnedReward(slow), "gold"), 0.0)):
        found = parts_of(Weighted(((reward, weight),), timeout_s=0.01), episodes("a"))
        assert found[0][reward.name].value == 4.0
    assert scores(Named(LearnedReward(ask), "gold"), "a") == [4.0]


@pytest.mark.parametrize("answers", [[], [(1.0,), (2.0,)], [()]])
def test_answers_that_are_not_one_for_each_episode_stop_the_run(answers):
    for reward in (LearnedReward(lambda _: answers), Disagreement(lambda _: answers)):
        with pytest.raises(RewardError, match=r"gave \d answers to 1 episodes"):
            scores(reward, "a")


def test_a_use_that_is_not_known_is_refused():
    with pytest.raises(UserError, match="did you mean 'worst'"):
        LearnedReward(ask, use="wurst")
    with pytest.raises(UserError, match="0 or more; got -1"):
        LearnedReward(ask, penalty=-1)
