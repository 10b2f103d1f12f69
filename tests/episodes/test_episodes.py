"""Many episodes on one engine: who is answered together, which tokens are kept, and what happens when one fails."""

import asyncio
from dataclasses import replace

import pytest

from posttrain.data.order import seed_for
from posttrain.engine.engine import BatchEngine
from posttrain.engine.scripted import ScriptedEngine
from posttrain.environments import Environment, ScoredEnvironment
from posttrain.episodes.episodes import play, sample_groups, score
from posttrain.episodes.seats import ChatSeat, PolicySeat
from posttrain.errors import EpisodeError, RewardError, UserError
from posttrain.rewards import Weighted
from posttrain.rewards.reward import Earned, Solved
from posttrain.testing import ScriptedSeat
from posttrain.types import Completion, Message, Outcome, Reply, Request, Sampling, StopReason, Usage
from tests.episodes.conversations import CHAT, Quiz, players, question, scored

pytestmark = pytest.mark.timeout(60)  # an episode that never leaves would be waited for
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


def played(environment, tasks, answers, sampling=SAMPLING, **more):
    return play(scored(environment), tasks, players(answers, sampling, **more), list(range(len(tasks))))


def trajectory(found):
    return found.trajectories["policy"]


def test_all_live_episodes_are_answered_in_one_call():
    answers = engine()
    tasks = [question("a", turns=1), question("b", turns=3), question("c", turns=2)]
    found = played(Quiz(), tasks, answers)
    assert [len(trajectory(p).turns) for p in found] == [1, 3, 2]
    assert [len(batch) for batch in answers.asked] == [3, 2, 1]


def test_an_episode_that_lags_behind_is_waited_for():
    answers = engine()
    tasks = [question("a", turns=2), question("slow", turns=2)]
    played(Quiz(pauses={"slow": 2000}), tasks, answers)
    assert [len(batch) for batch in answers.asked] == [2, 2]


def test_what_was_sampled_is_kept_as_it_was_and_appended_to():
    assert letters("20") != ids("20")  # decoding and encoding again would change it
    answers = engine("20")
    (found,) = played(Quiz("More"), [question("2+2?", turns=2)], answers)
    first = tuple(CHAT.prompt_ids([Message("user", "2+2?")]))
    between = ids("\n<|im_start|>user\nMore 0<|im_end|>\n<|im_start|>assistant\n")
    assert answers.asked[0][0].token_ids == first
    assert answers.asked[1][0].token_ids == first + letters("20") + (STOP,) + between
    assert trajectory(found).token_ids == answers.asked[1][0].token_ids + letters("20") + (STOP,)
    mine = len(letters("20")) + 1
    assert trajectory(found).sampled == (*[False] * len(first), *[True] * mine, *[False] * len(between), *[True] * mine)
    assert [m.content for m in found.episode.messages] == ["2+2?", "20", "More 0", "20"]
    assert found.episode.completion_ids == (*letters("20"), STOP, *between, *letters("20"), STOP)


def test_a_turn_cut_by_its_length_gets_the_stop_token_shown_not_sampled():
    answers = engine(lambda request: letters("abcdefgh"))
    (found,) = played(Quiz("More"), [question(turns=2)], answers, Sampling(3))
    first, second = trajectory(found).turns
    assert (first.token_ids, first.stop_reason) == (letters("abc"), StopReason.LENGTH)
    assert second.context_ids[0] == STOP and second.context_ids.count(STOP) == 2
    assert sum(trajectory(found).sampled) == 6
    assert found.episode.stop_reason is StopReason.LENGTH


def test_an_episode_ends_as_its_last_turn_did():
    answers = engine(lambda request: (STOP,) if len(answers.asked) > 1 else letters("abcdefgh"))
    (found,) = played(Quiz(), [question(turns=2)], answers)
    assert [t.stop_reason for t in trajectory(found).turns] == [StopReason.LENGTH, StopReason.STOP]
    assert found.episode.stop_reason is StopReason.STOP


def test_every_turn_of_every_completion_has_its_own_seed_and_the_settings():
    answers = engine()
    tasks = [question("a", turns=2), question("b", turns=2)]
    groups = sample_groups(scored(), tasks, players(answers), completions_per_prompt=3, seed=5)
    requests = [r for batch in answers.asked for r in batch]
    assert len({r.seed for r in requests}) == len(requests) == 12
    assert {r.sampling for r in requests} == {SAMPLING}
    assert len(groups) == 2
    alone = engine()
    seed = seed_for(5, "completion", 1, 2)  # the third completion of the second prompt
    play(scored(), tasks[1:], players(alone), [seed])
    assert all(few[0] in many for few, many in zip(alone.asked, answers.asked, strict=True))


