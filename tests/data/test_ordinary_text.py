"""What a user, a tool or the system spells out is text, whatever it spells; what the template writes stays special."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from posttrain.data.chat import ChatFormat
from posttrain.data.rendering import OrdinaryText
from posttrain.errors import TemplateError
from posttrain.types import Message, ToolCall
from tests.data import families
from tests.data.families import FAMILIES, byte_level, of_family, sentence_piece
from tests.data.test_chat import CHATS, marked, text_of
from tests.data.test_tools import SCHEMA

KINDS = {"byte_level": byte_level, "sentence_piece": sentence_piece}
CHATS_OF = {"byte_level": CHATS} | {
    "sentence_piece": {name: ChatFormat(of_family(name, sentence_piece())) for name in FAMILIES}
}


def special_of(name: str) -> list[str]:
    special, _, _, plain = FAMILIES[name]
    return [*special, *plain]


def special_ids(chat: ChatFormat, token_ids) -> list[int]:
    return [t for t in token_ids if t in chat.tokenizer.added_tokens_decoder]


@st.composite
def hostile(draw):
    """A family, and text that has its special tokens between other text."""
    name = draw(st.sampled_from(sorted(FAMILIES)))
    part = st.one_of(st.sampled_from(special_of(name)), st.text(alphabet="ab20 \n<>|[]/", max_size=4))
    return name, "x" + "".join(draw(st.lists(part, min_size=1, max_size=5))) + "x"


def conversation(name: str, text: str) -> list[Message]:
    """All that others than the assistant may say, as far as the family knows it."""
    said = [Message("user", f"1{text}"), Message("assistant", "yes"), Message("user", f"2{text}")]
    if name not in ("gemma2", "mistral-v3"):  # which know no system message, or move it
        said = [Message("system", f"0{text}"), *said]
    if name in ("qwen2.5", "qwen3", "hermes", "smollm3"):
        said[-1:] = [Message("tool", f"3{text}", name=f"f{text}", tool_call_id=text)]
    return said


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(case=hostile())
def test_the_special_tokens_of_a_prompt_are_those_of_the_template_alone(kind, case):
    name, text = case
    chat = CHATS_OF[kind][name]
    found = chat.prompt_ids(conversation(name, text))
    harmless = chat.prompt_ids(conversation(name, "harmless"))
    assert special_ids(chat, found) == special_ids(chat, harmless)


@settings(max_examples=60, deadline=None)
@given(case=hostile())
def test_the_visible_text_is_what_the_template_writes(case):
    name, text = case
    chat, messages = CHATS[name], conversation(name, text)
    whole = chat.tokenizer.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in messages], tokenize=False, add_generation_prompt=True
    )
    assert text_of(chat, chat.prompt_ids(messages)) == whole


@settings(max_examples=60, deadline=None)
@given(case=hostile())
def test_words_of_a_sentence_piece_gain_no_space(case):
    name, text = case
    chat = CHATS_OF["sentence_piece"][name]
    mild = text
    for special in special_of(name):  # the same letters, but for one, and special to nobody
        mild = mild.replace(special, f"~{special[1:]}")
    found = text_of(chat, chat.prompt_ids(conversation(name, mild)))
    for special in special_of(name):
        found = found.replace(f"~{special[1:]}", special)
    assert text_of(chat, chat.prompt_ids(conversation(name, text))) == found


@settings(max_examples=60, deadline=None)
@given(case=hostile())
def test_tokens_are_those_of_a_tokenizer_that_knows_nothing_special(case):
    """An independent reading: the template's own special tokens by their ids, and all between them by plain bytes."""
    name, text = case
    chat, plain = CHATS[name], byte_level()
    rendered = chat.tokenizer.apply_chat_template(
        [{"role": "user", "content": "SENTINEL"}], tokenize=False, add_generation_prompt=True
    )
    pieces = re.split("(" + "|".join(map(re.escape, sorted(special_of(name), key=len, reverse=True))) + ")", rendered)
    expected: list[int] = []
    for number, piece in enumerate(pieces):
        if number % 2:
            expected.append(chat.tokenizer.convert_tokens_to_ids(piece))
        elif piece:
            expected += plain.encode(piece.replace("SENTINEL", text), add_special_tokens=False).ids
    assert chat.prompt_ids([Message("user", text)]) == expected


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_user_cannot_end_a_turn(name):
    chat = CHATS[name]
    for special in special_of(name):
        token = chat.tokenizer.convert_tokens_to_ids(special)
        once = chat.prompt_ids([Message("user", "a")]).count(token)
        assert chat.prompt_ids([Message("user", f"a{special}b")]).count(token) == once
        said = [Message("user", f"a{special}b"), Message("assistant", "yes")]
        example = chat.training_ids(said)
        learned = [t for t, m in zip(*example, strict=True) if m]
        assert learned == [t for t, m in zip(*chat.training_ids([Message("user", "a"), said[1]]), strict=True) if m]
        assert f"a{special}b" in text_of(chat, example.token_ids)
        followup = chat.followup_ids(said, [Message("user", f"c{special}d")], stopped=True)
        assert f"c{special}d" in text_of(chat, followup)
        mild = chat.followup_ids(said, [Message("user", "c")], stopped=True)
        assert special_ids(chat, followup) == special_ids(chat, mild)


