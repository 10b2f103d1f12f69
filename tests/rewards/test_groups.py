"""Rewards that compare the completions of a task: declared by a decorator, checked before anything is sampled."""

import asyncio
import math
from collections import Counter

import pytest

from posttrain.engine.engine import BatchEngine
from posttrain.environments.scored import ScoredEnvironment
from posttrain.episodes.episodes import sample_groups
from posttrain.episodes.monte_carlo_values import state_values
from posttrain.errors import RewardError, UserError
from posttrain.rewards import (
    Named,
    NumberVerifier,
    Weighted,
    custom,
    from_function,
    parse_rewards,
    reward_function,
    score_all,
)
from posttrain.rewards.combine import unreadable_answers
from posttrain.rewards.reward import bounds_of, min_group_of, role_of
from posttrain.testing import check_reward
from posttrain.types import EpisodeGroup, States
from tests.episodes.conversations import players, question
from tests.episodes.test_episodes import engine
from tests.rewards.episodes import episode


@reward_function(role="verifier", bounds=(0, 1), min_group=2)
def majority(group, completions):
    """1 for the answer that most of the group give."""
    (most, _), *_ = Counter(completions).most_common(1)
    return [float(completion == most) for completion in completions]


GROUPS = [
    EpisodeGroup(episode("a").task, (episode("a"), episode("b"), episode("a"))),
    EpisodeGroup(episode("c").task, (episode("c"), episode("c"))),
]


def test_a_function_of_a_group_is_asked_group_by_group():
    reward = from_function(majority)
    scores = asyncio.run(reward.score(GROUPS))
    assert [[score.value for score in of_group] for of_group in scores] == [[1.0, 0.0, 1.0], [1.0, 1.0]]
    assert (role_of(reward), bounds_of(reward), min_group_of(reward)) == ("verifier", (0, 1), 2)
    check_reward(reward, GROUPS)
    assert asyncio.run(reward.score([])) == []


def test_a_group_has_its_task_and_its_columns():
    def seen(group, answers, level):
        return [float(group.task.answer == a) * value for a, value in zip(answers, level, strict=True)]

    first, second = episode("a", 1, level=2), episode("b", 1, level=3)
    (scores,) = asyncio.run(from_function(seen).score([EpisodeGroup(first.task, (first, second))]))
    assert [score.value for score in scores] == [2.0, 3.0]


def test_what_applies_to_no_completion_of_a_group_says_so():
    found = asyncio.run(from_function(lambda group: [None] * len(group.episodes), "none").score(GROUPS[:1]))
    assert [score.applicable for score in found[0]] == [False] * 3


@pytest.mark.parametrize(
    "declared, said",
    [
        ({"role": "verifer"}, "did you mean 'verifier'"),
        ({"bounds": (1, 0)}, "lowest and its highest"),
        ({"bounds": (1, 1)}, "lowest and its highest"),
        ({"min_group": 0}, "1 or more; got 0"),
    ],
)
def test_what_cannot_be_declared_is_refused(declared, said):
    with pytest.raises(UserError, match=said):
        reward_function(**declared)


def test_a_smallest_group_needs_a_function_of_groups():
    with pytest.raises(UserError, match="declares min_group, but takes no 'group'"):
        from_function(reward_function(min_group=2)(lambda completions: [0.0] * len(completions)), "flat")


def test_a_value_beyond_declared_bounds_is_an_error():
    far = from_function(reward_function(bounds=(0, 1))(lambda completion: 2.0), "far")
    with pytest.raises(RewardError, match="'far' returned 2 on task 't'; it declares bounds of 0 and 1"):
        asyncio.run(far.score(GROUPS))
    wide = from_function(reward_function(bounds=(0, 2))(lambda completion: 2.0), "wide")
    assert asyncio.run(wide.score(GROUPS[1:]))[0][0].value == 2.0
    assert bounds_of(wide) == (0, 2) and Weighted(((wide, 1.0),)).outcome == ""


def test_bounds_of_a_function_that_declares_none_are_unknown_until_it_leaves_0_to_1():
    free = from_function(lambda completion: len(completion) * 2, "free")
    assert bounds_of(free) is None and Weighted(((free, 1.0),)).outcome == "free"
    asyncio.run(free.score(GROUPS))
    assert bounds_of(free) == (-math.inf, math.inf) and Weighted(((free, 1.0),)).outcome == ""


