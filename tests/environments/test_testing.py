"""The kit itself: each fault that it looks for, planted, and found."""

import asyncio
import math

import pytest

from posttrain.environments import ScriptedSeat, SingleTurn, check_environment
from posttrain.environments.testing import SeatFailure
from posttrain.rewards import parse_rewards
from posttrain.types import Episode, Message, Score, Task

ASK = Message("user", "Are you sure?")
TASKS = [
    Task((Message("user", "2 + 2?"),), answer=4, gold="#### 4", id="two"),
    Task((Message("system", "Be brief."), Message("user", "3 + 3?")), answer=6, gold="#### 6", id="three"),
]


class Conforms(SingleTurn):
    """Two turns of one policy; each fault below changes one thing of it."""

    def __init__(self):
        super().__init__(parse_rewards("numbers"))

    async def play(self, task, seats):
        first = await seats["policy"].turn(task.prompt)
        second = await seats["policy"].turn([ASK])
        return Episode(task, (*task.prompt, first, ASK, second))


def failures(environment, tasks=TASKS) -> str:
    return "\n".join(asyncio.run(check_environment(environment, tasks)))


def test_environments_of_one_and_two_turns_conform():
    assert failures(SingleTurn(parse_rewards("numbers"))) == ""
    assert failures(Conforms()) == ""


class TellsItsOwnWords(Conforms):
    async def play(self, task, seats):
        first = await seats["policy"].turn(task.prompt)
        second = await seats["policy"].turn([first, ASK])
        return Episode(task, (*task.prompt, first, ASK, second))


class WithholdsThePrompt(Conforms):
    async def play(self, task, seats):
        first = await seats["policy"].turn(task.prompt[1:])
        return Episode(task, (*task.prompt, first))


class NeverAsks(Conforms):
    async def play(self, task, seats):
        return Episode(task, task.prompt)


class EditsTheReply(Conforms):
    async def play(self, task, seats):
        reply = await seats["policy"].turn(task.prompt)
        return Episode(task, (*task.prompt, Message("assistant", reply.content.strip() + "!")))


class ShufflesTheReplies(Conforms):
    async def play(self, task, seats):
        first = await seats["policy"].turn(task.prompt)
        second = await seats["policy"].turn([ASK])
        return Episode(task, (*task.prompt, second, ASK, first))


class ForgetsAMessage(Conforms):
    async def play(self, task, seats):
        first = await seats["policy"].turn(task.prompt)
        second = await seats["policy"].turn([ASK])
        return Episode(task, (*task.prompt, first, second))


class AnotherTask(Conforms):
    async def play(self, task, seats):
        return Episode(Task(task.prompt), (*task.prompt, await seats["policy"].turn(task.prompt)))


class DropsThePrompt(Conforms):
    async def play(self, task, seats):
        return Episode(task, (await seats["policy"].turn(task.prompt),))


class Leaks(Conforms):
    """Keeps the episode in itself, as a single-use object would; alone, nobody notices."""

    async def play(self, task, seats):
        object.__setattr__(self, "task", task)
        reply = await seats["policy"].turn(task.prompt)
        task = self.__dict__["task"]
        return Episode(task, (*task.prompt, reply))


class SwallowsFailures(Conforms):
    async def play(self, task, seats):
        try:
            return await super().play(task, seats)
        except SeatFailure:
            return Episode(task, (*task.prompt, Message("assistant", "")))


class ReplacesFailures(Conforms):
    async def play(self, task, seats):
        try:
            return await super().play(task, seats)
        except SeatFailure:
            raise ValueError("something") from None


class LosesScores(Conforms):
    async def score(self, groups):
        return (await super().score(groups))[1:]


class InventsScores(Conforms):
    async def score(self, groups):
        return await super().score(groups) if groups else [[{}]]


class NotFinite(Conforms):
    async def score(self, groups):
        return [[{"numbers": Score(math.nan)}] for _ in groups]


