from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers.processors import TemplateProcessing

from posttrain.data.chat import ChatFormat, TrainingIds
from posttrain.errors import TemplateError
from posttrain.types import Message
from tests.data import families, vectors
from tests.data.families import of_family

CHATS = {name: ChatFormat(of_family(name)) for name in families.FAMILIES}
CASES = [
    (name, conversation, expected)
    for name, texts in vectors.VECTORS.items()
    for conversation, expected in zip((vectors.SINGLE, vectors.TWO, vectors.SYSTEM), texts, strict=True)
]


def text_of(chat: ChatFormat, token_ids) -> str:
    return chat.tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def marked(chat: ChatFormat, example: TrainingIds) -> str:
    """The example as text, with what is trained between ⟦ and ⟧."""
    assert len(example.token_ids) == len(example.mask)
    parts = []
    for produced, run in groupby(zip(*example, strict=True), key=lambda pair: pair[1]):
        text = text_of(chat, [token for token, _ in run])
        parts.append(f"⟦{text}⟧" if produced else text)
    return "".join(parts)


def says(role, text) -> Message:
    return Message(role, text)


@pytest.mark.parametrize("name, conversation, expected", [case for case in CASES if case[2] is not None])
def test_training_text_and_mask_are_those_written_by_hand(name, conversation, expected):
    chat = CHATS[name]
    assert marked(chat, chat.training_ids(conversation)) == expected


@pytest.mark.parametrize("name, conversation", [case[:2] for case in CASES if case[2] is None])
def test_a_conversation_that_one_sequence_cannot_hold_is_an_error(name, conversation):
    with pytest.raises(TemplateError, match=r"System role not supported|rewrites the turns before message"):
        CHATS[name].training_ids(conversation)


@pytest.mark.parametrize("name, with_system", vectors.LAST)
def test_the_last_turn_alone_is_trained_behind_what_the_template_shows(name, with_system):
    conversation = vectors.SYSTEM if with_system else vectors.TWO
    example = CHATS[name].training_ids(conversation, train_on="last")
    assert marked(CHATS[name], example) == vectors.LAST[name, with_system]


@pytest.mark.parametrize("name, conversation, expected", [case for case in CASES if case[2] is not None])
def test_follow_up_is_what_stands_between_two_produced_turns(name, conversation, expected):
    if conversation is vectors.SINGLE:
        return
    chat = CHATS[name]
    between = expected.split("⟧")[1].split("⟦")[0]
    stop = chat.training_ids(conversation).token_ids[-1]
    history = [*conversation[:-3], says("assistant", "what this says does not matter")]
    stopped = chat.followup_ids(history, [conversation[-2]], stopped=True)
    cut = chat.followup_ids(history, [conversation[-2]], stopped=False)
    assert text_of(chat, stopped) == between
    assert cut == [stop, *stopped]


STOPS = {
    "smollm2": {"<|im_end|>"},
    "smollm3": {"<|im_end|>"},
    "hermes": {"<|im_end|>"},
    "qwen2.5": {"<|im_end|>"},
    "qwen3": {"<|im_end|>"},
    "llama3": {"<|eot_id|>", "<|end_of_text|>"},
    "gemma2": {"<end_of_turn>", "<eos>"},
    "gemma3": {"<end_of_turn>", "<eos>"},
    "mistral": {"</s>"},
    "mistral-v3": {"</s>"},
    "phi3": {"<|end|>", "<|endoftext|>"},
}


@pytest.mark.parametrize("name", families.FAMILIES)
def test_stop_ids_are_the_templates_own_and_the_tokenizers(name):
    assert {text_of(CHATS[name], [token]) for token in CHATS[name].stop_ids} == STOPS[name]


def test_stop_ids_include_those_of_the_generation_config():
    tokenizer = of_family("qwen2.5")
    end_of_text = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    assert ChatFormat(tokenizer, [end_of_text]).stop_ids == {end_of_text, tokenizer.eos_token_id}


