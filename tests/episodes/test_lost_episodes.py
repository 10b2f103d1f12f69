"""Episodes that fail are counted by cause and are in no group; where none is left, one line says why."""

import asyncio
import math
from dataclasses import replace

import pytest

from posttrain.engine.scripted import ScriptedEngine
from posttrain.environments import Environment
from posttrain.episodes.episodes import opened, play, sample_groups
from posttrain.episodes.metrics import lost_metrics
from posttrain.episodes.sampler import Sampler
from posttrain.errors import EpisodeError, PosttrainError, UserError
from posttrain.types import Outcome
from tests.episodes.conversations import CHAT, Quiz, players, question, scored

(STOP,) = CHAT.tokenizer.encode("<|im_end|>", add_special_tokens=False)


def engine():
    return ScriptedEngine(lambda request: (*CHAT.tokenizer.encode("ok"), STOP), CHAT.stop_ids)


class Fails(Quiz):
    """Fails on tasks that are called after an error."""

    async def play(self, task, seats, seed):
        outcome = await super().play(task, seats, seed)
        if task.id in ("KeyError", "ValueError", "RateLimitError"):
            raise type(task.id, (Exception,), {})("of this task")
        return outcome


def sampler(*names, max_lost=1.0, prompts=None, **settings):
    tasks = [question(name) for name in names]
    asked = players(engine(), max_lost=max_lost)
    return Sampler(scored(Fails()), tasks, asked, prompts or len(tasks), 2, seed=0, **settings)


def test_what_failed_is_counted_by_cause_over_all_draws():
    rolled = sampler("a", "KeyError", "ValueError", "b").roll_out(0)
    assert rolled.failed == {"KeyError": 2, "ValueError": 2} and len(rolled.sampled) == 2
    assert lost_metrics(rolled.failed) == {
        "episodes/lost": 4,
        "episodes/lost/KeyError": 2,
        "episodes/lost/ValueError": 2,
    }
    choosy = sampler("a", "KeyError", "ValueError", "b", accepts=lambda rewards: False, max_refills=2)
    again = choosy.roll_out(0)
    assert again.draws == (0, 1, 2) and again.failed == {"KeyError": 6, "ValueError": 6}
    fine = sampler("a", "b").roll_out(0)
    assert fine.failed == {} and lost_metrics(fine.failed) == {}


def test_an_episode_that_was_tried_again_is_counted_once():
    assert sampler("a", "RateLimitError").roll_out(0).failed == {"RateLimitError": 2}


@pytest.mark.parametrize("draw", [0, 3])
def test_where_no_group_is_left_the_step_fails_in_one_line(draw):
    with pytest.raises(EpisodeError, match=r"^4 episodes failed \(2 KeyError, 2 ValueError\), so that no task has"):
        sampler("KeyError", "ValueError").roll_out(draw)


def test_a_greedy_episode_that_fails_is_an_error_not_another_tasks_reward():
    of = sampler("a", "b")
    groups = of.roll_out(0).groups
    assert of.greedy_rewards(groups) == [{"policy": 10.0}] * 2
    broken = sampler("KeyError", "b")
    with pytest.raises(EpisodeError, match="the greedy episode of a task failed"):
        broken.greedy_rewards([*groups[:1], *sampler("KeyError", "b").roll_out(0).groups, *_group_of("KeyError")])


def _group_of(name):
    (group,) = sampler("a").roll_out(0).groups
    return [replace(group, task=question(name))]


def test_the_share_that_may_fail_is_of_all_episodes():
    assert sampler("a", "b", "c", "KeyError", max_lost=0.25).roll_out(0).failed == {"KeyError": 2}
    with pytest.raises(EpisodeError, match=r"2 of 6 episodes failed \(2 KeyError\), more than `max_lost` 0.33"):
        sampler("a", "b", "KeyError", max_lost=0.33).roll_out(0)


def test_who_plays_is_told_of_each():
    told = []
    found = play(scored(Fails()), [question("a"), question("KeyError")], players(engine(), max_lost=1.0), [0, 1])
    play(
        scored(Fails()),
        [question("a"), question("KeyError")],
        players(engine(), max_lost=1.0, on_lost=told.append),
        [0, 1],
    )
    assert [type(each).__name__ for each in (*told, found[1])] == ["KeyError", "KeyError"]


def test_what_posttrain_raises_on_purpose_ends_all_episodes():
    class Refuses(Quiz):
        async def play(self, task, seats, seed):
            await super().play(task, seats, seed)
            if task.id == "bad":
                raise UserError("no such tool")
            return await super().play(task, seats, seed)

    asked = players(engine(), max_lost=1.0)
    with pytest.raises(PosttrainError, match="no such tool"):
        sample_groups(scored(Refuses()), [question("a"), question("bad")], asked, completions_per_prompt=2, seed=0)


def test_an_environment_is_open_in_the_loop_in_which_it_plays_and_closed_also_after_a_failure():
    class Opens(Quiz):
        loops = ()

        async def open(self):
            self.loops = (*self.loops, asyncio.get_running_loop())

        async def close(self):
            self.loops = (*self.loops, asyncio.get_running_loop())

        async def play(self, task, seats, seed):
            self.loops = (*self.loops, asyncio.get_running_loop())
            return await super().play(task, seats, seed)

    environment = Opens()
    with pytest.raises(ZeroDivisionError), opened(environment):
        play(scored(environment), [question("a")], players(engine()), [0])
        math.floor(1 / 0)
    assert len(environment.loops) == 3 and len(set(environment.loops)) == 1


def test_an_environment_that_cannot_open_is_not_closed():
    class Broken(Quiz):
        closed = False

        async def open(self):
            raise OSError("no such server")

        async def close(self):
            self.closed = True

    environment = Broken()
    with pytest.raises(UserError, match="raised OSError: no such server"), opened(environment):
        pass
    assert not environment.closed


def test_groups_beyond_what_a_step_wants_count_as_thrown_away():
    tasks = [question(name) for name in "abcd"]
    draws = iter([False, True, True, True, True, True, True, True])
    settings = {"accepts": lambda rewards: next(draws), "max_refills": 3}
    rolled = Sampler(scored(Quiz()), tasks, players(engine()), 4, 2, seed=0, **settings).roll_out(0)
    assert (len(rolled.sampled), len(rolled.groups), rolled.thrown_away, rolled.draws) == (8, 4, 4, (0, 1))


class Duel(Environment):
    """Says what the first seat earned alone."""

    seats = trained = ("first", "second")

    async def play(self, task, seats, seed):
        for seat in seats.values():
            await seat.turn(task.prompt)
        return Outcome({"first": 1.0})


def test_an_outcome_that_leaves_out_a_trained_seat_is_said_to():
    with pytest.raises(EpisodeError, match=r"and not what second did, which is trained$"):
        sample_groups(scored(Duel()), [question()], players(engine()), completions_per_prompt=2, seed=0)
