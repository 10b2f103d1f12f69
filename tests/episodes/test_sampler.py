"""Groups to which no reward applies are learned from no more than others, and are counted."""

import math
from dataclasses import replace

import pytest

from posttrain.engine.scripted import ScriptedEngine
from posttrain.environments.scored import ScoredEnvironment
from posttrain.episodes.episodes import run_with
from posttrain.episodes.monte_carlo_values import state_values
from posttrain.episodes.sampler import Sampler
from posttrain.errors import EpisodeError, RewardError
from posttrain.rewards import Weighted, from_function
from posttrain.types import Message, Sampling, States, Task
from tests.episodes.conversations import CHAT, players
from tests.groups import with_rows

(STOP,) = CHAT.tokenizer.encode("<|im_end|>", add_special_tokens=False)
LETTERS = [CHAT.tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "abcd"]


def sampler(reward, prompts=2, **settings):
    tasks = [Task((Message("user", name),), id=name, metadata={"kind": name}) for name in ("math", "prose")]
    engine = ScriptedEngine(lambda request: (LETTERS[request.seed % 4], STOP), CHAT.stop_ids)
    environment = ScoredEnvironment(Weighted(((from_function(reward, "mine"), 1.0),)))
    return Sampler(environment, tasks, players(engine, Sampling(4)), prompts, 4, seed=0, **settings)


def only_math(completions, kind):
    return [1.0 if k == "math" else None for k in kind]


def test_a_group_without_a_reward_is_left_out_and_another_drawn():
    rolled = sampler(only_math).roll_out(0)
    assert [group.task.id for group in rolled.groups] == ["math"] and len(rolled.sampled) == 2
    assert (rolled.lost, rolled.thrown_away, rolled.draws) == (1, 0, (0,))
    again = sampler(only_math, max_refills=3).roll_out(0)
    assert [group.task.id for group in again.groups] == ["math"] * 2
    assert (again.lost, again.thrown_away, again.draws) == (2, 0, (0, 1))
    choosy = sampler(only_math, accepts=lambda rewards: False).roll_out(0)
    assert (choosy.groups, choosy.lost, choosy.thrown_away) == ([], 1, 1)


def test_a_group_with_one_lost_completion_is_left_out():
    rolled = sampler(lambda completions: [None, *[1.0] * (len(completions) - 1)]).roll_out(0)
    assert rolled.lost == 1 and len(rolled.groups) == 1
    lost = next(group for group in rolled.sampled if group.lost)
    assert math.isnan(lost.rewards[0]) and lost.rewards[1:] == (1.0,) * 3


def test_a_group_is_accepted_by_the_rewards_of_one_of_its_seats():
    """In a game of win or lose both seats together always differ; what teaches is that one seat's rewards do."""

    def seated(*rewards):
        def shaped(group, seed):
            return with_rows(group, reward=rewards, seat=["black", "white"] * 2, episode=[0, 0, 1, 1])

        return shaped

    asked = []

    def varies(rewards):
        asked.append(list(rewards))
        return len(set(rewards)) > 1

    def groups(*rewards):
        every = sampler(lambda completions: [1.0] * len(completions), accepts=varies, shaped=seated(*rewards))
        return every.roll_out(0).groups

    assert groups(1.0, 0.0, 1.0, 0.0) == []
    assert asked == [[1.0, 1.0], [0.0, 0.0]] * 2
    assert len(groups(1.0, 0.0, 1.0, 0.5)) == 2


def test_greedy_rewards_are_those_of_each_seat(monkeypatch):
    ready = sampler(lambda completions: [1.0] * len(completions))
    groups = ready.roll_out(0).groups

    def played(environment, tasks, *given, **options):
        return [with_rows(group, reward=[1.0, -1.0, 0.0, 0.5], seat="abcd") for group in groups]

    monkeypatch.setattr("posttrain.episodes.sampler.sample_groups", played)
    assert ready.greedy_rewards(groups)[0] == {"a": 1.0, "b": -1.0, "c": 0.0, "d": 0.5}


def test_a_reward_that_never_applies_ends_the_run_before_its_first_update():
    with pytest.raises(RewardError, match=r"first 2 prompts has a completion to which no reward \('mine'\) applies"):
        sampler(lambda completions: [None] * len(completions)).roll_out(0)
    later = sampler(lambda completions: [None] * len(completions)).roll_out(1)  # by chance, or after a change: skipped
    assert (later.groups, later.lost) == ([], 2)