TEXT = st.text(alphabet="ab20 \n\t<>é☃", min_size=1, max_size=12).filter(lambda text: text.strip())
KEEPS_TURNS = [name for name in families.FAMILIES if name != "qwen3"]


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(KEEPS_TURNS), texts=st.lists(TEXT, min_size=2, max_size=6))
def test_every_turn_is_trained_behind_the_prompt_that_inference_sees(name, texts):
    chat = CHATS[name]
    messages = [says("assistant" if i % 2 else "user", text) for i, text in enumerate(texts[: len(texts) // 2 * 2])]
    token_ids, mask = chat.training_ids(messages)
    starts = [i for i, m in enumerate(mask) if m and (i == 0 or not mask[i - 1])]
    assert [token_ids[:start] for start in starts] == [
        chat.prompt_ids(messages[:turn]) for turn in range(1, len(messages), 2)
    ]
    rendered = chat.tokenizer.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in messages], tokenize=False
    )
    assert rendered.startswith(text_of(chat, token_ids))
    assert rendered[len(text_of(chat, token_ids)) :].strip() in ("", "<|endoftext|>")


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(KEEPS_TURNS), texts=st.lists(TEXT, min_size=4, max_size=6))
def test_a_rollout_made_of_follow_ups_is_the_training_sequence(name, texts):
    chat = CHATS[name]
    messages = [says("assistant" if i % 2 else "user", text) for i, text in enumerate(texts[: len(texts) // 2 * 2])]
    expected, mask = chat.training_ids(messages)
    produced = [[t for t, _ in run] for m, run in groupby(zip(expected, mask, strict=True), lambda p: p[1]) if m]
    token_ids = chat.prompt_ids(messages[:1]) + produced[0]
    for turn in range(1, len(messages) // 2):
        said = messages[: 2 * turn]
        token_ids += chat.followup_ids(said, [messages[2 * turn]], stopped=True) + produced[turn]
    assert token_ids == expected


def test_a_merge_across_the_boundary_leaves_the_prompt_alone():
    chat = CHATS["smollm2"]
    messages = [says("user", "hi"), says("assistant", "\nyes")]
    whole = chat.tokenizer.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in messages], tokenize=False
    ).removesuffix("\n")
    token_ids, mask = chat.training_ids(messages)
    assert text_of(chat, token_ids) == whole
    assert token_ids != chat.tokenizer.encode(whole, add_special_tokens=False)  # which has one token for \n\n
    assert token_ids[: mask.index(True)] == chat.prompt_ids(messages[:1])


def produced_tokens(chat: ChatFormat, said: str) -> list[str]:
    token_ids, mask = chat.training_ids([says("user", "hi"), says("assistant", said)])
    return chat.tokenizer.convert_ids_to_tokens([token for token, m in zip(token_ids, mask, strict=True) if m])


def test_no_space_creeps_in_where_a_tokenizer_puts_one_before_the_first_word():
    mistral = ChatFormat(of_family("mistral", families.sentence_piece()))
    assert produced_tokens(mistral, "yes") == ["▁", "y", "e", "s", "</s>"]
    chatml = ChatFormat(of_family("smollm2", families.sentence_piece()))
    assert produced_tokens(chatml, "yes") == ["y", "e", "s", "<|im_end|>"]
    assert produced_tokens(chatml, "\nyes") == ["\n", "y", "e", "s", "<|im_end|>"]  # would merge with the prompt's \n


@pytest.mark.parametrize("name", ["smollm2", "llama3", "gemma3", "mistral", "mistral-v3", "phi3"])
@pytest.mark.parametrize("kind", [families.byte_level, families.sentence_piece])
def test_where_no_boundary_is_lost_the_tokens_are_those_of_the_whole_rendering(name, kind):
    chat = ChatFormat(of_family(name, kind()))
    whole = chat.tokenizer.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in vectors.TWO], tokenize=False
    )
    expected = chat.tokenizer.encode(whole, add_special_tokens=False)
    token_ids = chat.training_ids(vectors.TWO).token_ids
    assert token_ids == expected[: len(token_ids)]
    assert (
        not set(expected[len(token_ids) :])
        - {chat.tokenizer.eos_token_id}
        - set(chat.tokenizer.encode("\n", add_special_tokens=False))
    )


