import json

import pytest

from posttrain.data.chat import ChatFormat
from posttrain.data.tokenizer import ending_at_stop, load_tokenizer, parse_template_args, with_defaults
from posttrain.errors import TemplateError, UserError
from posttrain.types import Message
from tests.data.families import of_family

ASKED = [Message("user", "Hi"), Message("assistant", "Yes"), Message("user", "No?"), Message("assistant", "So")]
SAID = [{"role": "user", "content": "Hi"}]
VALUES = {"flag": True, "text": 'it\'s {{ 7 }} %} \\ \n"☃"', "nothing": None, "many": [1, {"a": -2.5}]}


def saved(folder, name, args=""):
    of_family(name).save_pretrained(folder)
    tokenizer = load_tokenizer(folder, template_args=args)
    tokenizer.save_pretrained(folder)
    return ChatFormat(tokenizer)


def text(chat, ids):
    return chat.tokenizer.decode(ids)


def test_words_are_json_or_text():
    typed = "enable_thinking=false n=3 date_string='26 Jul 2024' 'x=[1, {\"a\": null}]' q='\"5\"' e= inf=NaN"
    found = {"enable_thinking": False, "n": 3, "date_string": "26 Jul 2024", "x": [1, {"a": None}], "q": "5", "e": ""}
    assert parse_template_args(typed) == found | {"inf": "NaN"}
    assert parse_template_args("") == {} and parse_template_args(VALUES) == VALUES


@pytest.mark.parametrize("typed", ["enable_thinking", "=1", "a-b=1", "a='", "a=1 a=2"])
def test_other_words_are_refused(typed):
    with pytest.raises(UserError, match="`template_args`"):
        parse_template_args(typed)


def test_an_argument_changes_prompts_and_examples_alike(tmp_path):
    chat, plain = saved(tmp_path / "off", "qwen3", "enable_thinking=false"), saved(tmp_path / "on", "qwen3")
    assert text(plain, plain.prompt_ids(ASKED[:1])).endswith("<|im_start|>assistant\n")
    assert text(chat, chat.prompt_ids(ASKED[:1])).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    given = chat.training_ids(ASKED, train_on="last")
    before = chat.prompt_ids(ASKED[:3])
    assert given.token_ids[: len(before)] == before and given.mask == [False] * len(before) + [True] * 3
    assert text(chat, given.token_ids[len(before) :]) == "So<|im_end|>"
    assert not any(plain.training_ids(ASKED[:2]).mask[: len(plain.prompt_ids(ASKED[:1]))])


def test_what_is_saved_is_used_again_and_a_later_argument_takes_its_place(tmp_path):
    off = saved(tmp_path, "qwen3", "enable_thinking=false").prompt_ids(ASKED[:1])
    again = load_tokenizer(tmp_path)
    assert ChatFormat(again).prompt_ids(ASKED[:1]) == off
    assert ChatFormat(again, options={"enable_thinking": True}).prompt_ids(ASKED[:1]) != off  # as other tools do
    on = load_tokenizer(tmp_path, template_args={"enable_thinking": True})
    assert ChatFormat(on).prompt_ids(ASKED[:1]) == ChatFormat(of_family("qwen3")).prompt_ids(ASKED[:1]) != off
    assert load_tokenizer(tmp_path, template_args="enable_thinking=false").chat_template == again.chat_template
    again.chat_template = ending_at_stop(again.chat_template)  # as a reward model has it
    assert ChatFormat(again).prompt_ids(ASKED[:1]) == off


def test_every_value_of_json_arrives_and_the_template_begins_as_it_did():
    template = "\n  {{ [flag, text, nothing, many] | tojson }}{% generation %}{% endgeneration %}"
    tokenizer = of_family("qwen3", template=with_defaults(template, VALUES))
    rendered = tokenizer.apply_chat_template(SAID, tokenize=False)
    assert rendered[:3] == "\n  " and json.loads(rendered) == list(VALUES.values())


def test_several_templates_by_name_have_the_argument_each():
    found = with_defaults({"default": "{{ a }}", "tool_use": "{{ b }}"}, {"a": 1})
    for template, rendered in zip(found.values(), ["1", ""], strict=True):
        assert of_family("qwen3", template=template).apply_chat_template(SAID, tokenize=False) == rendered


@pytest.mark.parametrize(
    ("family", "args", "problem"),
    [
        (
            "qwen3",
            "enable_thinkin=false",
            "unknown name of `template_args` 'enable_thinkin'; did you mean 'enable_thin",
        ),
        ("qwen3", "thought=x", "There are: enable_thinking$"),
        ("smollm2", "enable_thinking=false", "has no variables, so there is no 'enable_thinking'"),
        ("llama3", "messages=1", "'messages' of `template_args` is set by the conversation or the tokenizer"),
        ("llama3", "tools=1", "'tools' of `template_args` is set by"),
        ("smollm3", "xml_tools=[]", "'xml_tools' of `template_args` is set by"),
        ("qwen3", "add_generation_prompt=true", "'add_generation_prompt' of `template_args` is set by"),
        ("llama3", "bos_token=x", "'bos_token' of `template_args` is set by"),
    ],
)
def test_a_name_that_the_template_does_not_read_is_refused(tmp_path, family, args, problem):
    with pytest.raises(UserError, match=problem):
        saved(tmp_path, family, args)


def test_what_a_template_sets_itself_is_no_argument_unless_it_asks_whether_it_is_defined():
    template = (
        "{% if not day is defined %}{% set day = 'x' %}{% endif %}{% set n = n | default(1) %}{{ day }}{{ n }}"
        "{% for m in messages %}{% if m.role == 'system' %}{% set own = 1 %}{% endif %}{{ own }}{{ other }}{% endfor %}"
    )
    with pytest.raises(UserError, match=r"There are: day, n, other$"):
        with_defaults(template, {"own": 1})


def test_a_template_that_cannot_be_read():
    with pytest.raises(TemplateError, match="the chat template cannot be read: line 2"):
        with_defaults("a\n{% if %}", {"a": 1})
