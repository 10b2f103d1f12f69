"""A seat that a chat model takes: what it is shown, with which seed, and what it says once its context is full."""

import asyncio
from dataclasses import dataclass, field

from posttrain.data.order import seed_for
from posttrain.episodes.seats import ChatSeat
from posttrain.types import Message, Reply, Sampling, StopReason, Usage


@dataclass
class Scripted:
    """Says what it is told to, and keeps what it was asked."""

    replies: list[Reply]
    asked: list[tuple[list[Message], Sampling, tuple[str, ...], int]] = field(default_factory=list)

    async def chat(self, messages, *, sampling, tools=(), seed=0):
        self.asked.append(([*messages], sampling, tuple(tools), seed))
        return self.replies.pop(0)


def reply(text: str, reason: StopReason = StopReason.STOP) -> Reply:
    return Reply(Message("assistant", text), reason, Usage(1, 1))


def turns(seat: ChatSeat, *said: str, tools: tuple[str, ...] = ()) -> list[Reply]:
    return [asyncio.run(seat.turn([Message("user", text)], tools if i == 0 else ())) for i, text in enumerate(said)]


def test_it_is_asked_with_the_whole_conversation_and_a_seed_of_its_own_for_each_turn():
    model = Scripted([reply("one"), reply("two")])
    sampling = Sampling(7, 0.5)
    assert [r.text for r in turns(ChatSeat(model, sampling, 3), "a", "b", tools=("{}",))] == ["one", "two"]
    (first, *_), (second, *_) = model.asked
    assert [m.text for m in first] == ["a"] and [m.text for m in second] == ["a", "one", "b"]
    assert [m.role for m in second] == ["user", "assistant", "user"]
    assert [asked[1:] for asked in model.asked] == [
        (sampling, ("{}",), seed_for(3, "turn", 0)),
        (sampling, ("{}",), seed_for(3, "turn", 1)),
    ]


def test_with_a_full_context_it_says_nothing_and_is_not_asked_again():
    model = Scripted([reply("one"), reply("", StopReason.CONTEXT)])
    found = turns(ChatSeat(model, Sampling(7), 0), "a", "b", "c")
    assert [r.text for r in found] == ["one", "", ""] and len(model.asked) == 2
    assert [r.stop_reason for r in found] == [StopReason.STOP, StopReason.CONTEXT, StopReason.CONTEXT]