def test_seeds_do_not_depend_on_how_many_prompts_there_are():
    few, many = engine(), engine()
    tasks = [question(text) for text in "abc"]
    sample_groups(scored(), tasks[:1], players(few), completions_per_prompt=2, seed=1)
    sample_groups(scored(), tasks, players(many), completions_per_prompt=2, seed=1)
    assert few.asked[0] == many.asked[0][:2]


def test_groups_come_in_the_order_of_their_tasks_with_what_each_earned():
    tasks = [question(text, turns=turns) for text, turns in (("xax", 3), ("xbx", 1), ("xcx", 2))]
    groups = sample_groups(scored(), tasks, players(engine()), completions_per_prompt=2, seed=0)
    assert [g.task for g in groups] == tasks
    assert [g.rewards for g in groups] == [(30.0, 30.0), (10.0, 10.0), (20.0, 20.0)]
    assert [[row.scores["turns"].value for row in group.rows] for group in groups] == [[3, 3], [1, 1], [2, 2]]
    assert [[len(row.trajectory.turns) for row in group.rows] for group in groups] == [[3, 3], [1, 1], [2, 2]]


def test_completions_go_to_the_episodes_that_asked():
    (q,), (z,) = ids("Q"), ids("Z")
    answers = engine(lambda request: (q if q in request.token_ids else z, STOP))
    found = played(Quiz(), [question("Q"), question("Z", turns=2), question("Z")], answers)
    assert [[turn.token_ids for turn in trajectory(p).turns] for p in found] == [
        [(q, STOP)],
        [(z, STOP), (z, STOP)],
        [(z, STOP)],
    ]


def test_progress_reaches_the_caller():
    counted = []
    play(scored(), [question(turns=2)], players(engine("ok"), on_tokens=counted.append), [0])
    assert counted == [3, 3]


class Breaks(Quiz):
    """Fails in the middle of some episodes."""

    def __init__(self, error=None, times=99):
        super().__init__()
        self.error, self.times = error or KeyError("a tool that is not there"), times

    async def play(self, task, seats, seed):
        await seats["policy"].turn(task.prompt)
        if task.id == "bad" and self.times:
            self.times -= 1
            raise self.error
        return await super().play(replace(task, prompt=(Message("user", "On."),)), seats, seed)


def test_an_episode_that_fails_costs_itself_alone():
    answers = engine()
    tasks = [question("a", turns=2), question("bad"), question("c", turns=2)]
    first, lost, last = played(Breaks(), tasks, answers, max_lost=0.5)
    assert isinstance(lost, KeyError) and str(lost) == "'a tool that is not there'"
    assert [len(trajectory(p).turns) for p in (first, last)] == [3, 3]
    assert [len(batch) for batch in answers.asked] == [3, 2, 2]


@pytest.mark.parametrize("error", [ConnectionError("reset"), TimeoutError()])
def test_a_failure_that_may_pass_is_tried_again_with_the_same_seed(error):
    answers = engine(lambda request: (letters("abcdefgh")[request.seed % 8], STOP))
    (found,) = played(Breaks(error, times=2), [question("bad")], answers, max_lost=0.0)
    first = [batch[0] for batch in answers.asked[:3]]
    assert first[0] == first[1] == first[2] and len(trajectory(found).turns) == 2
    with pytest.raises(EpisodeError, match=r"1 of 1 episodes failed \(1 (ConnectionError|TimeoutError)\)"):
        played(Breaks(error, times=3), [question("bad")], engine(), max_lost=0.0)


def test_too_many_failures_are_an_error_that_says_what_failed():
    tasks = [question("a"), question("bad"), question("bad"), question("d")]
    with pytest.raises(EpisodeError) as failed:
        played(Breaks(), tasks, engine(), max_lost=0.4)
    said = "2 of 4 episodes failed (2 KeyError), more than `max_lost` 0.4; the first: KeyError: 'a tool that is not th"
    assert str(failed.value).startswith(said) and isinstance(failed.value.__cause__, KeyError)
    assert len(played(Breaks(), tasks, engine(), max_lost=0.5)) == 4