def test_bos_is_written_once():
    tokenizer = of_family("llama3")
    bos = tokenizer.convert_tokens_to_ids("<|begin_of_text|>")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", bos)]
    )
    assert tokenizer.encode("a")[0] == bos  # the tokenizer would add another
    chat = ChatFormat(tokenizer)
    assert chat.prompt_ids(vectors.TWO[:3]).count(bos) == 1
    assert chat.training_ids(vectors.TWO).token_ids.count(bos) == 1
    assert bos not in chat.followup_ids(vectors.SINGLE, [says("user", "more")], stopped=True)


THOUGHT = "<think>\nTwo pairs.\n</think>\n\n4"


def test_qwen3_thinking_is_produced_by_the_turn_and_gone_from_later_prompts():
    chat = CHATS["qwen3"]
    first = [says("user", "2+2?"), says("assistant", THOUGHT)]
    assert marked(chat, chat.training_ids(first)) == (
        "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n⟦<think>\nTwo pairs.\n</think>\n\n4<|im_end|>⟧"
    )
    conversation = [*first, says("user", "And 3 more?"), says("assistant", "<think>\n4+3\n</think>\n\n7")]
    last = (
        "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n"
        "<|im_start|>user\nAnd 3 more?<|im_end|>\n<|im_start|>assistant\n⟦<think>\n4+3\n</think>\n\n7<|im_end|>⟧"
    )
    with pytest.raises(TemplateError, match="drops the thinking of assistant turn 1"):
        chat.training_ids(conversation)
    examples = chat.training_examples(conversation)
    assert [marked(chat, example) for example in examples] == [marked(chat, chat.training_ids(first)), last]
    prompt = last.split("⟦")[0]
    assert text_of(chat, chat.prompt_ids(conversation[:3])) == prompt


