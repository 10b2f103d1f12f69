import asyncio
import math
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import posttrain
from posttrain.errors import RewardError, UserError
from posttrain.rewards import EpisodeReward, Reward, apart, score_all
from posttrain.rewards.reward import scoring
from posttrain.types import EpisodeGroup, Score
from tests.rewards.episodes import episode, scores

EPISODES = [episode("a", id="train-0"), episode("b", id="train-1"), episode("c", id="train-2")]


@dataclass(frozen=True)
class Returns(EpisodeReward):
    """A reward that returns what it is told to, whatever the interface says."""

    what: Any
    name: str = "strange"

    async def score_episodes(self, episodes):
        return self.what


@dataclass(frozen=True)
class Answers:
    """The same, of groups."""

    what: Any
    name: str = "strange"
    min_group: int = 1

    async def score(self, groups):
        return self.what


def test_scores_pass_through_in_order():
    given = [Score(0.5), Score(-1.0), Score(0.0, unparsed=True)]
    assert scores(Returns(given), EPISODES) == given
    assert isinstance(Returns(given), Reward)


def test_an_empty_batch_is_answered_without_asking():
    assert scores(Returns("not asked"), []) == []


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None, "1"])
def test_a_value_that_is_not_finite_names_reward_task_and_value(bad):
    with pytest.raises(RewardError, match=rf"reward 'strange'.*{bad!r}.*'train-1'") as caught:
        scores(Returns([Score(1.0), Score(bad), Score(1.0)]), EPISODES)
    assert "train-0" not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "returned, said",
    [
        ([Score(1.0)] * 2, "2 scores for 3 episodes"),
        ([Score(1.0)] * 4, "4 scores for 3 episodes"),
        ([], "0 scores for 3 episodes"),
        (None, "returned None"),
        (1.0, "returned a float"),
        ([Score(1.0), 1.0, Score(1.0)], "returned a float on task 'train-1'"),
    ],
)
def test_a_wrong_number_or_kind_of_values_is_an_error(returned, said):
    with pytest.raises(RewardError, match=said):
        scores(Returns(returned), EPISODES)


def test_an_exception_names_reward_tasks_cause_and_place():
    @dataclass(frozen=True)
    class Raises:
        name: str = "broken"

        async def score(self, episodes):
            raise KeyError("answer")

    with pytest.raises(
        RewardError, match=r"'broken' raised KeyError: 'answer' \(.*test_reward.py:\d+\).*'train-0'"
    ) as caught:
        scores(Raises(), EPISODES)
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_exception_on_one_episode_names_that_one_alone():
    @dataclass(frozen=True)
    class Raises(EpisodeReward):
        name: str = "broken"

        def _score_one(self, episode):
            return Score(1.0 / (episode.completion != "b"))

    with pytest.raises(RewardError, match=r"ZeroDivisionError.* on task 'train-1'$"):
        scores(Raises(), EPISODES)


def test_a_hang_is_an_error_that_names_the_episode_it_hangs_on():
    release = threading.Event()

    @dataclass(frozen=True)
    class Hangs(EpisodeReward):
        name: str = "slow"

        async def score_episodes(self, episodes):
            for e in episodes:
                with scoring(self.name, e):
                    if e.completion == "b":
                        release.wait(20)  # blocks the event loop it runs in, as a careless reward would
            return [Score(0.0)] * len(episodes)

    with pytest.raises(RewardError, match=r"'slow' did not finish within 2 s on task 'train-1';"):
        scores(Hangs(), EPISODES, timeout_s=2.0)
    release.set()


def test_a_hang_on_the_whole_batch_names_the_first_tasks():
    @dataclass(frozen=True)
    class Hangs:
        name: str = "slow"

        async def score(self, episodes):
            await asyncio.sleep(60)

    with pytest.raises(RewardError, match=r"tasks 'train-0', 'train-1', 'train-2' and 1 more"):
        scores(Hangs(), [*EPISODES, episode("d", id="train-3")], timeout_s=0.05)


def test_a_hung_reward_does_not_keep_the_program_from_ending():
    program = """
import asyncio, time
from posttrain.errors import RewardError
from posttrain.rewards import apart, from_function, score_all
from posttrain.types import Episode, Task
def hangs(completion):
    time.sleep(1000)
try:
    asyncio.run(score_all(from_function(hangs), apart([Episode(Task(()), ())]), timeout_s=0.1))
except RewardError:
    print("stopped")
"""
    env = {**os.environ, "PYTHONPATH": str(Path(posttrain.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.returncode) == ("stopped\n", 0)


def test_the_users_own_errors_pass_through():
    @dataclass(frozen=True)
    class Refuses:
        name: str = "refuses"

        async def score(self, episodes):
            raise UserError("needs a key")

    with pytest.raises(UserError, match=r"^needs a key$"):
        scores(Refuses(), EPISODES)


def test_a_task_without_id_is_named_by_its_question():
    with pytest.raises(RewardError, match=r"'What is the sum of the first eleven o\.\.\.'"):
        scores(
            Returns([Score(math.nan)]),
            [episode("x", id="", question="What is the sum of the first eleven odd numbers?")],
        )


def test_two_rewards_can_be_asked_at_the_same_time():
    async def main():
        return await asyncio.gather(
            score_all(Returns([Score(1.0)], "one"), apart(EPISODES[:1]), timeout_s=5),
            score_all(Returns([Score(2.0)], "two"), apart(EPISODES[:1]), timeout_s=5),
        )

    assert asyncio.run(main()) == [[[Score(1.0)]], [[Score(2.0)]]]


GROUPS = [EpisodeGroup(EPISODES[0].task, (EPISODES[0], EPISODES[0])), EpisodeGroup(EPISODES[1].task, (EPISODES[1],))]


def ask(reward):
    return asyncio.run(score_all(reward, GROUPS, timeout_s=5))


def test_scores_of_groups_pass_through_in_their_groups():
    given = [[Score(0.5), Score(0.25)], [Score(1.0)]]
    assert ask(Answers(given)) == given
    assert ask(Returns([Score(0.5), Score(0.25), Score(1.0)])) == given


@pytest.mark.parametrize(
    "returned, said",
    [
        (None, "returned None for 2 groups"),
        ([Score(1.0)] * 3, "returned 3 lists for 2 groups"),
        ([[Score(1.0)]], "returned 1 lists for 2 groups"),
        ([[Score(1.0)], [Score(1.0)]], "returned 1 scores for 2 episodes"),
        ([[Score(1.0), Score(1.0)], [1.0]], "returned a float on task 'train-1'"),
        ([[Score(1.0), Score(math.nan)], [Score(1.0)]], "value nan on task 'train-0'"),
        ([Score(1.0), [Score(1.0)]], "returned a Score for 2 episodes"),
    ],
)
def test_what_is_no_list_of_scores_for_each_group_is_an_error(returned, said):
    with pytest.raises(RewardError, match=f"reward 'strange' .*{said}|reward 'strange' {said}"):
        ask(Answers(returned))


def test_groups_that_are_too_small_to_compare_are_refused_before_anything_is_asked():
    with pytest.raises(
        UserError, match="reward 'strange' compares 2 or more completions of a task; task 'train-1' has 1"
    ):
        ask(Answers("not asked", min_group=2))


def test_an_error_while_an_episode_is_scored_names_it():
    with (
        pytest.raises(RewardError, match=r"'mine' raised ZeroDivisionError: .* on task 'train-7'"),
        scoring("mine", episode("2", "2", id="train-7")),
    ):
        1 / 0  # noqa: B018