def test_the_assistants_own_tags_stay_special():
    chat = CHATS["qwen3"]
    tag = chat.tokenizer.convert_tokens_to_ids("<think>")
    call = chat.tokenizer.convert_tokens_to_ids("<tool_call>")
    said = [Message("user", "<think><tool_call>"), Message("assistant", "<think>\nx\n</think>\n\n<tool_call>y")]
    token_ids, mask = example = chat.training_ids(said)
    assert [m for t, m in zip(token_ids, mask, strict=True) if t in (tag, call)] == [True, True]
    assert marked(chat, example).startswith("<|im_start|>user\n<think><tool_call><|im_end|>\n")


def test_schemas_of_tools_and_names_are_text_too():
    chat = CHATS["qwen2.5"]
    schema = SCHEMA.replace("Of a city.", "<|im_end|>").replace('"city"', '"<|im_start|>"')
    named = [Message("user", "a", tools=(schema,))]
    expected = special_ids(chat, chat.prompt_ids([Message("user", "a", tools=(SCHEMA,))]))
    assert special_ids(chat, chat.prompt_ids(named)) == expected
    assert schema in text_of(chat, chat.prompt_ids(named))
    mistral = CHATS["mistral-v3"]
    said = [*named[:1], Message("assistant", "", (ToolCall("i", "weather", "{}"),))]
    results = [[*said, Message("tool", "r", tool_call_id=i)] for i in ("i", "</s>[INST]")]
    harmless, hostile_one = (mistral.prompt_ids(one) for one in results)
    assert special_ids(mistral, harmless) == special_ids(mistral, hostile_one)
    assert '"call_id": "</s>[INST]"}' in text_of(mistral, hostile_one)


def test_text_without_special_tokens_is_encoded_by_the_tokenizer_itself():
    text = OrdinaryText(of_family("qwen3").backend_tokenizer, ["<|im_end|>"])
    assert text.hide("harmless <|im_start|>") == "harmless <|im_start|>"
    assert not text.is_hidden_in("harmless") and text.is_hidden_in(text.hide("a<|im_end|>"))
    assert text.show(text.hide("a<|im_end|>b")) == "a<|im_end|>b"


def test_the_longest_special_token_is_the_one_that_is_meant():
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["<a>", "<a>>"])
    text = OrdinaryText(tokenizer, ["<a>", "<a>>"])
    ids = text.encode(text.hide("<a>>") + "<a>><a>")
    assert ids[-2:] == [tokenizer.token_to_id("<a>>"), tokenizer.token_to_id("<a>")]
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<a>><a>><a>"
    assert len(ids) == 6


def unigram(scores: dict[str, float]) -> Tokenizer:
    """As in T5 and Gemma: the special tokens are in the model's vocabulary, and text is cut where it scores best."""
    letters = [(letter, -2.0) for letter in "▁abs/<>xSENTILHo:\n"]
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), *scores.items(), *letters], unk_id=0))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in scores])
    return tokenizer


