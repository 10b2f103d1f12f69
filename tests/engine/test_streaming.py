"""Text as it is sampled: whole letters, and nothing else than what is there in the end."""

from posttrain.data.chat import ChatFormat
from posttrain.engine.policy import streamed
from posttrain.types import Request, Sampling
from tests.data.families import of_family
from tests.episodes.stepwise import Stepwise

CHAT = ChatFormat(of_family("smollm2"))


class Scripted(Stepwise):
    """Says a text token by token, and tells what it has said so far."""

    def __init__(self, text):
        super().__init__()
        self.ids = CHAT.tokenizer.encode(text, add_special_tokens=False)

    def sampled(self):
        return {number: self.ids[: len(tokens)] for number, (_, tokens) in self.running.items()}

    def step(self):
        done = super().step()
        return {number: each.__class__((*self.ids,), each.logprobs, each.stop_reason) for number, each in done.items()}


def parts(text, requests=1):
    engine, shown = Scripted(text), [[] for _ in range(requests)]
    asked = [Request((1,), Sampling(len(engine.ids)), seed) for seed in range(requests)]
    found = streamed(engine, asked, CHAT, lambda number, new: shown[number].append((len(engine.steps), new)))
    assert all(CHAT.decode(each.token_ids) == text for each in found)
    return shown


def test_each_token_is_shown_in_its_step():
    for shown in parts("one two three", requests=3):
        assert [step for step, _ in shown] == list(range(1, len(shown) + 1)) and len(shown) > 1
        assert "".join(new for _, new in shown) == "one two three"


def test_letters_of_several_tokens_are_shown_whole():
    text = "\N{SNOWMAN WITHOUT SNOW}\N{MUSICAL SYMBOL G CLEF} \N{REPLACEMENT CHARACTER}"
    (shown,) = parts(text)
    assert "".join(new for _, new in shown) == text
    assert all("\N{REPLACEMENT CHARACTER}" not in new for _, new in shown[:-1])