def test_what_others_are_compared_with_must_have_a_reward():
    ready = sampler(only_math)
    groups = ready.roll_out(0).groups
    assert ready.greedy_rewards(groups) == [{"policy": 1.0}]
    never = sampler(lambda completions: [None] * len(completions))
    with pytest.raises(RewardError, match="no reward applies to the most likely completion of task 'math'"):
        never.greedy_rewards(groups)
    with pytest.raises(RewardError, match="no reward applies to any continuation of task 'math'"):
        never.state_values(groups, States(2, 1, 3), 0)


def test_a_state_is_worth_what_the_continuations_that_are_judged_earn():
    ready = sampler(only_math)
    groups = ready.roll_out(0).groups
    halves = sampler(lambda completions: [None if i % 2 else 3.0 for i in range(len(completions))])
    found = state_values(groups, States(2, 0, 1), halves.environment, halves.players, seed=0)
    assert {value for one in found for value in one.values} == {3.0}


def one_by_one(of, draws, **settings):
    """The groups of these draws, sampled one by one."""
    asks = (of := replace(of, **settings)).asks()

    async def sample():
        return [await of.one(draw, asks) for draw in draws]

    return run_with(asks, of.players, sample())


def test_a_group_sampled_by_itself_is_that_of_a_batch_of_one():
    alone = sampler(lambda completions: list(map(len, completions)), prompts=1)
    found = one_by_one(alone, range(4), shaped=lambda group, seed: with_rows(group, metrics=[{"by": seed}] * 4))
    shaping = replace(alone, shaped=lambda group, seed: with_rows(group, metrics=[{"by": seed}] * 4))
    for draw, each in enumerate(found):
        (expected,) = alone.roll_out(draw).groups
        assert each[:2] == (draw, expected) and each.failed == []
        assert [each.accepted] == shaping.roll_out(draw).groups
    assert len({each.accepted.rows[0].metrics["by"] for each in found}) == 4
    refused = one_by_one(alone, range(1), accepts=lambda rewards: False)
    assert refused[0].group == found[0].group and refused[0].accepted is None


def test_a_step_of_single_groups_counts_what_each_of_them_was():
    of = sampler(only_math)
    found = one_by_one(of, range(6))
    math_groups = [each.group for each in found if each.accepted]
    assert 0 < len(math_groups) < 6
    rolled = of.rolled([*found[3:], *found[:3]], evicted=[9, 7], begun=6)
    assert rolled.draws == (0, 1, 2, 3, 4, 5, 7, 9) and rolled.evicted == 2
    assert sorted(map(id, rolled.groups)) == sorted(map(id, math_groups)) and len(rolled.sampled) == 6
    assert (rolled.lost, rolled.thrown_away) == (6 - len(math_groups), 0)
    one = found[0]._replace(accepted=None)
    assert of.rolled([one, *found[1:]], [], 6).thrown_away == (found[0].accepted is not None)


def test_a_step_of_single_groups_fails_as_one_of_a_batch_does():
    of = sampler(lambda completions: [None] * len(completions))
    found = one_by_one(of, range(2))
    with pytest.raises(RewardError, match="of the first 2 prompts"):
        of.rolled(found, [], 2)
    with pytest.raises(RewardError, match="of the first 1 prompts"):
        of.rolled(found[1:], [0], 1)
    assert of.rolled(found[1:], [3], 1).lost == 1  # not of the first ones
    failed = [each._replace(group=None, failed=[KeyError("gone")] * 4) for each in found]
    with pytest.raises(EpisodeError, match=r"8 of 8 episodes failed \(8 KeyError\)"):
        of.rolled(failed, [], 2)
    lenient = replace(of, players=replace(of.players, max_lost=1.0))
    with pytest.raises(EpisodeError, match=r"8 episodes failed \(8 KeyError\), so that no task"):
        lenient.rolled(failed, [], 2)
    half = replace(of, players=replace(of.players, max_lost=0.5))
    assert half.rolled([found[0]._replace(draw=5), failed[1]], [], 2).failed == {"KeyError": 4}
    quarter = replace(of, players=replace(of.players, max_lost=0.25))
    assert quarter.rolled([found[0]._replace(draw=5), failed[1]], [], 4).failed == {"KeyError": 4}


def test_accepted_groups_beyond_those_of_a_step_are_thrown_away():
    verdicts = iter([False, True, True, True])
    every = sampler(lambda completions: [1.0] * len(completions), accepts=lambda rewards: next(verdicts), max_refills=3)
    rolled = every.roll_out(0)
    assert (len(rolled.groups), len(rolled.sampled), rolled.thrown_away, rolled.draws) == (2, 4, 2, (0, 1))
