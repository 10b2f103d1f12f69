"""Many episodes on one engine: who is answered together, which tokens are kept, and what happens when one fails."""

import asyncio

import pytest

from posttrain.data.order import seed_for
from posttrain.errors import RewardError, UserError
from posttrain.rollouts.drive import PolicySeat, play, sample_groups, score
from posttrain.rollouts.scripted import ScriptedEngine
from posttrain.types import Completion, Episode, Message, Request, Sampling, StopReason
from tests.rollouts.conversations import Quiz, chat_format, question

CHAT = chat_format()
(STOP,) = CHAT.tokenizer.encode("<|im_end|>", add_special_tokens=False)
SAMPLING = Sampling(8, temperature=0.7)


def ids(text: str) -> tuple[int, ...]:
    return tuple(CHAT.tokenizer.encode(text, add_special_tokens=False))


def letters(text: str) -> tuple[int, ...]:
    """One token per character, also where the tokenizer would have joined two."""
    return tuple(i for letter in text for i in ids(letter))


def engine(say="ok"):
    """Says `say` and stops; `say` may depend on the request."""
    script = say if callable(say) else lambda request: (*letters(say), STOP)
    return ScriptedEngine(script, CHAT.stop_ids)


def played(environment, tasks, answers, sampling=SAMPLING):
    return play(environment, tasks, answers, CHAT, sampling, list(range(len(tasks))))


def test_all_live_episodes_are_answered_in_one_call():
    answers = engine()
    tasks = [question("a", turns=1), question("b", turns=3), question("c", turns=2)]
    found = played(Quiz(), tasks, answers)
    assert [len(p.trajectory.turns) for p in found] == [1, 3, 2]
    assert [len(batch) for batch in answers.asked] == [3, 2, 1]


def test_an_episode_that_lags_behind_is_waited_for():
    answers = engine()
    tasks = [question("a", turns=2), question("slow", turns=2)]
    played(Quiz(pauses={"slow": 5}), tasks, answers)
    assert [len(batch) for batch in answers.asked] == [2, 2]


def test_what_was_sampled_is_kept_as_it_was_and_appended_to():
    assert letters("20") != ids("20")  # decoding and encoding again would change it
    answers = engine("20")
    (found,) = played(Quiz("More"), [question("2+2?", turns=2)], answers)
    first = tuple(CHAT.prompt_ids([Message("user", "2+2?")]))
    between = ids("\n<|im_start|>user\nMore 0<|im_end|>\n<|im_start|>assistant\n")
    assert answers.asked[0][0].token_ids == first
    assert answers.asked[1][0].token_ids == first + letters("20") + (STOP,) + between
    assert found.trajectory.token_ids == answers.asked[1][0].token_ids + letters("20") + (STOP,)
    mine = len(letters("20")) + 1
    assert found.trajectory.sampled == (*[False] * len(first), *[True] * mine, *[False] * len(between), *[True] * mine)
    assert [m.content for m in found.episode.messages] == ["2+2?", "20", "More 0", "20"]
    assert found.episode.completion_ids == (*letters("20"), STOP, *between, *letters("20"), STOP)


def test_a_turn_cut_by_its_length_gets_the_stop_token_shown_not_sampled():
    answers = engine(lambda request: letters("abcdefgh"))
    (found,) = played(Quiz("More"), [question(turns=2)], answers, Sampling(3))
    first, second = found.trajectory.turns
    assert (first.token_ids, first.stop_reason) == (letters("abc"), StopReason.LENGTH)
    assert second.context_ids[0] == STOP and second.context_ids.count(STOP) == 2
    assert sum(found.trajectory.sampled) == 6
    assert found.episode.stop_reason is StopReason.LENGTH


def test_an_episode_ends_as_its_last_turn_did():
    answers = engine(lambda request: (STOP,) if len(answers.asked) > 1 else letters("abcdefgh"))
    (found,) = played(Quiz(), [question(turns=2)], answers)
    assert [t.stop_reason for t in found.trajectory.turns] == [StopReason.LENGTH, StopReason.STOP]
    assert found.episode.stop_reason is StopReason.STOP


def test_every_turn_of_every_completion_has_its_own_seed_and_the_settings():
    answers = engine()
    tasks = [question("a", turns=2), question("b", turns=2)]
    groups = sample_groups(Quiz(), tasks, answers, CHAT, SAMPLING, completions_per_prompt=3, seed=5)
    requests = [r for batch in answers.asked for r in batch]
    assert len({r.seed for r in requests}) == len(requests) == 12
    assert {r.sampling for r in requests} == {SAMPLING}
    assert len(groups) == 2
    alone = engine()
    seed = seed_for(5, "completion", 1, 2)  # the third completion of the second prompt
    play(Quiz(), tasks[1:], alone, CHAT, SAMPLING, [seed])
    assert all(few[0] in many for few, many in zip(alone.asked, answers.asked, strict=True))


def test_seeds_do_not_depend_on_how_many_prompts_there_are():
    few, many = engine(), engine()
    tasks = [question(text) for text in "abc"]
    sample_groups(Quiz(), tasks[:1], few, CHAT, SAMPLING, completions_per_prompt=2, seed=1)
    sample_groups(Quiz(), tasks, many, CHAT, SAMPLING, completions_per_prompt=2, seed=1)
    assert few.asked[0] == many.asked[0][:2]


def test_groups_come_in_the_order_of_their_tasks_with_what_each_earned():
    tasks = [question(text, turns=turns) for text, turns in (("xax", 3), ("xbx", 1), ("xcx", 2))]
    groups = sample_groups(Quiz(), tasks, engine(), CHAT, SAMPLING, completions_per_prompt=2, seed=0)
    assert [g.task for g in groups] == tasks
    assert [g.rewards for g in groups] == [(30.0, 30.0), (10.0, 10.0), (20.0, 20.0)]
    assert [[s["turns"].value for s in g.scores] for g in groups] == [[3, 3], [1, 1], [2, 2]]
    assert [[len(t.turns) for t in g.trajectories] for g in groups] == [[3, 3], [1, 1], [2, 2]]