def test_a_group_goes_when_too_few_episodes_of_it_are_left():
    class Unlucky(Quiz):
        async def play(self, task, seats, seed):
            outcome = await super().play(task, seats, seed)
            if task.id == "bad" and seed % 2 == 0:
                raise ValueError("unlucky")
            return outcome

    tasks = [question("a"), question("bad")]

    def groups(min_group):
        return sample_groups(
            scored(Unlucky()),
            tasks,
            players(engine(), max_lost=1.0),
            completions_per_prompt=6,
            seed=0,
            min_group=min_group,
        )

    whole, part = groups(1)
    left = len(part.rewards)
    assert len(whole.rows) == 6 and 0 < left < 6 and len(part.rows) == left
    assert part.rewards == (10.0,) * left
    assert [group.task.id for group in groups(left)] == ["a", "bad"]
    assert [group.task.id for group in groups(left + 1)] == ["a"]


class Refuses(BatchEngine):
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
    """An environment that goes on without its policy when that fails."""

    async def play(self, task, seats, seed):
        try:
            return await super().play(task, seats, seed)
        except UserError:
            return Outcome()


@pytest.mark.timeout(60)
def test_an_environment_that_catches_everything_does_not_hide_that_the_engine_failed():
    with pytest.raises(UserError, match="prompt 0 has 99 tokens"):
        played(Swallows(), [question(str(i)) for i in range(3)], Refuses())


def test_an_episode_that_never_asks_its_policy_is_lost():
    _, lost = played(Quiz(), [question(turns=1), question(turns=0)], engine(), max_lost=0.5)
    assert "Quiz ended an episode in which policy said nothing" in str(lost)


def test_a_combination_that_loses_scores_is_an_error():
    class Loses(Weighted):
        async def score_parts(self, groups):
            return [*(await super().score_parts(groups))[:-1], []]

    tasks = [question("a"), question("b")]
    found = played(Quiz(), tasks, engine())
    with pytest.raises(RewardError, match="scored 1 of 2 episodes"):
        score(ScoredEnvironment(Loses(scored().reward.parts)), tasks, [found[:1], found[1:]], players(engine()))


class Duet(Environment):
    """Two seats, of which each is told what the other said."""

    seats = ("policy", "critic")
    trained = ("policy",)
    max_turns = 2

    async def play(self, task, seats, seed):
        said = await seats["policy"].turn(task.prompt)
        answer = await seats["critic"].turn([Message("user", f"Judge {said.text}")])
        await seats["policy"].turn([Message("user", answer.text)])
        return Outcome({"policy": 1.0, "critic": -1.0}, solved=True, metrics={"length": 3.0})


EARNED = ScoredEnvironment(Weighted(((Earned(), 1.0), (Solved(), 0.0))), Duet())


def test_two_seats_of_one_episode_have_tokens_of_their_own():
    answers = engine()
    (found,) = played(Duet(), [question()], answers)
    assert len(answers.asked) == 3 and len(trajectory(found).turns) == 2
    assert answers.asked[1][0].token_ids == tuple(CHAT.prompt_ids([Message("user", "Judge ok")]))
    assert len({batch[0].seed for batch in answers.asked}) == 3
    said = [(name, message.content) for name, message in found.episode.transcript]
    assert said == [("policy", "ok"), ("critic", "ok"), ("policy", "ok")]
    assert [m.content for m in found.episode.views["critic"]] == ["Judge ok", "ok"]
    assert [m.content for m in found.episode.messages] == ["2+2?", "ok", "ok", "ok"]


def test_each_trained_seat_is_a_row_with_what_it_earned():
    class Both(Duet):
        trained = ("policy", "critic")

    judged = ScoredEnvironment(EARNED.reward, Both())
    tasks = [question("a"), question("b")]
    groups = sample_groups(judged, tasks, players(engine()), completions_per_prompt=2, seed=0)
    for group in groups:
        found = [(row.seat, row.episode) for row in group.rows]
        assert found == [("policy", 0), ("critic", 0), ("policy", 1), ("critic", 1)]
        assert group.rewards == (1.0, -1.0, 1.0, -1.0)
        assert [len(row.trajectory.turns) for row in group.rows] == [2, 1, 2, 1]
        assert [row.scores["solved"].value for row in group.rows] == [1.0] * 4
        assert [row.metrics for row in group.rows] == [{"length": 3.0}] * 4
    alone = sample_groups(EARNED, tasks, players(engine()), completions_per_prompt=2, seed=0)
    assert [group.rewards for group in alone] == [(1.0, 1.0)] * 2


