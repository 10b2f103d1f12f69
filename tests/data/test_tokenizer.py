from types import SimpleNamespace

import pytest

from posttrain.data.chat import ChatFormat
from posttrain.data.tokenizer import ending_at_stop, load_tokenizer, padding_beside, save_for_scores
from posttrain.errors import ModelError, TemplateError
from tests.data.families import of_family
from tests.data.vectors import TWO


def test_a_saved_tokenizer_comes_back_with_its_template(tmp_path):
    saved = of_family("qwen2.5")
    saved.save_pretrained(tmp_path)
    chat = ChatFormat(load_tokenizer(tmp_path))
    assert chat.training_ids(TWO) == ChatFormat(saved).training_ids(TWO)


def test_folder_without_a_tokenizer_says_what_to_copy(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"has no tokenizer \(none of tokenizer.json.*cp BASE/tokenizer\*"):
        load_tokenizer(tmp_path)


def test_damaged_tokenizer_is_one_line(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(ModelError, match="cannot load a tokenizer from") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_missing_folder_is_not_taken_for_a_hub_id(tmp_path):
    with pytest.raises(ModelError, match="there is no model folder"):
        load_tokenizer(str(tmp_path / "none"))


def test_a_missing_template_is_found_where_it_is_needed(tmp_path):
    saved = of_family("qwen2.5")
    saved.chat_template = None
    saved.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    with pytest.raises(TemplateError, match="no chat template"):
        ChatFormat(tokenizer)


OWN = "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '<|im_end|>' }}{% endfor %}"


def test_a_template_of_ones_own_takes_the_place_of_the_tokenizers_and_is_saved(tmp_path):
    of_family("qwen2.5").save_pretrained(tmp_path / "a")
    (tmp_path / "own.jinja").write_text(OWN, encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path / "a", str(tmp_path / "own.jinja"))
    example = ChatFormat(tokenizer).training_ids(TWO[:2])
    assert tokenizer.decode(example.token_ids) == "user: 2+2?<|im_end|>assistant: 4<|im_end|>"
    tokenizer.save_pretrained(tmp_path / "b")
    assert load_tokenizer(tmp_path / "b").chat_template == OWN


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (b"", "is empty; give a Jinja file that renders 'messages'"),
        (b"\xff\xfe", "it is not UTF-8 text; give a Jinja file"),
        (b"a\n{% for m in messages %}", "own.jinja' line 2 cannot be rendered: Unexpected end of template"),
        (b"{{ messages[0].content.no() }}", "cannot be rendered: 'str object' has no attribute 'no'"),
        (b"{{ ''.__class__.__mro__ }}{{ raise_exception('no') }}", "own.jinja' cannot be rendered: "),
        (None, "own.jinja': No such file or directory; give a Jinja file"),
    ],
)
def test_a_template_that_cannot_be_used_is_an_error_that_names_the_file(tmp_path, written, problem):
    of_family("qwen2.5").save_pretrained(tmp_path / "a")
    if written is not None:
        (tmp_path / "own.jinja").write_bytes(written)
    with pytest.raises(TemplateError) as caught:
        load_tokenizer(tmp_path / "a", str(tmp_path / "own.jinja"))
    assert problem in str(caught.value) and "`chat_template`" in str(caught.value) and "\n" not in str(caught.value)


def test_every_variant_of_a_template_ends_where_scores_are_read(tmp_path):
    tokenizer = of_family("smollm2")
    tokenizer.chat_template = {"default": OWN, "tool_use": OWN + "!\n"}
    save_for_scores(tokenizer, tmp_path, {tokenizer.eos_token_id})
    saved = load_tokenizer(tmp_path).chat_template
    assert saved == {"default": ending_at_stop(OWN), "tool_use": ending_at_stop(OWN + "!\n")}


@pytest.mark.parametrize(
    ("own", "ends", "found"),
    [
        (7, {5}, 7),
        (7, {7}, 3),  # as SmolLM2 has it, which pads with its stop token
        (7, {7, 3}, 5),
        (None, {3}, 5),
    ],
)
def test_what_pads_is_never_what_ends_a_sequence(own, ends, found):
    assert padding_beside(SimpleNamespace(pad_token_id=own, all_special_ids=[5, 3, 7]), ends) == found


def test_a_tokenizer_with_nothing_left_to_pad_with_is_refused():
    with pytest.raises(ModelError, match="none is left to pad with"):
        padding_beside(SimpleNamespace(pad_token_id=7, all_special_ids=[5, 7]), {5, 7})


def test_a_template_can_be_made_to_end_at_the_stop_token():
    tokenizer = of_family("smollm2")
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b "}]
    before = {
        generate: tokenizer.apply_chat_template(said[: 2 - generate], tokenize=False, add_generation_prompt=generate)
        for generate in (False, True)
    }
    assert before[False].endswith("<|im_end|>\n")
    tokenizer.chat_template = ending_at_stop(ending_at_stop(tokenizer.chat_template))
    assert tokenizer.apply_chat_template(said, tokenize=False) == before[False][:-1]
    assert tokenizer.apply_chat_template(said[:1], tokenize=False, add_generation_prompt=True) == before[True]
    assert ChatFormat(tokenizer).training_ids(TWO) == ChatFormat(of_family("smollm2")).training_ids(TWO)
