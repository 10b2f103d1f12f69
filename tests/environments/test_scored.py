"""What an environment says of an episode as rewards, by seat, and what a run logs of it."""

import asyncio
import math

import pytest

from posttrain.environments import ScoredEnvironment
from posttrain.environments.scored import need_group, of_seat, overseen
from posttrain.episodes.metrics import episode_metrics
from posttrain.errors import RewardError, UserError
from posttrain.rewards import Weighted, parse_rewards
from posttrain.rewards.reward import Earned, EpisodeReward, Solved, apart, bounds_of, role_of, score_all
from posttrain.runs.run import samples_of
from posttrain.testing import check_reward
from posttrain.types import Episode, Message, Outcome, Score, StopReason, Task, Trajectory, Turn
from tests.groups import group_of, with_rows

TASK = Task((Message("user", "Go."),), id="one", answer=7)


def episode(**outcome):
    return Episode(TASK, (*TASK.prompt, Message("assistant", "ok")), outcome=Outcome(**outcome))


def scores_of(reward, *episodes):
    return [one for (one,) in asyncio.run(score_all(reward, apart(episodes), timeout_s=9))]


def test_what_each_seat_earned_is_its_score():
    found = scores_of(Earned(), episode(rewards={"black": 1.0, "white": -2.5}), episode())
    assert found == [{"black": Score(1.0), "white": Score(-2.5)}, {}]
    assert bounds_of(Earned()) == (-math.inf, math.inf) and role_of(Earned()) == "rule"


def test_what_was_solved_is_1_and_what_nobody_says_is_not_applicable():
    yes, no, silent = scores_of(Solved(), episode(solved=True), episode(solved=False), episode())
    assert (yes, no) == (Score(1.0), Score(0.0))
    assert not silent.applicable and math.isnan(silent.value) and silent.explanation == "the environment does not say"
    assert role_of(Solved()) == "verifier" and bounds_of(Solved()) == (0, 1)


@pytest.mark.parametrize("reward", [Earned(), Solved()])
def test_both_conform(reward):
    episodes = [episode(rewards={"a": float(n)}, solved=bool(n % 2)) for n in range(4)]
    check_reward(reward, [*episodes, episode()])


def test_scores_of_one_seat():
    scores = {"both": Score(1.0), "apart": {"black": Score(2.0)}}
    assert of_seat(scores, "black") == {"both": Score(1.0), "apart": Score(2.0)}
    white = of_seat(scores, "white")
    assert white["both"] == Score(1.0) and not white["apart"].applicable
    assert white["apart"].explanation == "not of this seat"


def test_the_environments_own_reward_brings_whether_it_was_solved_unless_that_is_there():
    alone = overseen(parse_rewards("environment")).environment
    assert [(reward.name, weight) for reward, weight in alone.reward.parts] == [("environment", 1.0), ("solved", 0.0)]
    assert alone.outcome == "solved" and alone.reward.total({"environment": Score(0.25), "solved": Score(1.0)}) == 0.25
    both = overseen(parse_rewards("environment solved=2")).environment
    assert [weight for _, weight in both.reward.parts] == [1.0, 2.0]
    assert "solved" not in overseen(parse_rewards("numbers")).environment.reward.weights


def test_groups_that_are_too_small_are_refused():
    class Compares(EpisodeReward):
        name, min_group = "vote", 3

    environment = ScoredEnvironment(Weighted(((Compares(), 1.0), (Solved(), 0.0))))
    need_group(environment, 3, "`n`")
    with pytest.raises(UserError, match="reward 'vote' compares 3 or more completions of a task; `n` gives 2"):
        need_group(environment, 2, "`n`")
    assert environment.reward.min_group == 3


@pytest.mark.parametrize(
    ("value", "said"),
    [({"a": Score(math.nan)}, "value nan"), ({"a": 1.0}, "returned a float"), ({"a": Score(1.0), "b": None}, "None")],
)
def test_a_score_of_a_seat_is_checked_as_any_other(value, said):
    class Says(EpisodeReward):
        name = "mine"

        async def score_episodes(self, episodes):
            return [value for _ in episodes]

    with pytest.raises(RewardError, match=f"reward 'mine' returned .*{said}.* on task 'one'|{said}"):
        scores_of(Says(), episode())


def test_the_value_of_a_seats_score_that_does_not_apply_is_no_number():
    class Says(EpisodeReward):
        name = "mine"

        async def score_episodes(self, episodes):
            return [{"a": Score(3.0, applicable=False)} for _ in episodes]

    (found,) = scores_of(Says(), episode())
    assert math.isnan(found["a"].value)


def turn(text="ok", reason=StopReason.STOP):
    return Turn((1,), (2, 3), (-1.0, -1.0), reason, text)


def group(turns, metrics=()):
    rows = tuple(Trajectory(tuple(turn() for _ in range(n))) for n in turns)
    return group_of(rows, [1.0] * len(rows), task=TASK, scores=[{"r": Score(1.0)}] * len(rows), metrics=metrics)


def test_turns_and_measures_are_averaged_over_the_rows_that_have_them():
    assert episode_metrics([group([1, 1])]) == {}
    assert episode_metrics([group([1, 3]), group([2])]) == {"turns": 2.0}
    measured = group([1, 1, 1], ({"guesses": 2.0}, {}, {"guesses": 4.0, "hints": 1.0}))
    assert episode_metrics([measured, group([1])]) == {"environment/guesses": 3.0, "environment/hints": 1.0}


def test_a_sample_of_several_turns_is_all_that_was_said_after_the_prompt():
    said = (*TASK.prompt, Message("assistant", "3"), Message("user", "Lower."), Message("assistant", "2"))
    single = (*TASK.prompt, Message("assistant", "1"))
    of = with_rows(group([2, 1]), conversation=[said, single])
    many, one = samples_of([of])
    assert many.completion == "assistant: 3\nuser: Lower.\nassistant: 2" and one.completion == "ok"
    assert many.prompt == "user: Go." and many.answer == "7"
    assert [s.completion for s in samples_of([of], per_group=1)] == [many.completion]
    (plain,) = samples_of([group([1])])
    assert plain.completion == "ok"
