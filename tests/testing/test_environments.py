"""The kit itself: each fault that it looks for, planted, and found."""

import asyncio
import math
import random

import pytest

from posttrain.environments import Environment, SingleTurn
from posttrain.testing import ScriptedSeat, check_environment
from posttrain.testing.environments import SeatFailure
from posttrain.types import Message, Outcome, Reply, StopReason, Task, Usage
from tests.violations import violations

ASK = Message("user", "Are you sure?")
TASKS = [
    Task((Message("user", "2 + 2?"),), answer=4, gold="#### 4", id="two"),
    Task((Message("system", "Be brief."), Message("user", "3 + 3?")), answer=6, gold="#### 6", id="three"),
]


class Conforms(Environment):
    """Two turns of one policy, of which the last counts; each fault below changes one thing of it."""

    max_turns = 2

    async def play(self, task, seats, seed):
        await seats["policy"].turn(task.prompt)
        return self.outcome(task, await seats["policy"].turn([ASK]))

    def outcome(self, task, reply):
        solved = reply.text.endswith(str(task.answer))
        return Outcome({"policy": float(solved)}, solved)


def failures(environment, tasks=TASKS) -> str:
    return "\n".join(violations(check_environment, environment, tasks))


def test_environments_of_one_and_two_turns_conform():
    assert failures(SingleTurn()) == ""
    assert failures(Conforms()) == ""


class TellsItsOwnWords(Conforms):
    async def play(self, task, seats, seed):
        first = await seats["policy"].turn(task.prompt)
        return self.outcome(task, await seats["policy"].turn([first.message, ASK]))


class SaysNothingNew(Conforms):
    async def play(self, task, seats, seed):
        await seats["policy"].turn(task.prompt)
        return self.outcome(task, await seats["policy"].turn([]))


class WithholdsThePrompt(Conforms):
    async def play(self, task, seats, seed):
        return self.outcome(task, await seats["policy"].turn(task.prompt[1:] or [ASK]))


class NeverAsks(Conforms):
    async def play(self, task, seats, seed):
        return Outcome()


class Leaks(Conforms):
    """Keeps the episode in itself, as a single-use object would; alone, nobody notices."""

    async def play(self, task, seats, seed):
        self.task = task
        await seats["policy"].turn(task.prompt)
        return self.outcome(self.task, await seats["policy"].turn([Message("user", str(self.task.answer))]))


class DrawsByTheClock(Conforms):
    async def play(self, task, seats, seed):
        await seats["policy"].turn(task.prompt)
        return self.outcome(task, await seats["policy"].turn([Message("user", str(random.SystemRandom().random()))]))


class SwallowsFailures(Conforms):
    async def play(self, task, seats, seed):
        try:
            return await super().play(task, seats, seed)
        except SeatFailure:
            return Outcome()


class ReplacesFailures(Conforms):
    async def play(self, task, seats, seed):
        try:
            return await super().play(task, seats, seed)
        except SeatFailure:
            raise ValueError("something") from None


class NoOutcome(Conforms):
    def outcome(self, task, reply):
        return 1.0


class NotFinite(Conforms):
    def outcome(self, task, reply):
        return Outcome({"policy": math.nan})


class MeasuresNotFinite(Conforms):
    def outcome(self, task, reply):
        return Outcome({"policy": 1.0}, metrics={"distance": math.inf})


class PaysAStranger(Conforms):
    def outcome(self, task, reply):
        return Outcome({"polcy": 1.0})


class SolvedByAnything(Conforms):
    def outcome(self, task, reply):
        return Outcome({"policy": 1.0}, solved=True)


class SolvedByNothing(Conforms):
    def outcome(self, task, reply):
        return Outcome({"policy": 1.0}, solved=False)


class NoSeats(Conforms):
    seats = ()


class TwiceTheSameSeat(Conforms):
    seats = ("policy", "policy")


class TrainsAStranger(Conforms):
    trained = ("polcy",)


class NeverEnds(Conforms):
    async def play(self, task, seats, seed):
        await seats["policy"].turn(task.prompt)
        while True:
            await seats["policy"].turn([ASK])


@pytest.mark.parametrize(
    "fault, said",
    [
        (TellsItsOwnWords, "is told its own words again on task 'two'"),
        (SaysNothingNew, "seat 'policy' is asked without a new message"),
        (WithholdsThePrompt, "does not begin with the task's prompt"),
        (NeverAsks, "the first trained seat, 'policy', is never asked"),
        (Leaks, "differs when others are under way"),
        (DrawsByTheClock, "differs when others are under way"),
        (SwallowsFailures, "swallowed"),
        (ReplacesFailures, "a seat's failure becomes ValueError"),
        (NoOutcome, "NoOutcome.play returned a float"),
        (NotFinite, "NotFinite.play rewards seat 'policy' with nan"),
        (MeasuresNotFinite, "its outcome on task 'two' has distance = inf"),
        (PaysAStranger, "PaysAStranger.play rewards the seat 'polcy'"),
        (SolvedByAnything, "empty replies solve task 'two'"),
        (SolvedByNothing, "the gold completion of task 'three' does not solve it"),
        (NoSeats, "at least one name"),
        (TwiceTheSameSeat, "all different"),
        (TrainsAStranger, "trained seats ['polcy'] are none of its seats"),
    ],
)
def test_each_fault_is_found(fault, said):
    assert said in failures(fault())


