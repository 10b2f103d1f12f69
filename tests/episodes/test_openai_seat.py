"""A seat behind the OpenAI client: what it is told, what the client gets, and what is refused."""

import asyncio
import json
import sys
from dataclasses import dataclass

import pytest

from posttrain.engine.scripted import ScriptedEngine
from posttrain.environments import Environment
from posttrain.environments.tools import schemas, tool
from posttrain.episodes.episodes import play
from posttrain.episodes.openai_seat import openai_client
from posttrain.errors import TemplateError, UserError
from posttrain.testing import ScriptedSeat, check_environment
from posttrain.types import Message, Outcome, StopReason, Task, ToolCall
from tests.episodes.conversations import CHAT, players, scored

openai = pytest.importorskip("openai")

ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]


def create(client, messages, **more):
    return asyncio.run(client.chat.completions.create(model="any", messages=messages, **more))


def test_the_seat_hears_each_message_once():
    seat = ScriptedSeat(["2", "4"])
    client = openai_client(seat)

    async def two_turns():
        first = await client.chat.completions.create(model="any", messages=ASK, temperature=0.3, max_tokens=5)
        said = [*ASK, first.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "2+2?"}]
        return first, await client.chat.completions.create(model="any", messages=said)

    first, second = asyncio.run(two_turns())
    assert [c.choices[0].message.content for c in (first, second)] == ["2", "4"]
    assert seat.told == [(Message("system", "Be brief."), Message("user", "1+1?")), (Message("user", "2+2?"),)]
    assert (first.choices[0].finish_reason, first.usage.total_tokens, first.model) == ("stop", 0, "policy")


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: one
        b: the other
    """
    return a + b


def test_calls_of_tools_get_an_id_and_broken_arguments_may_be_repeated():
    broken = '{"a": 1, '
    seat = ScriptedSeat([Message("assistant", "", (ToolCall("", "add", broken),)), "3"])
    client, tools = openai_client(seat), [json.loads(schema) for schema in schemas([add])]

    async def two_turns():
        first = (await client.chat.completions.create(model="any", messages=ASK, tools=tools)).choices[0]
        (call,) = first.message.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": "cannot read that"}
        said = [*ASK, first.message.model_dump() | {"content": None}, result]  # with null for the content
        return first, call, await client.chat.completions.create(model="any", messages=said, tools=tools)

    first, call, second = asyncio.run(two_turns())
    assert first.finish_reason == "tool_calls" and call.id and call.function.arguments == broken
    assert seat.tools == schemas([add]) and second.choices[0].message.content == "3"
    assert seat.told[1] == (Message("tool", "cannot read that", tool_call_id=call.id),)


def test_a_reply_that_was_cut_off_says_so_and_may_be_empty():
    seat = ScriptedSeat([""], stop_reason=StopReason.CONTEXT)
    client = openai_client(seat)

    async def twice():
        first = (await client.chat.completions.create(model="any", messages=ASK)).choices[0]
        said = [*ASK, {"role": "assistant", "content": first.message.content}, {"role": "user", "content": "?"}]
        return first, await client.chat.completions.create(model="any", messages=said)

    first, _ = asyncio.run(twice())
    assert (first.finish_reason, first.message.content) == ("length", "") and len(seat.told) == 2


def test_stop_strings_of_a_request_are_the_seats():
    for stop in (".", ["x", "."]):
        reply = asyncio.run(
            openai_client(ScriptedSeat(["2. Or 3"])).chat.completions.create(model="any", messages=ASK, stop=stop)
        )
        assert reply.choices[0].message.content == "2."


OTHER = [{"role": "user", "content": "Who are you?"}]


@pytest.mark.parametrize(
    ("messages", "more", "message"),
    [
        (OTHER, {}, "must repeat what the seat was told and said"),
        (ASK, {}, "must repeat what the seat was told and said"),
        ([*ASK, {"role": "assistant", "content": "3"}, *OTHER], {}, "must repeat what the seat was told and said"),
        ([*ASK, {"role": "assistant", "content": "2"}], {}, "must repeat what the seat was told and said"),
        ([*ASK, {"role": "assistant", "content": "2"}, {"role": "assistant", "content": "+"}], {}, "cannot go on in a"),
        ([*ASK, {"role": "assistant", "content": "2"}, *OTHER], {"n": 2}, "one choice at a time"),
        ([*ASK, {"role": "assistant", "content": "2"}, *OTHER], {"stream": True}, "no stream"),
        ([*ASK, {"role": "assistant", "content": "2"}, {"role": "user", "content": 3}], {}, "message 4 content"),
    ],
)
def test_what_a_seat_cannot_answer_is_a_bad_request_and_changes_nothing(messages, more, message):
    seat = ScriptedSeat(["2", "4"])
    client = openai_client(seat)

    async def ask():
        await client.chat.completions.create(model="any", messages=ASK)
        with pytest.raises(openai.BadRequestError, match=message):
            await client.chat.completions.create(model="any", messages=messages, **more)
        said = [*ASK, {"role": "assistant", "content": "2"}, *OTHER]
        return await client.chat.completions.create(model="any", messages=said)

    assert asyncio.run(ask()).choices[0].message.content == "4" and len(seat.told) == 2


def test_other_routes_do_not_exist():
    with pytest.raises(openai.NotFoundError, match="it has no /v1/models"):
        asyncio.run(openai_client(ScriptedSeat(["2"])).models.retrieve("x"))


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(UserError, match=r"pip install 'posttrain\[judge\]'"):
        openai_client(ScriptedSeat(["2"]))


async def foreign_agent(client, question, rounds):
    """An agent as other libraries write them: its own loop, over an OpenAI client."""
    messages = [{"role": "user", "content": question}]
    for number in range(rounds):
        said = (await client.chat.completions.create(model="gpt", messages=messages)).choices[0].message
        messages += [{"role": "assistant", "content": said.content}, {"role": "user", "content": f"Sure? {number}"}]
    return messages


@dataclass(frozen=True)
class Foreign(Environment):
    """Hands the seat to the agent, and pays by what comes back."""

    max_turns: int = 2
    schedule: str = "continuous"

    async def play(self, task, seats, seed):
        said = await foreign_agent(openai_client(seats["policy"]), task.prompt[0].content, self.max_turns)
        return Outcome({"policy": float(said[-2]["content"] == task.answer)})


TASKS = [Task((Message("user", f"{i}+0?"),), str(i), id=str(i)) for i in range(4)]
(STOP,) = CHAT.stop_ids


def test_an_environment_with_its_own_loop_conforms():
    check_environment(Foreign(), TASKS)


def test_its_episodes_have_the_tokens_that_were_sampled():
    def says(request):
        digits = [c for c in CHAT.tokenizer.decode(request.token_ids) if c.isdigit()]
        return (*CHAT.tokenizer.encode(digits[-2] if "Sure" in str(digits) else digits[0]), STOP)

    engine = ScriptedEngine(says, CHAT.stop_ids)
    found = play(scored(Foreign()), TASKS, players(engine), [0, 1, 2, 3])
    for task, each in zip(TASKS, found, strict=True):
        trajectory = each.trajectories["policy"]
        assert [turn.token_ids[-1] for turn in trajectory.turns] == [STOP, STOP] and len(trajectory.branches) == 1
        assert each.episode.outcome.rewards == {"policy": float(trajectory.text == task.answer)}


def test_an_error_of_posttrain_ends_the_run_and_another_one_its_episode():
    class Refuses:
        async def turn(self, messages, tools=()):
            raise TemplateError("it refuses")

    engine = ScriptedEngine(lambda request: (STOP,), CHAT.stop_ids)
    with pytest.raises(TemplateError, match="it refuses"):
        play(scored(Foreign()), TASKS, players(engine, others={"policy": lambda seed: Refuses()}), [0, 1, 2, 3])

    @dataclass(frozen=True)
    class Broken(Foreign):
        async def play(self, task, seats, seed):
            if task.id == "2":
                await openai_client(seats["policy"]).models.retrieve("x")
            return await super().play(task, seats, seed)

    found = play(scored(Broken()), TASKS, players(engine, max_lost=0.5), [0, 1, 2, 3])
    assert [isinstance(each, Exception) for each in found] == [False, False, True, False]