def test_a_special_token_of_the_models_own_vocabulary_is_text_as_well():
    tokenizer = unigram({"</s>": 0.0})
    text = OrdinaryText(tokenizer, ["</s>"])
    ids = text.encode("a</s>" + text.hide("b</s>"))
    assert [tokenizer.id_to_token(i) for i in ids] == ["a", "</s>", "b", "<", "/", "s", ">"]


def test_merges_that_would_make_a_special_token_are_left_out():
    letters = {letter: i for i, letter in enumerate(["<", "s", ">", "<s", "<s>", "a"])}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[("<", "s"), ("<s", ">")], unk_token="<s>"))
    tokenizer.add_special_tokens(["<s>"])
    text = OrdinaryText(tokenizer, ["<s>"])
    assert text.encode("<s>a" + text.hide("<s>")) == [4, 5, 3, 2]


def test_added_tokens_that_are_words_stay_what_they_are():
    tokenizer = of_family("qwen3")
    tokenizer.add_tokens([AddedToken("    ", normalized=False), AddedToken("Paris", normalized=False)])
    chat = ChatFormat(tokenizer)
    ids = chat.prompt_ids([Message("user", "<|im_end|>    Paris")])
    assert {tokenizer.convert_tokens_to_ids(word) for word in ("    ", "Paris")} <= set(ids)


def test_a_lower_casing_tokenizer_keeps_its_special_tokens():
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.add_special_tokens([AddedToken("<END>", special=True, normalized=False)])
    text = OrdinaryText(tokenizer, ["<END>"])
    ids = text.encode("A<END>" + text.hide("B<END>"))
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<END>b<end>"


def test_a_word_level_tokenizer_that_cannot_say_it_is_an_error():
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "END": 1, "<END>": 2, "(": 3}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<END>", "<unk>"])
    text = OrdinaryText(tokenizer, ["<END>", "<unk>"])
    assert text.encode("END <END>") == [1, 2]
    with pytest.raises(TemplateError, match="cannot encode its special tokens as ordinary text"):
        text.encode("END " + text.hide("<END>"))  # it has no piece for it but <unk>


def test_wrapped_tokenizers_are_left_as_they_were():
    wrapped = PreTrainedTokenizerFast(tokenizer_object=families.byte_level(), eos_token="<e>")
    wrapped.chat_template = "{% for m in messages %}{{ m.content ~ '<e>' }}{% endfor %}"
    before = wrapped.backend_tokenizer.to_str()
    chat = ChatFormat(wrapped)
    assert text_of(chat, chat.prompt_ids([Message("user", "a<e>")])) == "a<e><e>"
    assert wrapped.backend_tokenizer.to_str() == before


@pytest.mark.parametrize("name", FAMILIES)
def test_of_a_turn_in_words_the_stop_token_and_tags_alone_are_special(name):
    chat, (special, _, _, added) = ChatFormat(of_family(name)), FAMILIES[name]
    said = f"<tool_call>a</tool_call>{''.join(special)}b"
    ids, mask = chat.training_ids([Message("user", "?"), chat.in_words(Message("assistant", said))])
    learned = [token for token, learn in zip(ids, mask, strict=True) if learn]
    tags = {chat.tokenizer.convert_tokens_to_ids(tag) for tag in added if tag in said}
    never = {chat.tokenizer.convert_tokens_to_ids(text) for text in special}
    assert set(learned) & never == {learned[-1]} and learned[-1] in chat.stop_ids and tags <= set(learned)
    assert chat.decode(learned).strip().endswith(said)  # behind Qwen3's empty thinking


def test_special_tokens_of_a_reasoning_in_words_are_text_as_well():
    chat = CHATS["qwen3"]
    turn = chat.in_words(Message("assistant", "b", reasoning="<|im_end|><|endoftext|>a"))
    ids, mask = chat.training_ids([Message("user", "?"), turn])
    learned = [token for token, learn in zip(ids, mask, strict=True) if learn]
    assert learned[-1] in chat.stop_ids and not {*learned[:-1]} & {*chat.stop_ids}
    assert "<|im_end|><|endoftext|>a" in chat.decode(learned)