def test_completions_go_to_the_episodes_that_asked():
    (q,), (z,) = ids("Q"), ids("Z")
    answers = engine(lambda request: (q if q in request.token_ids else z, STOP))
    found = played(Quiz(), [question("Q"), question("Z", turns=2), question("Z")], answers)
    assert [[turn.token_ids for turn in p.trajectory.turns] for p in found] == [
        [(q, STOP)],
        [(z, STOP), (z, STOP)],
        [(z, STOP)],
    ]


def test_progress_reaches_the_caller():
    counted = []
    play(Quiz(), [question(turns=2)], engine("ok"), CHAT, SAMPLING, [0], counted.append)
    assert counted == [3, 3]


class Breaks(Quiz):
    async def play(self, task, seats):
        episode = await super().play(task, seats)
        if task.id == "bad":
            raise KeyError("a tool that is not there")
        return episode


def test_what_an_environment_raises_comes_out_as_it_is_and_stops_the_sampling():
    answers = engine()
    tasks = [question("a", turns=3), question("bad", turns=1), question("c", turns=3)]
    with pytest.raises(KeyError, match="a tool that is not there"):
        played(Breaks(), tasks, answers)
    assert [len(batch) for batch in answers.asked] == [3]  # nothing more was sampled for a batch that is lost


class Refuses:
    def __init__(self):
        self.calls = 0

    def generate(self, requests, on_tokens=None):
        self.calls += 1
        raise UserError("prompt 0 has 99 tokens")


@pytest.mark.parametrize("count", [1, 4])
def test_what_the_engine_raises_comes_out_as_it_is(count):
    broken = Refuses()
    with pytest.raises(UserError, match="prompt 0 has 99 tokens"):
        played(Quiz(), [question(str(i)) for i in range(count)], broken)
    assert broken.calls == 1


class Swallows(Quiz):
    """An environment that takes whatever a seat raises for an answer."""

    async def play(self, task, seats):
        try:
            return await super().play(task, seats)
        except UserError:
            await asyncio.sleep(0)
            raise RuntimeError("no seat left") from None


class Shrugs(Quiz):
    """An environment that goes on without its policy when that fails."""

    async def play(self, task, seats):
        try:
            return await super().play(task, seats)
        except UserError:
            return Episode(task, ())


class FailsLater(Refuses):
    """Answers once."""

    def generate(self, requests, on_tokens=None):
        if self.calls:
            return super().generate(requests)
        self.calls += 1
        return engine().generate(requests)


@pytest.mark.timeout(60)
def test_every_episode_that_waits_is_told_that_the_engine_failed():
    """One that is not told would wait for ever."""
    found = played(Shrugs(), [question(str(i), turns=2) for i in range(3)], FailsLater())
    assert [len(p.trajectory.turns) for p in found] == [1, 1, 1]


def test_an_engine_that_fails_leaves_no_episode_waiting():
    with pytest.raises(RuntimeError, match="no seat left"):
        played(Swallows(), [question(str(i)) for i in range(3)], Refuses())


def test_an_episode_that_never_asks_its_policy_is_an_error():
    with pytest.raises(ValueError, match="Quiz ended an episode without asking its seat 'policy'"):
        played(Quiz(), [question(turns=1), question(turns=0)], engine())


def test_an_environment_that_loses_scores_is_an_error():
    class Loses(Quiz):
        async def score(self, groups):
            return [*(await super().score(groups))[:-1], []]

    tasks = [question("a"), question("b")]
    found = played(Quiz(), tasks, engine())
    with pytest.raises(RewardError, match="scored 1 of 2 episodes"):
        score(Loses(), tasks, [found[:1], found[1:]])


def test_two_seats_of_one_episode_have_tokens_of_their_own():
    class Duet(Quiz):
        seats = ("policy", "critic")

        async def play(self, task, seats):
            said = await seats["policy"].turn(task.prompt)
            await seats["critic"].turn([Message("user", f"Judge {said.content}")])
            return await super().play(question(task.id, turns=1), {"policy": seats["policy"]})

    answers = engine()
    (found,) = played(Duet(), [question()], answers)
    assert len(answers.asked) == 3 and len(found.trajectory.turns) == 2
    assert answers.asked[1][0].token_ids == tuple(CHAT.prompt_ids([Message("user", "Judge ok")]))
    assert len({batch[0].seed for batch in answers.asked}) == 3


def test_a_notebook_can_play_too():
    async def cell():
        return played(Quiz(), [question(turns=2)], engine())

    assert len(asyncio.run(cell())[0].trajectory.turns) == 2


def test_a_seat_shows_only_what_was_said_since():
    told: list[Request] = []

    async def ask(request):
        told.append(request)
        return Completion((*letters("hi"), STOP), (-0.5, -0.25, -0.125), StopReason.STOP)

    async def talk():
        seat = PolicySeat(ask, CHAT, SAMPLING, seed=3)
        await seat.turn([Message("user", "a")])
        reply = await seat.turn([Message("user", "b")])
        return seat, reply

    seat, reply = asyncio.run(talk())
    assert reply == Message("assistant", "hi")
    assert seat.turns[1].context_ids == ids("\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n")
    assert seat.turns[0].logprobs == (-0.5, -0.25, -0.125)
    assert [r.seed for r in told] == [seed_for(3, "turn", 0), seed_for(3, "turn", 1)]