class TotalNotFinite(Conforms):
    def total(self, scores):
        return math.inf


class OtherNames(Conforms):
    async def score(self, groups):
        return [[{"numbers": Score(0.0), f"extra {i}": Score(0.0)}] for i, _ in enumerate(groups)]


class NoOutcome(Conforms):
    @property
    def outcome(self):
        return "solved"


class DependsOnCompany(Conforms):
    async def score(self, groups):
        return [[{"numbers": Score(float(len(groups)))}] for _ in groups]


class PaysForAnything(Conforms):
    async def score(self, groups):
        return [[{"numbers": Score(1.0)}] for _ in groups]


class PaysForNothing(Conforms):
    async def score(self, groups):
        return [[{"numbers": Score(0.0)}] for _ in groups]


class NoSeats(Conforms):
    seats = ()


class TwiceTheSameSeat(Conforms):
    seats = ("policy", "policy")


class NeverEnds(Conforms):
    async def play(self, task, seats):
        while True:
            await seats["policy"].turn(task.prompt)


@pytest.mark.parametrize(
    "fault, said",
    [
        (TellsItsOwnWords, "is told its own words again on task 'two'"),
        (WithholdsThePrompt, "does not pass the task's prompt"),
        (NeverAsks, "is never asked"),
        (EditsTheReply, "are not in the episode as they were said"),
        (ShufflesTheReplies, "are not in the episode as they were said"),
        (ForgetsAMessage, "is not the episode's conversation"),
        (AnotherTask, "belongs to another task"),
        (DropsThePrompt, "does not begin with the task's prompt"),
        (Leaks, "differs when others are under way"),
        (SwallowsFailures, "swallowed"),
        (ReplacesFailures, "a seat's failure becomes ValueError"),
        (LosesScores, "returned 1 mappings of scores for 2 episodes in 2 groups"),
        (InventsScores, "scores for no episodes"),
        (NotFinite, "score 'numbers' on task 'two' is nan"),
        (TotalNotFinite, "the total on task 'two' is not finite"),
        (OtherNames, "names of the scores on task 'three' differ"),
        (NoOutcome, "no score 'solved' on task 'two'"),
        (DependsOnCompany, "differ alone"),
        (PaysForAnything, "the empty completion of task 'two' scores 1"),
        (PaysForNothing, "the gold completion of task 'three' scores 0"),
        (NoSeats, "at least one name"),
        (TwiceTheSameSeat, "all different"),
    ],
)
def test_each_fault_is_found(fault, said):
    assert said in failures(fault())


def test_an_episode_that_does_not_end_is_an_error():
    with pytest.raises(RuntimeError, match="does not end"):
        failures(NeverEnds())


def test_nothing_to_check_is_a_failure():
    assert "at least one task" in failures(Conforms(), [])


def test_a_task_without_gold_is_checked_for_all_the_rest():
    tasks = [Task((Message("user", "2 + 2?"),), answer=4, id="two")]
    assert failures(Conforms(), tasks) == ""
    assert "the empty completion" in failures(PaysForAnything(), tasks)


def test_two_seats_conform_when_each_is_told_what_the_other_said():
    class Debate(SingleTurn):
        seats = ("policy", "critic")

        async def play(self, task, seats):
            answer = await seats["policy"].turn(task.prompt)
            critique = await seats["critic"].turn([*task.prompt, Message("user", answer.content)])
            told = Message("user", critique.content)
            last = await seats["policy"].turn([told])
            return Episode(task, (*task.prompt, answer, critique, last))

    assert failures(Debate(parse_rewards("numbers"))) == ""


def test_a_scripted_seat_repeats_its_last_reply_and_remembers_what_it_was_told():
    async def main():
        seat = ScriptedSeat(["a", "b"])
        said = [(await seat.turn([ASK])).content for _ in range(3)]
        return said, seat.told

    assert asyncio.run(main()) == (["a", "b", "b"], [(ASK,)] * 3)
