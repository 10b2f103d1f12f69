"""Two replies for people to choose between: of whom, how different, and what happens where there is no room."""

from types import SimpleNamespace

import pytest

from posttrain.data.order import seed_for
from posttrain.engine.scripted import ScriptedEngine
from posttrain.errors import TemplateError
from posttrain.recipes.annotate.serve import TRIES, two_replies
from posttrain.types import Message, Sampling
from tests.episodes.conversations import chat_format

CHAT = chat_format()
(STOP,) = CHAT.tokenizer.encode("<|im_end|>", add_special_tokens=False)
HELLO = [{"role": "user", "content": "Hello?"}]
PROMPT = tuple(CHAT.prompt_ids([Message("user", "Hello?")]))


def talker(name, script, context=200):
    engine = ScriptedEngine(
        lambda request: (*CHAT.tokenizer.encode(script(request), add_special_tokens=False), STOP), CHAT.stop_ids
    )
    return name, SimpleNamespace(chat=CHAT, engine=engine, model=SimpleNamespace(context=context))


def asked(*talkers, of=((7, HELLO),), most=50):
    return two_replies(talkers, Sampling(most, 0.7), of)


def test_one_model_gives_two_replies_with_draws_of_their_own():
    said = {seed_for(7, 0, 0): "yes", seed_for(7, 1, 0): "no"}
    one = talker("a", lambda request: said[request.seed])
    assert asked(one) == [[("yes", "a", "stop"), ("no", "a", "stop")]]
    first, second = one[1].engine.asked
    assert first[0].token_ids == PROMPT == second[0].token_ids
    assert first[0].sampling == Sampling(50, 0.7)


def test_of_two_models_each_gives_one():
    assert asked(talker("a", lambda _: "yes"), talker("b", lambda _: "no")) == [
        [("yes", "a", "stop"), ("no", "b", "stop")]
    ]


def test_a_reply_that_says_the_same_is_drawn_again_a_few_times():
    said = {seed_for(7, 1, 2): "no"}
    one = talker("a", lambda request: said.get(request.seed, "yes"))
    assert asked(one) == [[("yes", "a", "stop"), ("no", "a", "stop")]]
    assert len(one[1].engine.asked) == 4
    same = talker("a", lambda _: "yes")
    assert asked(same) == [[("yes", "a", "stop"), ("yes", "a", "stop")]]
    assert len(same[1].engine.asked) == 1 + TRIES


def test_conversations_are_answered_together_and_only_what_is_the_same_again():
    again = {seed_for(2, 1, 1): "later"}
    one = talker("a", lambda r: again.get(r.seed) or ("no" if r.seed == seed_for(1, 1, 0) else "yes"))
    of = [(1, HELLO), (2, [*HELLO, {"role": "assistant", "content": "x"}, *HELLO])]
    assert asked(one, of=of) == [
        [("yes", "a", "stop"), ("no", "a", "stop")],
        [("yes", "a", "stop"), ("later", "a", "stop")],
    ]
    assert [len(requests) for requests in one[1].engine.asked] == [2, 2, 1]


def test_a_reply_is_as_long_as_there_is_room():
    length = len(PROMPT)
    one = talker("a", lambda _: "yes", context=length + 2)
    asked(one)
    assert one[1].engine.asked[0][0].sampling.max_new_tokens == 2
    ((_, _, why), _) = asked(talker("a", lambda _: "yes and no", context=length + 2))[0]
    assert why == "length"
    full = talker("a", lambda _: "yes", context=length)
    long, short = asked(full, of=[(1, HELLO), (2, [{"role": "user", "content": ""}])])
    assert "as long as the model can read" in long and short[0][0]


def test_what_no_template_reads_is_said_of_that_conversation_alone():
    def strict(messages):
        if messages[0].role == "system":
            raise TemplateError("system messages are not supported")
        return CHAT.prompt_ids(messages)

    one = talker("a", lambda request: str(request.seed))
    one[1].chat = SimpleNamespace(prompt_ids=strict, decode=CHAT.decode)
    bad, good = asked(one, of=[(1, [{"role": "system", "content": "Be brief."}, *HELLO]), (2, HELLO)])
    assert "cannot read" in bad and "not supported" in bad and len(good) == 2


def test_a_zero_byte_is_shown_as_what_it_is():
    assert asked(talker("a", lambda _: "a\0b"))[0][0][0] == "a\ufffdb"


@pytest.mark.parametrize("count", [1, 2])
def test_nothing_asked_is_nothing_answered(count):
    assert asked(*[talker("a", lambda _: "x")] * count, of=[]) == []


def test_a_reply_that_says_nothing_is_drawn_again_and_none_is_better_than_that():
    said = {seed_for(7, 0, 0): "", seed_for(7, 0, 1): " ", seed_for(7, 0, 2): "yes", seed_for(7, 1, 0): "\n"}
    one = talker("a", lambda request: said.get(request.seed, "no"))
    assert asked(one) == [[("yes", "a", "stop"), ("no", "a", "stop")]]
    same = {seed_for(7, 1, turn): " " for turn in (1, 2, 3)}
    assert asked(talker("a", lambda request: same.get(request.seed, "yes"))) == [[("yes", "a", "stop")] * 2]
    mute = talker("a", lambda _: " ")
    (why,) = asked(mute)
    assert "says nothing" in why and len(mute[1].engine.asked) == TRIES
