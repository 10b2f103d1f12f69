"""A seat's tokens: when they append, when a branch begins, when the context is full, and what a call of a tool does."""

import asyncio
import json
from dataclasses import dataclass, field

import pytest

from posttrain.data.chat import ChatFormat
from posttrain.data.order import seed_for
from posttrain.episodes.seats import PolicySeat
from posttrain.errors import UserError
from posttrain.training.policy import examples_in
from posttrain.types import Completion, Message, Sampling, StopReason, Trajectory
from tests.data.families import of_family
from tests.data.test_tool_calls import CHATS
from tests.groups import group_of

QWEN3, SMOLLM2 = (ChatFormat(of_family(name)) for name in ("qwen3", "smollm2"))
THOUGHT = "<think>\nhm 20\n</think>\n\n20"
TOOL = json.dumps({"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}})
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
USER = [Message("user", text) for text in ("2+2?", "And 3+3?", "And 4+4?", "More?")]


def ids(chat, text):
    return tuple(chat.tokenizer.encode(text, add_special_tokens=False))


def stop_of(chat):
    return ids(chat, "<|im_end|>")


@dataclass
class Says:
    """Answers the n-th request with the n-th of the given texts and a stop token, cut where it may say no more."""

    chat: ChatFormat
    texts: list
    stops: bool = True
    requests: list = field(default_factory=list)
    numbers: list = field(default_factory=list)

    async def __call__(self, request, number):
        self.requests.append(request)
        self.numbers.append(number)
        text = self.texts[min(len(self.requests), len(self.texts)) - 1]
        whole = (*ids(self.chat, text), *(stop_of(self.chat) if self.stops else ()))
        said = whole[: request.sampling.max_new_tokens]
        reason = StopReason.STOP if self.stops and len(said) == len(whole) else StopReason.LENGTH
        return Completion(said, tuple(-0.5 * n for n in range(len(said))), reason)


def talk(chat, texts, told, *, room=10_000, most=500, max_turns=9, tools=(), stops=True, opening=()):
    """A seat, its replies, and what the engine was asked; `told[n]` are the messages before turn n."""
    says = Says(chat, texts, stops)
    seat = PolicySeat(says, chat, Sampling(most), 3, room=room, max_turns=max_turns, opening=opening)

    async def main():
        return [await seat.turn(messages, tools if n == 0 else ()) for n, messages in enumerate(told)]

    return seat, asyncio.run(main()), says


def trained(seat):
    """Every token that is trained, of all examples, in order; and the examples."""
    trajectory = Trajectory(tuple(seat.turns))
    examples = examples_in([group_of([trajectory], [0.0])])
    learned = [t for e in examples for t, mine in zip(e.continuation, e.learned, strict=True) if mine]
    return learned, examples


def told(count):
    return [[message] for message in USER[:count]]


def test_a_template_that_drops_reasoning_begins_a_branch_with_each_question():
    seat, replies, says = talk(QWEN3, [THOUGHT, "<think>\nso\n</think>\n\n6", "<think>\n\n</think>\n\n8"], told(3))
    assert [turn.restarts for turn in seat.turns] == [False, True, True]
    view: list[Message] = []
    for message, reply, request, turn in zip(USER, replies, says.requests, seat.turns, strict=False):
        view.append(message)
        # the whole context is what the template shows of the conversation now
        assert request.token_ids == turn.context_ids == tuple(QWEN3.prompt_ids(view))
        view.append(reply.message)
    shown = QWEN3.tokenizer.decode(says.requests[2].token_ids)
    assert "hm 20" not in shown and "so" not in shown and "20" in shown
    learned, examples = trained(seat)
    assert learned == [t for turn in seat.turns for t in turn.token_ids] and len(examples) == 3
    for example, turn in zip(examples, seat.turns, strict=True):
        assert (example.prefix, example.continuation) == (turn.context_ids, turn.token_ids)
        assert all(example.learned)
    assert len(Trajectory(tuple(seat.turns)).branches) == 3


def test_results_of_tools_append_and_the_next_question_begins_a_branch():
    thinks = [f"<think>\nadd\n</think>\n\n{CALL}", "<think>\ndone\n</think>\n\n4", "bye"]
    result = Message("tool", "4", tool_call_id="call01000", name="add")
    seat, replies, says = talk(QWEN3, thinks, [[USER[0]], [result], [USER[1]]], tools=(TOOL,))
    assert [turn.restarts for turn in seat.turns] == [False, False, True]
    assert [(c.id, c.name, json.loads(c.arguments)) for c in replies[0].message.tool_calls] == [
        ("call01000", "add", {"a": 2})
    ]
    assert replies[0].text == "<think>\nadd\n</think>" and replies[1].message.tool_calls == ()
    first, second = seat.turns[:2]
    assert says.requests[1].token_ids == first.context_ids + first.token_ids + second.context_ids
    between = "\n<|im_start|>user\n<tool_response>\n4\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert QWEN3.tokenizer.decode(second.context_ids) == between
    learned, examples = trained(seat)
    assert learned == [t for turn in seat.turns for t in turn.token_ids] and len(examples) == 2
    assert TOOL.split('"name"')[1][:8] in QWEN3.tokenizer.decode(seat.turns[2].context_ids)  # shown again


def test_a_branch_goes_on_where_nothing_is_dropped():
    result = Message("tool", "4", tool_call_id="x", name="add")
    seat, _, says = talk(
        QWEN3, [THOUGHT, f"<think>\nadd\n</think>\n\n{CALL}", "4"], [*told(2), [result]], tools=(TOOL,)
    )
    assert [turn.restarts for turn in seat.turns] == [False, True, False]
    _, second, third = seat.turns
    assert says.requests[2].token_ids == second.context_ids + second.token_ids + third.context_ids
    learned, examples = trained(seat)
    assert learned == [t for turn in seat.turns for t in turn.token_ids] and len(examples) == 2


def test_a_template_that_keeps_what_was_said_never_begins_a_branch():
    seat, _, says = talk(SMOLLM2, [THOUGHT, "<think>so</think> 6", "8"], told(3))
    assert not any(turn.restarts for turn in seat.turns) and len(Trajectory(tuple(seat.turns)).branches) == 1
    so_far = ()
    for request, turn in zip(says.requests, seat.turns, strict=True):
        so_far += turn.context_ids
        assert request.token_ids == so_far
        so_far += turn.token_ids
    learned, examples = trained(seat)
    assert learned == [t for turn in seat.turns for t in turn.token_ids] and len(examples) == 1
    assert says.numbers == [0, 1, 2]
    assert [request.seed for request in says.requests] == [seed_for(3, "turn", n) for n in range(3)]


def test_without_reasoning_that_template_appends_too():
    seat, _, says = talk(QWEN3, ["4", "6"], told(2))
    assert [turn.restarts for turn in seat.turns] == [False, False]
    assert says.requests[1].token_ids[: len(seat.turns[0].context_ids)] == seat.turns[0].context_ids


def test_a_turn_that_was_cut_gets_its_stop_token_shown():
    seat, replies, _ = talk(SMOLLM2, ["abcdefgh"], told(2), most=3)
    assert [reply.stop_reason for reply in replies] == [StopReason.LENGTH] * 2
    assert seat.turns[1].context_ids[0] == stop_of(SMOLLM2)[0]
    assert seat.turns[0].token_ids == ids(SMOLLM2, "abc") and replies[0].text == "abc"
    seat, _, _ = talk(SMOLLM2, ["ok", "abcdefgh"], told(3), most=4)
    assert [turn.context_ids[0] == stop_of(SMOLLM2)[0] for turn in seat.turns[1:]] == [False, True]


def lengths(chat, count=3, say="ok"):
    """Tokens before and after each turn."""
    seat, _, _ = talk(chat, [say], told(count))
    shown = [len(turn.context_ids) for turn in seat.turns]
    return shown, len(seat.turns[0].token_ids)


def test_where_no_token_fits_the_reply_is_empty_and_no_turn_and_the_seat_stays_full():
    (first, second, _), said = lengths(SMOLLM2)
    seat, replies, says = talk(SMOLLM2, ["ok"], told(4), room=first + said + second)
    assert [reply.stop_reason for reply in replies] == [StopReason.STOP, *[StopReason.CONTEXT] * 3]
    assert [reply.text for reply in replies] == ["ok", "", "", ""]
    assert len(seat.turns) == len(says.requests) == 1
    assert (replies[1].usage.prompt_tokens, replies[1].usage.completion_tokens) == (first + said + second, 0)
    assert replies[2].usage.prompt_tokens == 0


def test_a_turn_gets_no_more_than_what_is_left_and_says_that_the_context_ended_it():
    (first, second, _), said = lengths(SMOLLM2)
    seat, replies, says = talk(SMOLLM2, ["ok", "abcdefgh"], told(3), room=first + said + second + 2)
    assert [r.sampling.max_new_tokens for r in says.requests] == [said + second + 2, 2]
    assert [reply.stop_reason for reply in replies] == [StopReason.STOP, StopReason.CONTEXT, StopReason.CONTEXT]
    assert seat.turns[1].token_ids == ids(SMOLLM2, "ab") and seat.turns[1].stop_reason is StopReason.CONTEXT
    assert len(Trajectory(tuple(seat.turns)).token_ids) == first + said + second + 2


def test_a_turn_that_is_cut_by_its_own_length_in_what_is_left_ended_by_length():
    (first, second, _), said = lengths(SMOLLM2)
    _, replies, says = talk(SMOLLM2, ["ok", "abcdefgh"], told(2), room=first + said + second + 4, most=4)
    assert says.requests[1].sampling.max_new_tokens == 4 and replies[1].stop_reason is StopReason.LENGTH


def test_a_branch_has_room_of_its_own():
    """Each branch is a sequence of its own for the model, and for a micro-batch."""
    room = max(len(turn.context_ids) + len(turn.token_ids) for turn in talk(QWEN3, [THOUGHT], told(3))[0].turns)
    seat, replies, _ = talk(QWEN3, [THOUGHT], told(3), room=room)
    assert [reply.stop_reason for reply in replies] == [StopReason.STOP] * 3
    assert sum(len(turn.context_ids) + len(turn.token_ids) for turn in seat.turns) > room
    _, replies, _ = talk(QWEN3, [THOUGHT], told(3), room=room - 1)
    assert replies[2].stop_reason is StopReason.CONTEXT


def test_a_prompt_that_fills_the_room_is_never_asked():
    first = lengths(SMOLLM2)[0][0]
    seat, (reply,), says = talk(SMOLLM2, ["ok"], told(1), room=first)
    assert reply.stop_reason is StopReason.CONTEXT and says.requests == seat.turns == []


def test_a_seat_is_asked_no_more_often_than_it_may():
    with pytest.raises(UserError, match="asked more than 2 times in an episode"):
        talk(SMOLLM2, ["ok"], told(3), max_turns=2)
    (first, second, _), said = lengths(SMOLLM2)
    with pytest.raises(UserError, match="asked more than 3 times"):  # empty replies count as well
        talk(SMOLLM2, ["ok"], told(4), room=first + said + second, max_turns=3)


def test_tools_come_with_the_first_turn_and_stay():
    async def ask(later, first=(TOOL,)):
        seat = PolicySeat(Says(QWEN3, ["4"]), QWEN3, Sampling(50), 0, room=9999, max_turns=3)
        await seat.turn([USER[0]], first)
        return await seat.turn([USER[1]], later)

    asyncio.run(ask(()))
    asyncio.run(ask((TOOL,)))
    for later, first in (((TOOL, TOOL), (TOOL,)), ((TOOL,), ())):
        with pytest.raises(UserError, match="gets its tools with its first turn, and keeps them; got others later"):
            asyncio.run(ask(later, first))


def test_tools_are_shown_to_the_policy_and_calls_are_read_only_where_there_are_tools():
    seat, (reply,), says = talk(QWEN3, [CALL], told(1), tools=(TOOL,))
    assert "# Tools" in QWEN3.tokenizer.decode(says.requests[0].token_ids) and reply.text == ""
    assert seat.turns[0].text == CALL  # as it was sampled
    _, (plain,), _ = talk(QWEN3, [CALL], told(1))
    assert plain.message == Message("assistant", CALL)


def test_arguments_between_tags_have_the_types_of_the_tools():
    function = "<tool_call>\n<function=add>\n<parameter=a>\n2\n</parameter>\n</function>\n</tool_call>"
    for kind, meant in (("integer", 2), ("string", "2")):
        tool = json.dumps({"function": {"name": "add", "parameters": {"properties": {"a": {"type": kind}}}}})
        _, (reply,), _ = talk(CHATS["functions"], [function], told(1), tools=(tool,))
        (call,) = reply.message.tool_calls
        assert json.loads(call.arguments) == {"a": meant}


def test_calls_of_several_turns_have_ids_of_their_own():
    result = Message("tool", "4", tool_call_id="x", name="add")
    _, replies, _ = talk(QWEN3, [f"{CALL}\n{CALL}", CALL, "4"], [[USER[0]], [result, result], [result]], tools=(TOOL,))
    ids_of = [[call.id for call in reply.message.tool_calls] for reply in replies]
    assert ids_of == [["call01000", "call01001"], ["call02000"], []]


def test_a_first_turn_without_messages_is_refused():
    with pytest.raises(UserError, match="first asked with the messages of its prompt; got none"):
        talk(SMOLLM2, ["ok"], [[]])


def test_an_opening_is_given_and_counts_as_said():
    opening = ids(SMOLLM2, "so ")
    seat, replies, says = talk(SMOLLM2, ["ok"], told(2), opening=opening, most=10)
    assert replies[0].text == "so ok" and replies[1].text == "ok"
    assert says.requests[0].token_ids[-3:] == seat.turns[0].context_ids[-3:] == opening
    assert [r.sampling.max_new_tokens for r in says.requests] == [10 - len(opening), 10]
    assert trained(seat)[0] == [t for turn in seat.turns for t in turn.token_ids]


def test_several_messages_may_come_before_a_turn():
    system = Message("system", "Be brief.")
    seat, _, says = talk(SMOLLM2, ["ok"], [[system, USER[0]], [USER[1], USER[2]]])
    assert says.requests[0].token_ids == tuple(SMOLLM2.prompt_ids([system, USER[0]]))
    assert SMOLLM2.tokenizer.decode(seat.turns[1].context_ids).count("<|im_start|>user") == 2


def say(chat, texts, play, *, max_turns=9, stops=True, room=10_000):
    """A seat that `play` asks."""
    says = Says(chat, texts, stops)
    seat = PolicySeat(says, chat, Sampling(50), 3, room=room, max_turns=max_turns)
    return seat, asyncio.run(play(seat)), says


STOP = ["</search>"]


@pytest.mark.parametrize("chat", [SMOLLM2, QWEN3])
def test_a_message_stops_at_a_string_and_goes_on_after_what_is_inserted(chat):
    """Tokens stay as they were sampled, what the engine said after the string is dropped, and the rest is context."""

    async def play(seat):
        first = await seat.turn([USER[0]], stop=STOP)
        second = await seat.go_on("<i>20 <|im_end|></i>", stop=STOP)
        return first, second, await seat.turn([USER[1]])

    texts = ["a 20 <search>x</search> and more", " so 20", "6"]
    seat, replies, says = say(chat, texts, play)
    assert [reply.text for reply in replies] == ["a 20 <search>x</search>", " so 20", "6"]
    one, two, three = seat.turns
    assert one.token_ids == ids(chat, "a 20 <search>x</search>") and one.stop_reason is StopReason.STOP
    assert says.requests[0].sampling.stop == ("</search>",) and says.requests[2].sampling.stop == ()
    assert two.context_ids == tuple(chat.inserted_ids("<i>20 <|im_end|></i>"))
    assert not set(two.context_ids) & chat.stop_ids and chat.decode(two.context_ids) == "<i>20 <|im_end|></i>"
    assert says.requests[1].token_ids == one.context_ids + one.token_ids + two.context_ids
    assert says.requests[2].token_ids == says.requests[1].token_ids + two.token_ids + three.context_ids
    learned, examples = trained(seat)
    assert learned == [t for turn in seat.turns for t in turn.token_ids] and len(examples) == 1
    assert [r.seed for r in says.requests] == [seed_for(3, "turn", n) for n in range(3)]


def test_a_message_that_was_stopped_gets_its_stop_token_before_the_next():
    async def play(seat):
        return await seat.turn([USER[0]], stop=["."]), await seat.turn([USER[1]])

    seat, _, _ = say(SMOLLM2, ["yes. no", "6"], play)
    assert seat.turns[0].text == "yes." and seat.turns[1].context_ids[0] == stop_of(SMOLLM2)[0]


def test_a_string_that_ends_within_a_token_keeps_that_token():
    """`20` is one token: what it has behind the string is in the text, for it was sampled."""

    async def play(seat):
        return await seat.turn([USER[0]], stop=["12"])

    seat, reply, _ = say(SMOLLM2, ["a1203"], play)
    assert seat.turns[0].token_ids == ids(SMOLLM2, "a120") and reply.text == "a120"


@pytest.mark.parametrize(
    ("texts", "stop", "complaint"),
    [
        (["4"], STOP, "and the message has ended with a stop token; look for the string"),
        ([], STOP, "and nothing has been said yet; look for the string"),
        (["4"], [""], "are a list, none of them empty; got stop=.''"),
        (["4"], "</search>", "are a list, none of them empty; got stop='</search>'"),
        (["4"], ["x<|im_end|>"], "cannot occur: the text of a reply has no special tokens"),
    ],
)
def test_what_cannot_be_stopped_or_go_on_is_refused(texts, stop, complaint):
    async def play(seat):
        if texts:
            await seat.turn([USER[0]], stop=stop)
        await seat.go_on("x")

    with pytest.raises(UserError, match=complaint):
        say(SMOLLM2, texts or ["4"], play)


def test_going_on_counts_as_a_turn_and_is_empty_where_nothing_fits():
    async def play(seat):
        return await seat.turn([USER[0]], stop=["b"]), await seat.go_on("x" * 50), await seat.go_on("y")

    shown = len(SMOLLM2.prompt_ids([USER[0]]))
    seat, replies, _ = say(SMOLLM2, ["ab c"], play, room=shown + 20)
    assert [r.stop_reason for r in replies] == [StopReason.STOP, StopReason.CONTEXT, StopReason.CONTEXT]
    assert len(seat.turns) == 1
    with pytest.raises(UserError, match="asked more than 2 times"):
        say(SMOLLM2, ["ab c"], play, max_turns=2, room=shown + 20)


def test_a_turn_at_another_temperature_carries_it_and_one_that_is_truncated_is_not_learned():
    async def play(seat):
        await seat.turn([USER[0]], temperature=0.7, max_new_tokens=3)
        for own in ({"top_p": 0.9}, {"temperature": 0.0}, {"top_k": 5}, {"temperature": 1.0}):
            await seat.turn([USER[1]], **own)

    seat, _, says = say(SMOLLM2, ["abcdef"], play)
    assert [turn.temperature for turn in seat.turns] == [0.7, 0, 0, 0, 0]
    assert [turn.learned for turn in seat.turns] == [True, False, False, False, True]
    assert [r.sampling.max_new_tokens for r in says.requests] == [3, 50, 50, 50, 50]
    assert says.requests[1].sampling == Sampling(50, top_p=0.9)
    learned, (example,) = trained(seat)
    assert learned == [t for turn in seat.turns if turn.learned for t in turn.token_ids]
    own = [t for t, mine in zip(example.temperatures, example.learned, strict=True) if mine]
    assert own == [0.7] * 3 + [0.0] * (len(learned) - 3)
    assert len(Trajectory(tuple(seat.turns)).logprobs) == len(learned)
    with pytest.raises(UserError, match=r"top_p is above 0 and at most 1.*got {'top_p': 0}"):
        asyncio.run(PolicySeat(says, SMOLLM2, Sampling(5), 0, room=99).turn([USER[0]], top_p=0))