def test_a_monitor_is_no_outcome_and_keeps_the_size_of_its_group():
    named = Named(from_function(majority), "gold")
    assert (role_of(named), min_group_of(named)) == ("monitor", 2)
    watched = from_function(reward_function(role="monitor")(lambda completion: 1.0), "watched")
    both = Weighted(((watched, 0.0), (named, 0.0)))
    assert (both.outcome, both.min_group) == ("", 2)
    assert Weighted((*both.parts, (from_function(majority), 1.0))).outcome == "majority"
    assert parse_rewards("numbers tags").min_group == 1


class Agreed:
    """A verifier that is no function and cannot be asked about one episode."""

    name, role, min_group = "agreed", "verifier", 2

    async def score(self, groups):
        raise RewardError("asked")


@reward_function(role="verifier")
def last_word(completions, completion_ids, answers):
    """What says nothing has no last word, and no tokens."""
    return [float(completion.split()[-1] == answer) for completion, answer in zip(completions, answers, strict=True)]


@pytest.mark.parametrize("reward", [from_function(majority), Agreed(), from_function(last_word)])
def test_a_verifier_that_can_say_nothing_of_a_silent_completion_is_not_asked(reward):
    assert asyncio.run(unreadable_answers(reward, [episode("a", "a").task])) == [""]


def test_a_monitor_is_never_optimised(tmp_path):
    lines = ["from posttrain.rewards import reward_function", "@reward_function(role='monitor')"]
    (tmp_path / "w.py").write_text("\n".join([*lines, "def watched(completion):", "    return 1.0"]))
    assert parse_rewards(f"numbers {tmp_path}/w.py:watched").weights == {"numbers": 1.0, "watched": 0.0}
    with pytest.raises(UserError, match=r"'watched' is a monitor, which is logged and never optimised; .* of 0.5"):
        parse_rewards(f"numbers {tmp_path}/w.py:watched=0.5")


def test_coroutines_compare_groups_at_the_same_time():
    begun = []

    async def judged(group):
        begun.append(group)
        while len(begun) < len(GROUPS):
            await asyncio.sleep(0)
        return [0.5] * len(group.episodes)

    found = asyncio.run(asyncio.wait_for(from_function(judged).score(GROUPS), 10))
    assert [len(scores) for scores in found] == [3, 2]


def test_a_function_that_fails_on_a_group_names_its_task():
    groups = [EpisodeGroup(one.task, (one, one)) for one in (episode("a", id="first"), episode("b", id="second"))]

    def fails(group):
        return [1 / (group.task.id != "second")] * 2

    with pytest.raises(RewardError, match=r"raised ZeroDivisionError: .* on task 'second'$"):
        asyncio.run(score_all(from_function(fails), groups, timeout_s=9.0))


def test_what_looks_at_a_group_compares_whatever_it_declares():
    rank = from_function(lambda group: [0.0] * len(group.episodes), "rank")
    assert rank.min_group == 1
    for reward in (rank, Named(rank, "gold"), Agreed()):
        assert Weighted(((NumberVerifier(), 1.0), (reward, 0.0))).compares
    for reward in (from_function(last_word), Named(NumberVerifier(), "gold")):
        assert not Weighted(((reward, 0.0),)).compares


VOTE = ScoredEnvironment(Weighted(((from_function(majority), 1.0),)))


class Silent(BatchEngine):
    """An engine that must not be asked."""

    def generate(self, requests, on_tokens=None):
        raise AssertionError("asked")


def sample(completions, engine):
    tasks = [question("a"), question("b")]
    return sample_groups(VOTE, tasks, players(engine), completions_per_prompt=completions, seed=0)


def test_groups_are_scored_as_groups():
    for group in sample(3, engine()):
        assert group.rewards == (1.0, 1.0, 1.0)  # the scripted engine says one thing to one question


def test_groups_that_are_too_small_are_refused_before_anything_is_sampled():
    with pytest.raises(UserError, match="compares 2 or more completions of a task; the number of completions"):
        sample(1, Silent())
    groups = sample(2, engine())
    with pytest.raises(UserError, match="the number of continuations of a state gives 1"):
        state_values(groups, States(1, 2, 3), VOTE, players(Silent()), seed=0)


def test_docstring_examples_run():
    import doctest

    assert doctest.testmod(custom).failed == 0
