"""Functions that are called elsewhere: the same reward, by other hands."""

import asyncio
import math
import threading
from dataclasses import replace

import pytest

from posttrain.errors import ProcessLost, RewardError, UserError
from posttrain.rewards import CustomReward, Named, Weighted, apart, load_again, load_reward, parse_rewards, score_all
from posttrain.types import Score
from tests.rewards.episodes import episode, flat, parts

FUNCTIONS = """
from posttrain.rewards import reward_function

def plain(completion): return 0

@reward_function(role="verifier", bounds=(0, 3), min_group=2)
def compared(group, completions): return [0] * len(completions)

def asking(completion, reward_context): return 0
"""

EPISODES = [episode("a", id="0"), episode("bb", id="1"), episode("ccc", id="2")]


@pytest.fixture
def file(tmp_path):
    found = tmp_path / "functions.py"
    found.write_text(FUNCTIONS)
    return found


def moved(weighted, answers):
    """With functions that answer what a test says, and note for what they were made."""
    made = []

    def ask(function, timeout_s):
        made.append((function.name, timeout_s))
        return lambda groups: answers(function, groups)

    return weighted.moved(ask), made


def ones(function, groups):
    return [[Score(1.0) for _ in group.episodes] for group in groups]


def test_functions_of_files_that_ask_nobody_are_moved(file):
    weighted = parse_rewards(f"tags {file}:plain=0.5 {file}:asking", timeout_s=7.0)
    weighted = replace(weighted, parts=(*weighted.parts, (Named(load_reward(f"{file}:compared"), "gold"), 0.0)))
    assert [function.name for function in weighted.movable] == ["plain", "compared"]
    found, made = moved(weighted, ones)
    assert made == [("plain", 7.0), ("compared", 7.0)] and found.timeout_s == 7.0
    assert found.weights == weighted.weights
    inner = [reward.reward if isinstance(reward, Named) else reward for reward, _ in found.parts]
    kinds = [isinstance(reward, CustomReward) and reward.ask is not None for reward in inner]
    assert kinds == [False, True, False, True]
    assert found.parts[0] == weighted.parts[0] and found.parts[2][0] is weighted.parts[2][0]
    assert [scores["plain"].value for scores in parts(replace(found, parts=found.parts[:2]), EPISODES)] == [1, 1, 1]


def test_what_is_known_of_a_function_is_known_of_a_moved_one(file):
    here = parse_rewards(f"{file}:compared {file}:plain")
    there, _ = moved(here, ones)
    assert there.outcome == here.outcome == "compared" and there.min_group == 2 and there.certain
    assert [replace(there, parts=(part,)).compares for part in there.parts[:2]] == [True, False]
    assert there.parts[0][0].bounds == (0, 3) and there.parts[0][0].role == "verifier"
    assert asyncio.run(there.unreadable([episode("a").task])) == [""]


@pytest.mark.parametrize("answer", [Score(1.5), {"policy": Score(1.5)}])
def test_the_first_score_outside_0_and_1_that_comes_back_is_kept(file, answer):
    here = parse_rewards(f"{file}:plain")
    scores = [Score(1.0), Score.not_applicable(), answer, Score(-2.0)]
    there, _ = moved(here, lambda function, groups: [[scores[int(e.task.id)]] for g in groups for e in g.episodes])
    assert there.outcome == "plain" and there.unbounded == {}
    parts(there, [episode("x", id=str(number)) for number in range(4)])
    assert there.outcome == "" and there.unbounded == {"plain": 1.5}
    there.restore({"plain": 9.0})
    assert there.unbounded == {"plain": 9.0}


def test_calls_of_several_groups_wait_at_the_same_time_and_no_time_limit_is_kept_here(file):
    both = threading.Barrier(2)

    def together(function, groups):
        both.wait(10)
        return ones(function, groups)

    there, _ = moved(parse_rewards(f"{file}:plain", timeout_s=1e-9), together)

    async def two():
        return await asyncio.gather(*(there.score_parts(apart(EPISODES[:n])) for n in (1, 2)))

    assert [len(found) for found in asyncio.run(two())] == [1, 2]


def test_what_comes_back_is_checked_and_an_error_is_passed_on(file):
    there, _ = moved(parse_rewards(f"{file}:plain"), lambda function, groups: {}[0])
    with pytest.raises(RewardError, match="reward 'plain' raised KeyError: 0"):
        parts(there, EPISODES)


def test_a_loss_of_processes_is_no_error_of_the_reward(file):
    def lost(function, groups):
        raise ProcessLost("gone")

    with pytest.raises(ProcessLost, match=r"^gone$"):
        parts(moved(parse_rewards(f"{file}:plain"), lost)[0], EPISODES)


def test_a_function_is_loaded_again_by_its_absolute_path_unless_the_file_has_changed(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    source = load_reward("functions.py:plain").source
    assert source is not None and source.path == f"{file}:plain"
    monkeypatch.chdir("/")
    again = load_again(source)
    assert again.name == "plain" and again.source == source
    assert flat(asyncio.run(score_all(again, apart(EPISODES), timeout_s=math.inf))) == [Score(0.0)] * 3
    file.write_text(FUNCTIONS + "\n")
    with pytest.raises(UserError, match=r"the file of the reward '.*functions.py:plain' is not what the run began"):
        load_again(source)


def test_a_function_of_no_file_stays(file):
    from posttrain.rewards import from_function

    weighted = Weighted(((from_function(lambda completion: 0, "mine"), 1.0),))
    assert weighted.movable == [] and moved(weighted, ones)[0] == weighted