def test_who_takes_a_seat_is_not_for_the_environment_to_know():
    script = []

    def critic(seed):
        script.append(ScriptedSeat(["Bad."]))
        return script[-1]

    answers = engine()
    (found,) = played(Duet(), [question()], answers, others={"critic": critic})
    assert [len(batch) for batch in answers.asked] == [1, 1] and script[0].told == [(Message("user", "Judge ok"),)]
    assert [m.content for m in found.episode.messages] == ["2+2?", "ok", "Bad.", "ok"]


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Outcome({"polcy": 1.0}), "rewards the seat 'polcy'"),
        (Outcome({"policy": float("nan")}), "rewards seat 'policy' with nan"),
        (None, "returned a NoneType"),
    ],
)
def test_an_outcome_that_is_none_loses_the_episode(outcome, said):
    class Says(Quiz):
        async def play(self, task, seats, seed):
            await super().play(task, seats, seed)
            return outcome

    (lost,) = played(Says(), [question()], engine(), max_lost=1.0)
    assert said in str(lost)


class Asks(Environment):
    """Stops at a tag, inserts, goes on, and then asks once more."""

    max_turns = 3

    async def play(self, task, seats, seed):
        seat = seats["policy"]
        first = await seat.turn(task.prompt, stop=["</q>"])
        second = await seat.go_on(f"[{len(first.text)}]")
        third = await seat.turn([Message("user", "Sure?")], temperature=0.9)
        return Outcome(metrics={"letters": len(first.text + second.text + third.text)})


def test_a_message_that_went_on_is_one_message_of_the_episode():
    said = iter(["<q>a</q>zzz", " done", "yes"])
    (found,) = played(Asks(), [question()], engine(lambda request: (*letters(next(said)), STOP)), Sampling(20))
    whole, sure = Message("assistant", "<q>a</q>[8] done"), Message("assistant", "yes")
    assert found.episode.messages == (*question().prompt, whole, Message("user", "Sure?"), sure)
    assert found.episode.transcript == (("policy", whole), ("policy", sure)) and found.episode.completion == "yes"
    assert found.episode.turn_texts() == ("<q>a</q>", " done", "yes")
    assert found.episode.outcome.metrics == {"letters": 16}
    assert [turn.temperature for turn in trajectory(found).turns] == [0, 0, 0.9]
    prompt = len(trajectory(found).turns[0].context_ids)
    assert found.episode.completion_ids == trajectory(found).token_ids[prompt:]


def test_another_player_cannot_go_on_in_a_message():
    with pytest.raises(UserError, match="ChatSeat cannot go on in a message; give this seat to the policy"):
        asyncio.run(ChatSeat(Echo(), SAMPLING, 0).go_on("x"))


class Echo:
    async def chat(self, messages, *, sampling, tools=(), seed=0):
        return Reply(Message("assistant", f"{sampling.stop}"), StopReason.STOP, Usage(1, 1))


def test_another_player_is_told_where_to_stop():
    async def ask(**own):
        return (await ChatSeat(Echo(), SAMPLING, 0).turn([Message("user", "a")], **own)).text

    assert asyncio.run(ask(stop=["."])) == "('.',)" and asyncio.run(ask()) == "()"


def test_a_notebook_can_play_too():
    async def cell():
        return played(Quiz(), [question(turns=2)], engine())

    assert len(trajectory(asyncio.run(cell())[0]).turns) == 2


def test_a_seat_shows_only_what_was_said_since():
    told: list[Request] = []

    async def ask(request, turn):
        told.append(request)
        return Completion((*letters("hi"), STOP), (-0.5, -0.25, -0.125), StopReason.STOP)

    async def talk():
        seat = PolicySeat(ask, CHAT, SAMPLING, seed=3, room=999, max_turns=2)
        await seat.turn([Message("user", "a")])
        reply = await seat.turn([Message("user", "b")])
        return seat, reply

    seat, reply = asyncio.run(talk())
    assert reply == Reply(Message("assistant", "hi"), StopReason.STOP, Usage(len(told[1].token_ids), 3))
    assert seat.turns[1].context_ids == ids("\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n")
    assert seat.turns[0].logprobs == (-0.5, -0.25, -0.125)
    assert [r.seed for r in told] == [seed_for(3, "turn", 0), seed_for(3, "turn", 1)]