class SolvedByAFullContext(Conforms):
    def outcome(self, task, reply):
        return Outcome(solved=super().outcome(task, reply).solved or reply.stop_reason is StopReason.CONTEXT)


def test_replies_that_are_empty_because_the_context_is_full_solve_nothing():
    assert failures(SolvedByAFullContext()).count("empty replies solve task") == len(TASKS)


def test_a_scripted_seat_is_asked_no_more_often_than_it_may():
    async def main():
        seat = ScriptedSeat(["a"], max_turns=2)
        await seat.turn([ASK])
        await seat.turn([ASK])
        with pytest.raises(RuntimeError, match="asked more than 2 times; the episode does not end"):
            await seat.turn([ASK])

    asyncio.run(main())


def test_an_episode_that_does_not_end_is_a_violation():
    assert "asked more than 2 times; the episode does not end" in failures(NeverEnds())


class Searches(Conforms):
    """Stops at a tag and goes on behind what it inserts."""

    stops = ("</search>", "</answer>")
    most = 1

    async def play(self, task, seats, seed):
        reply = await seats["policy"].turn(task.prompt, stop=self.stops)
        for _ in range(self.most):
            if not reply.text.endswith("</search>"):
                break
            reply = await seats["policy"].go_on(self.found(reply.text), stop=self.stops)
        return self.outcome(task, reply)

    def found(self, text):
        assert text.startswith("<search>")  # of a closing tag the seat writes both
        return "nothing"


class SearchesForEver(Searches):
    most = 100


class FailsBehindTheTag(Searches):
    def found(self, text):
        raise KeyError("behind the tag")


class StopsAtNothing(Searches):
    stops = ("</search>", "")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (SearchesForEver, "asked more than 2 times; the episode does not end"),
        (FailsBehindTheTag, "KeyError: 'behind the tag'"),
        (StopsAtNothing, "none of them empty; got stop=('</search>', '')"),
    ],
)
def test_what_stands_behind_a_stop_string_is_played(fault, said):
    assert failures(Searches()) == ""
    assert said in failures(fault())


def test_what_is_no_environment_object_is_said():
    assert "it is the class Conforms; expected an object: type Conforms()" in failures(Conforms)
    assert "object is no subclass of posttrain.environments.Environment" in failures(object())


class Guesses(Conforms):
    """Has tasks of its own."""

    def tasks(self, split, seed):
        numbers = range(4) if split == "train" else range(4, 6)
        return [Task((Message("user", f"{n}?"),), answer=n, id=f"{split}-{n}") for n in numbers]


def test_tasks_of_its_own_are_checked_too():
    class InBoth(Guesses):
        def tasks(self, split, seed):
            return super().tasks("train", seed)

    class Changes(Guesses):
        def tasks(self, split, seed):
            return random.SystemRandom().sample(super().tasks("train", seed), 2)[: random.SystemRandom().choice([1, 2])]

    class DrawnBySeed(Guesses):
        def tasks(self, split, seed):
            number = random.Random(seed).random() if isinstance(seed, int) else math.nan
            return [Task((Message("user", f"{split} {number}?"),), answer=number, id=split)]

    assert failures(Guesses(), []) == failures(DrawnBySeed(), []) == ""
    assert "task 'train-0' is in the training split and in the held-out split" in failures(InBoth(), [])
    assert any("differ from call to call" in failures(Changes(), []) for _ in range(20))


def test_what_it_opens_is_open_while_it_is_checked_and_closed_behind():
    class Opens(Conforms):
        state = "new"

        async def open(self):
            self.state = "open"

        async def close(self):
            self.state = "closed"

        async def play(self, task, seats, seed):
            assert self.state == "open"
            return await super().play(task, seats, seed)

    environment = Opens()
    assert failures(environment) == "" and environment.state == "closed"


def test_nothing_to_check_is_a_failure():
    assert "at least one task" in failures(Conforms(), [])


def test_a_task_without_gold_is_checked_for_all_the_rest():
    tasks = [Task((Message("user", "2 + 2?"),), answer=4, id="two")]
    assert failures(Conforms(), tasks) == ""
    assert "empty replies" in failures(SolvedByAnything(), tasks)


def test_two_seats_conform_when_each_is_told_what_the_other_said():
    class Debate(Conforms):
        seats = ("policy", "critic")

        async def play(self, task, seats, seed):
            answer = await seats["policy"].turn(task.prompt)
            critique = await seats["critic"].turn([*task.prompt, Message("user", answer.text)])
            return self.outcome(task, await seats["policy"].turn([Message("user", critique.text)]))

    assert failures(Debate()) == ""


def test_a_scripted_seat_repeats_its_last_reply_and_remembers_what_it_was_told():
    async def main():
        seat = ScriptedSeat(["a", "b"], stop_reason=StopReason.LENGTH)
        replies = [await seat.turn([ASK], ("{}",)) for _ in range(3)]
        return replies, seat

    replies, seat = asyncio.run(main())
    assert [reply.text for reply in replies] == ["a", "b", "b"] and seat.told == [(ASK,)] * 3
    assert replies[0] == Reply(Message("assistant", "a"), StopReason.LENGTH, Usage(0, 0)) and seat.tools == ("{}",)