def test_qwen3_keeps_the_thinking_between_the_calls_of_tools():
    chat = CHATS["qwen3"]
    messages = [
        *(says("user", "2+2?"), says("assistant", "<think>\nask\n</think>\n\ncall"), says("tool", "4")),
        says("assistant", "<think>\nso\n</think>\n\n4"),
    ]
    assert marked(chat, chat.training_ids(messages)) == (
        "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n⟦<think>\nask\n</think>\n\ncall<|im_end|>⟧\n"
        "<|im_start|>user\n<tool_response>\n4\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n⟦<think>\nso\n</think>\n\n4<|im_end|>⟧"
    )
    followup = chat.followup_ids(messages[:2], messages[2:3], stopped=True)
    assert text_of(chat, followup) == (
        "\n<|im_start|>user\n<tool_response>\n4\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_options_reach_the_template():
    chat = ChatFormat(of_family("qwen3"), options={"enable_thinking": False})
    assert marked(chat, chat.training_ids(vectors.SINGLE)) == (
        "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n⟦4<|im_end|>⟧"
    )


def test_one_example_is_enough_where_the_template_keeps_turns():
    assert CHATS["llama3"].training_examples(vectors.TWO) == [CHATS["llama3"].training_ids(vectors.TWO)]


def test_what_follows_the_last_assistant_turn_is_left_out():
    chat = CHATS["phi3"]
    assert chat.training_ids([*vectors.SINGLE, says("user", "thanks")]) == chat.training_ids(vectors.SINGLE)


def test_decode_drops_stop_and_special_tokens_but_keeps_tags():
    tokenizer = of_family("qwen3")
    tokenizer.add_special_tokens(
        {"additional_special_tokens": [AddedToken("<answer>", special=True, normalized=False)]}
    )
    chat = ChatFormat(tokenizer)
    ids = tokenizer.encode("<|im_start|><think>\n2\n</think> <answer>4 .<|im_end|>", add_special_tokens=False)
    assert chat.decode(ids) == "<think>\n2\n</think> <answer>4 ."
    assert CHATS["mistral"].decode(CHATS["mistral"].tokenizer.encode(" 4</s>", add_special_tokens=False)) == " 4"


CHATML = "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ CONTENT ~ '<|im_end|>\n' }}{% endfor %}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


def chat_of(template: str) -> ChatFormat:
    return ChatFormat(of_family("qwen3", template=template))


def test_tokenizer_without_a_chat_template():
    tokenizer = of_family("qwen3")
    tokenizer.chat_template = None
    with pytest.raises(TemplateError, match="this tokenizer has no chat template"):
        ChatFormat(tokenizer)


def test_template_whose_mask_would_be_empty():
    users = "{% for m in messages if m.role == 'user' %}{{ m.content }}<|im_end|>{% endfor %}"
    with pytest.raises(TemplateError, match=r"content of an assistant turn 0 times .* mask would be empty"):
        chat_of(users + PROMPT)


def test_template_without_a_stop_token():
    plain = "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\n' }}{% endfor %}{{ 'assistant: ' }}"
    with pytest.raises(TemplateError, match="begins with no special token"):
        chat_of(plain)


def test_template_that_drops_the_thinking_of_the_turn_itself():
    chat = chat_of(CHATML.replace("CONTENT", "m.content.split('</think>')[-1]") + PROMPT)
    assert marked(chat, chat.training_ids(vectors.SINGLE)).endswith("⟦4<|im_end|>⟧")
    with pytest.raises(TemplateError, match="drops part of assistant turn 1"):
        chat.training_ids([says("user", "2+2?"), says("assistant", THOUGHT)])


def test_template_whose_prompt_is_not_part_of_the_rendering():
    opens = PROMPT.replace("assistant\n", "assistant\n<think>\n")
    chat = chat_of(CHATML.replace("CONTENT", "m.content") + opens)
    with pytest.raises(TemplateError, match="differently once the turn is there"):
        chat.training_ids([says("user", "2+2?"), says("assistant", "It is " + "4" * 40)])
    # In a rollout the sampled turn stays as it was, so going on is possible.
    followup = chat.followup_ids(vectors.SINGLE, [says("user", "And?")], stopped=True)
    assert text_of(chat, followup) == ("\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n<think>\n")


def test_a_follow_up_that_would_repeat_the_system_message_is_an_error():
    with pytest.raises(TemplateError, match="moves the system message"):
        CHATS["mistral-v3"].followup_ids(vectors.SYSTEM[:3], [says("user", "And?")], stopped=True)


@pytest.mark.parametrize(
    "history, new", [((), [says("user", "a")]), (vectors.SINGLE[:1], [says("user", "a")]), (vectors.SINGLE, [])]
)
def test_a_follow_up_needs_a_turn_and_a_message(history, new):
    with pytest.raises(TemplateError, match="ends with the assistant's turn"):
        CHATS["smollm2"].followup_ids(history, new, stopped=True)


def test_a_stop_token_inside_a_turn_is_an_error():
    with pytest.raises(TemplateError, match=r"turn 1 contains the stop token '<\|im_end\|>'"):
        CHATS["smollm2"].training_ids([says("user", "a"), says("assistant", "b<|im_end|>c")])


def test_nothing_to_train_on():
    with pytest.raises(TemplateError, match=r"no assistant message.*roles: user"):
        CHATS["smollm2"].training_ids([says("user", "a")])


def test_a_refusal_names_the_roles_and_the_reason():
    with pytest.raises(TemplateError, match=r"system, user: System role not supported; .*`system`"):
        CHATS["gemma2"].prompt_ids(vectors.SYSTEM[:2])
