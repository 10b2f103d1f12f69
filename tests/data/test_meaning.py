"""What rows mean: names that change it are read or refused, and masks are those written by hand."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from posttrain.data import (
    ChatFormat,
    judgements_of,
    load_completions,
    load_demonstrations,
    load_judgements,
    load_preferences,
    load_ratings,
    load_tasks,
    load_texts,
    pair_of,
)
from posttrain.data.judgements import judged_row
from posttrain.data.meaning import MEANT
from posttrain.data.preferences import Unusable, ranked_of
from posttrain.errors import DataError, TemplateError
from posttrain.types import Message, Preference
from tests.data.families import of_family
from tests.data.test_chat import marked
from tests.data.test_public_layouts import FILES, spoken

WORD = "Quokka"
READERS: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "sft": (load_demonstrations, {"prompt": "a", "completion": "b"}, repr),
    "sft, messages": (
        load_demonstrations,
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
        repr,
    ),
    "preference": (load_preferences, {"prompt": "a", "chosen": "b", "rejected": "c"}, repr),
    "kto": (load_judgements, {"prompt": "a", "completion": "b", "label": True}, repr),
    "ratings": (
        load_ratings,
        {"prompt": "a", "completion": "b", "ratings": {"x": 1}},
        repr,
    ),
    "rl": (load_tasks, {"prompt": "a", "answer": "b"}, lambda one: repr(one.prompt)),
    "score": (load_completions, {"prompt": "a", "completion": "b"}, lambda one: repr(one.messages)),
    "texts": (load_texts, {"text": "a"}, str),
}
VALUES: dict[str, Any] = {"history": [[f"{WORD}?", "No."]], "tools": [{"name": WORD, "description": "d"}]}
LEARNED = ("weight", "weights", "train", "train_detail", "loss", "loss_mask", "loss_scale", "loss_weight")


def write(folder: Path, *rows: dict[str, Any]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", MEANT)
def test_a_name_that_changes_what_a_row_means_reaches_the_model_or_is_refused(tmp_path, reader, name):
    load, row, said = READERS[reader]
    if name in row or (name == "kto_tag" and reader == "kto"):
        return
    value = False if name in (*LEARNED, "label", "kto_tag") else VALUES.get(name, WORD)
    source = write(tmp_path, row, row | {name: value})
    try:
        found = load(source)
    except DataError as error:
        assert f"rows.jsonl line 2: the column '{name}' would change" in str(error)
    else:
        assert WORD in said(found[1])


@pytest.mark.parametrize("reader", READERS)
def test_a_refused_column_is_left_out_on_purpose_by_giving_it_another_name(tmp_path, reader):
    load, row, _ = READERS[reader]
    source = write(tmp_path, row | {"images": ["cat.jpg"]})
    with pytest.raises(DataError, match='give `columns="other=images"`'):
        load(source)
    assert list(load(source, columns={"other": "images"}).unread) == ["other"]


@pytest.mark.parametrize("value", [None, "", "  ", [], {}, [None], {"a": ""}])
@pytest.mark.parametrize("reader", READERS)
def test_a_column_that_is_empty_changes_nothing(tmp_path, reader, value):
    load, row, said = READERS[reader]
    empty = {name: value for name in MEANT if name not in row and name != "tools"}
    found = load(write(tmp_path, row | empty))
    assert said(found[0]) == said(load(write(tmp_path, row))[0]) and not found.unread


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(min_size=1, max_size=12), value=st.one_of(st.text(min_size=1), st.integers(), st.booleans()))
def test_any_other_column_is_listed_and_never_refused(tmp_path, name, value):
    known = {
        "prompt",
        "completion",
        "messages",
        "chosen",
        "rejected",
        "answer",
        "text",
        "strength",
        "margin",
        "tie",
        "id",
        "kind",
        "gold",
    }
    assume(name not in MEANT and name not in known and not any(name in row for _, row, _ in READERS.values()))
    assume(not isinstance(value, str) or not value.isspace())
    for load, row, said in READERS.values():
        found = load(write(tmp_path, row | {name: value}))
        assert said(found[0]) == said(load(write(tmp_path, row))[0]) and list(found.unread) == [name]


@pytest.mark.parametrize("name", sorted(set(MEANT) - {"weight", "train", "loss"}))
def test_a_key_of_a_message_that_changes_its_meaning_is_refused(tmp_path, name):
    value = False if name in ("label", "kto_tag") else WORD
    chat = [{"role": "user", "content": "a", name: value}, {"role": "assistant", "content": "b"}]
    with pytest.raises(DataError, match=f"message 1 has the key '{name}', which would change the conversation"):
        load_demonstrations(write(tmp_path, {"messages": chat}))


def test_other_keys_of_messages_are_listed(tmp_path):
    chat = [{"role": "user", "content": "a", "language": "en"}, {"role": "assistant", "content": "b", "id": 7}]
    assert list(load_demonstrations(write(tmp_path, {"messages": chat})).unread) == ["messages.id", "messages.language"]


@pytest.mark.parametrize("value", [0.5, 2, "no", math.nan])
@pytest.mark.parametrize("key", ["weight", "train", "loss"])
def test_a_message_is_learned_or_not_and_nothing_between(tmp_path, key, value):
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", key: value}]
    with pytest.raises(DataError, match=f"message 2 has the {key} "):
        load_demonstrations(write(tmp_path, {"messages": chat}))


def test_a_user_s_message_that_is_to_be_learned_is_refused(tmp_path):
    chat = [{"role": "user", "content": "a", "train": True}, {"role": "assistant", "content": "b"}]
    with pytest.raises(DataError, match="has the train True and the role 'user'; only the assistant's are learned"):
        load_demonstrations(write(tmp_path, {"messages": chat}))


def test_columns_that_a_reward_names_count_as_read(tmp_path):
    source = write(tmp_path, {"prompt": "a", "context": "b", "level": 3, "kind": "easy"})
    (task,) = found = load_tasks(source, named=["context"])
    assert task.metadata == {"context": "b", "level": 3, "kind": "easy"} and list(found.unread) == ["level"]
    with pytest.raises(DataError, match="the column 'context'"):
        load_tasks(source, named=["**"])  # a reward that takes any column names none
    assert not load_tasks(source, named=["**", "context"]).unread


def rendered(file: str) -> str:
    """What a file becomes with SmolLM2's template, what is learned between brackets."""
    chat = ChatFormat(of_family("smollm2"))
    return marked(chat, chat.training_ids(load_demonstrations(str(FILES / file))[0]))


BRIEF = "<|im_start|>system\nBe brief.<|im_end|>\n"
DEFAULT = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"


def chatml(system: str, *turns: str) -> str:
    """Turns as ChatML writes them, a line each, by turns the user's and the assistant's, between ⟦⟧ where learned."""
    found = system
    for i, turn in enumerate(turns):
        said = f"⟦{turn[1:-1]}<|im_end|>⟧" if turn.startswith("⟦") else f"{turn}<|im_end|>"
        found += f"<|im_start|>{'assistant' if i % 2 else 'user'}\n{said}\n"
    return found.removesuffix("\n")


FRUIT = chatml(DEFAULT, "A fruit?", "⟦Apple.⟧")
BY_HAND = {
    "openai_messages.jsonl": chatml(BRIEF, "Capital of France?", "Lyon.", "Sure?", "⟦Paris.⟧"),
    "trl_prompt_completion.jsonl": chatml(DEFAULT, "Capital of France?", "Lyon.", "Sure?", "⟦Paris.⟧"),
    "sharegpt_system.jsonl": chatml(BRIEF, "A fruit?", "⟦Apple.⟧"),
    "openorca.jsonl": chatml(BRIEF, "A fruit?", "⟦Apple.⟧"),
    "alpaca.jsonl": chatml(DEFAULT, "Add.\n\n1 and 1", "⟦2⟧"),
    "alpaca_history.jsonl": chatml(BRIEF, "1 + 1?", "2", "And 2 + 2?", "⟦4⟧"),
    "dolly.jsonl": chatml(DEFAULT, "Who wrote it?\n\nEmma is by Jane Austen.", "⟦Jane Austen.⟧"),
    "capybara.jsonl": chatml(DEFAULT, "A fruit?", "⟦Apple.⟧", "Another?", "⟦Pear.⟧"),
    "metamath.jsonl": chatml(DEFAULT, "1 + 1?", "⟦2⟧"),
    "gsm8k.jsonl": chatml(DEFAULT, "1 + 1?", "⟦One and one.\n#### 2⟧"),
    "cp1252.csv?encoding=cp1252": chatml(DEFAULT, "Un café ?", "⟦Très bon.⟧"),
    "wildchat.jsonl": FRUIT,
    "flan.jsonl": FRUIT,
    "oasst_tree.jsonl": FRUIT,
    "oasst_flat.jsonl": FRUIT,
    "python_repr.csv": FRUIT,
    "json_text.jsonl": FRUIT,
    "one_row.json": FRUIT,
}
PAIRS_BY_HAND = {
    "hh_prompt.jsonl": DEFAULT,
    "hh_transcripts.jsonl": DEFAULT,
    "orca_dpo.jsonl": BRIEF,
    "helpsteer3.jsonl": DEFAULT,
    "openai_preference.jsonl": DEFAULT,
    "label_studio_pairwise.json": DEFAULT,
}


@pytest.mark.parametrize("file", BY_HAND)
def test_text_and_mask_of_demonstrations_are_those_written_by_hand(file):
    assert rendered(file) == BY_HAND[file]


@pytest.mark.parametrize("file", PAIRS_BY_HAND)
def test_text_and_mask_of_pairs_are_those_written_by_hand(file):
    chat = ChatFormat(of_family("smollm2"))
    pair = pair_of(chat, load_preferences(str(FILES / file))[0])
    said = [
        "".join(chat.tokenizer.decode(part, skip_special_tokens=False) for part in (one.prefix, [], one.continuation))
        for one in pair
    ]
    before = PAIRS_BY_HAND[file] + "<|im_start|>user\nA fruit?<|im_end|>\n<|im_start|>assistant\n"
    assert said == [f"{before}Apple.<|im_end|>", f"{before}Stone.<|im_end|>"]
    assert all(all(one.learned) and chat.tokenizer.decode(one.prefix) == before for one in pair)


TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
TO_SPEAK = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TRIMS = "{% for m in messages %}" + TURN.replace("content", "content | trim") + TO_SPEAK
NO_SYSTEM = "{% for m in messages if m.role != 'system' %}" + TURN + TO_SPEAK
LAST_TURN = "{% for m in messages[-2:] %}" + TURN + TO_SPEAK
DATED = "{% set day = date_string if date_string is defined else strftime_now('%d') %}Today: {{ day }}\n" + TRIMS


def test_two_sides_of_the_same_tokens_are_no_pair():
    chat = ChatFormat(of_family("smollm2", template=TRIMS))
    same = Preference((Message("user", "A fruit?"),), "Apple.", "Apple. \n")
    other = Preference((Message("user", "A fruit?"),), "Apple.", "Stone.")
    with pytest.raises(Unusable, match="same tokens"):
        pair_of(chat, same)
    with pytest.raises(Unusable, match="same tokens"):
        ranked_of(chat, [same])
    assert ranked_of(chat, [same, other]).pairs == ((0, 2, 1.0),)
    with pytest.raises(Unusable, match="same tokens"):
        judged_row(chat, judgements_of(same))
    assert len(judged_row(chat, judgements_of(other))) == 2


@pytest.mark.parametrize("template, what", [(NO_SYSTEM, "system message in message 1"), (LAST_TURN, "message 1")])
def test_a_template_that_leaves_out_what_was_said_is_refused(template, what):
    chat = ChatFormat(of_family("smollm2", template=template))
    said = [
        Message("system", "Talk like a pirate."),
        Message("user", "One?"),
        Message("assistant", "Aye."),
        Message("user", "Two?"),
    ]
    with pytest.raises(TemplateError, match=what):
        chat.prompt_ids(said)
    with pytest.raises(TemplateError):
        chat.training_examples([*said, Message("assistant", "Aye, aye.")])


def test_a_template_may_leave_out_earlier_reasoning():
    chat = ChatFormat(of_family("qwen3"))
    said = [Message("user", "One?"), Message("assistant", "<think>\nHm.\n</think>\n\nYes."), Message("user", "Two?")]
    assert "Hm." not in chat.tokenizer.decode(chat.prompt_ids(said))


def test_a_template_that_writes_the_date_is_noticed_and_a_date_can_be_given():
    dated = of_family("smollm2", template=DATED)
    (note,) = ChatFormat(dated).notes
    assert "today's date" in note and not ChatFormat(of_family("smollm2")).notes
    fixed = ChatFormat(dated, options={"date_string": "26 Jul 2024"})
    assert not fixed.notes
    assert "Today: 26 Jul 2024" in fixed.tokenizer.decode(fixed.prompt_ids([Message("user", "Hi")]))


@pytest.mark.parametrize(
    "row",
    [
        {"instruction": "a", "input": "b", "context": "c", "response": "d"},
        {"prompt": "a", "query": "b", "response": "c"},
    ],
)
def test_what_a_public_layout_has_no_place_for_is_not_lost_in_silence(tmp_path, row):
    with pytest.raises(DataError):
        load_demonstrations(write(tmp_path, row, row))


def test_a_record_that_nobody_has_annotated_is_left_out_and_named(tmp_path):
    record = json.loads((FILES / "argilla_record.jsonl").read_text(encoding="utf-8"))
    found = load_preferences(write(tmp_path, record | {"responses": {}}, record))
    assert len(found) == 1 and found.left_out == ("rows.jsonl line 1: it has no annotations",)


def test_a_label_of_0_beside_one_of_minus_1_is_neither_good_nor_bad(tmp_path):
    rows = [{"prompt": "a", "completion": "b", "label": label} for label in (1, -1, 0)]
    with pytest.raises(DataError, match="line 3: field 'label' is 0 where other rows have -1"):
        load_judgements(write(tmp_path, *rows))
    assert [one.good for row in load_judgements(write(tmp_path, *rows[::2])) for one in row] == [True, False]


CHAT = [{"role": "user", "content": "Q?"}, {"role": "assistant", "content": "A."}]


@pytest.mark.parametrize("label", [{"label": False}, {"kto_tag": False}, {"label": "bad"}, {"label": -1}])
@pytest.mark.parametrize(
    "row", [{"messages": CHAT}, {"prompt": "Q?", "messages": CHAT}, {"prompt": "x", "instruction": "I", "output": "O"}]
)
def test_what_is_labelled_bad_is_no_demonstration_whatever_stands_beside_it(tmp_path, row, label):
    with pytest.raises(DataError, match=f"the column '{next(iter(label))}' would change"):
        load_demonstrations(write(tmp_path, row | label))


def record(*responses: Any, **fields: str) -> dict[str, Any]:
    return {"fields": {"prompt": "q", "a": "A", "b": "B", **fields}, "responses": {"preference": list(responses)}}


def test_annotations_that_were_thrown_away_are_not_learned(tmp_path):
    kept, thrown = {"value": "a", "status": "submitted"}, {"value": "b", "status": "discarded"}
    found = load_preferences(write(tmp_path, record(kept, thrown), record(thrown)))
    assert [(p.chosen, p.rejected) for p in found] == [("A", "B")] and len(found.left_out) == 1
    task = json.loads((FILES / "label_studio_pairwise.json").read_text(encoding="utf-8"))[0]
    task["annotations"].append(task["annotations"][0] | {"was_cancelled": True})
    assert len(load_preferences(write(tmp_path, task))) == 1


def test_a_choice_of_one_says_nothing_of_the_others(tmp_path):
    found = load_preferences(write(tmp_path, record({"value": "b"}, c="C")))
    assert [(p.chosen, p.rejected, p.strength) for p in found] == [("B", "A", 1.0), ("B", "C", 1.0)]
    with pytest.raises(DataError, match="the field 'context' of this record"):
        load_preferences(write(tmp_path, record({"value": "b"}, context="C")))


@pytest.mark.parametrize("labels", [[1, -1, 1], ["true", "false", "true"], [True, 0, True]])
def test_steps_after_the_first_wrong_one_are_not_learned_however_it_is_written(tmp_path, labels):
    found = load_judgements(write(tmp_path, {"prompt": "q", "completions": ["s", "t", "u"], "labels": labels}))
    assert [(one.response, one.good) for row in found for one in row] == [("s", True), ("t", False)]


def test_what_stands_in_a_turn_of_input_and_output_is_read_or_refused(tmp_path):
    turns = [{"system": "S", "input": "q", "output": "a", "weight": 0}, {"input": "r", "output": "b", "id": 7}]
    found = load_demonstrations(write(tmp_path, {"conversation": turns}))
    assert spoken(found[0]) == "s: S | u: q | (a: a) | u: r | a: b" and list(found.unread) == ["messages.id"]
    with pytest.raises(DataError, match="output_with_loss"):
        load_demonstrations(write(tmp_path, {"conversation": [turns[1] | {"output_with_loss": False}]}))


def test_of_a_history_nothing_is_learned(tmp_path):
    (found,) = load_demonstrations(write(tmp_path, {"messages": CHAT, "history": [["q", "a"]]}))
    assert spoken(found) == "u: q | (a: a) | u: Q? | a: A."


def test_a_prompt_that_responses_go_on_from_stays(tmp_path):
    more = [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]
    rows = [
        {"prompt": "Q", **{name: [*more, {"role": "assistant", "content": name}] for name in ("chosen", "rejected")}}
    ]
    (found,) = load_preferences(write(tmp_path, *rows))
    assert spoken(found.prompt) == "u: Q | a: x | u: y" and found.chosen == "chosen"


@pytest.mark.parametrize("tie", [True, 1, "1", "true"])
def test_a_tie_is_a_tie_however_it_is_written(tmp_path, tie):
    pair = {"prompt": "q", "chosen": "a", "rejected": "b"}
    assert len(load_preferences(write(tmp_path, pair, pair | {"tie": tie})).left_out) == 1
    with pytest.raises(DataError, match="field 'tie' must be true or false"):
        load_preferences(write(tmp_path, pair | {"tie": "yes"}))


@pytest.mark.parametrize(
    "prompt",
    [
        '[{"role": "user", "content": "Q',
        "array([{'role': 'user', 'content': 'Q'}], dtype=object)",
        "<|prompter|>Q<|endoftext|><|assistant|>",
        "USER: Q ASSISTANT:",
    ],
)
def test_a_text_that_is_no_plain_prompt_is_refused(tmp_path, prompt):
    with pytest.raises(DataError, match=r"neither JSON nor Python's|rendered by a chat template already"):
        load_demonstrations(write(tmp_path, {"prompt": prompt, "completion": "a"}))


def test_answers_are_finite_and_verl_s_may_be_json_text(tmp_path):
    with pytest.raises(DataError, match="field 'answer' must be finite"):
        load_tasks(write(tmp_path, {"prompt": "q", "answer": math.inf}))
    (task,) = load_tasks(write(tmp_path, {"prompt": "q", "reward_model": '{"ground_truth": "2"}'}))
    assert task.answer == "2"


def test_rows_of_helpsteer_under_other_system_messages_are_not_compared(tmp_path):
    row = {"prompt": "q", "response": "a", "helpfulness": 1}
    rows = [row | {"system": "S"}, row | {"system": "T", "response": "b", "helpfulness": 4}]
    with pytest.raises(DataError, match="no two responses"):
        load_preferences(write(tmp_path, *rows))
    with pytest.raises(DataError, match="field 'prompt' has no value"):
        load_preferences(write(tmp_path, row | {"prompt": None}, row | {"prompt": None, "response": "b"}))


def test_a_tree_with_a_message_whose_parent_is_not_there_is_refused(tmp_path):
    row = {"message_id": "m", "parent_id": "gone", "text": "t", "role": "assistant", "message_tree_id": "x"}
    with pytest.raises(DataError, match="the message that this one answers, 'gone', is not in the data"):
        load_demonstrations(write(tmp_path, row))


def test_two_names_for_the_same_that_differ_are_refused_and_a_null_is_none(tmp_path):
    chat = [{"role": None, "from": "human", "content": None, "value": "Q?"}, CHAT[1]]
    assert spoken(load_demonstrations(write(tmp_path, {"messages": chat}))[0]) == "u: Q? | a: A."
    with pytest.raises(DataError, match="has a content and another value"):
        load_demonstrations(write(tmp_path, {"messages": [CHAT[0] | {"value": "other"}, CHAT[1]]}))


def test_a_mapping_does_not_overwrite_a_column_of_the_data(tmp_path):
    with pytest.raises(DataError, match="a column 'prompt' of their own, beside 'question'"):
        load_tasks(write(tmp_path, {"prompt": "p", "question": "q"}), columns={"prompt": "question"})


@pytest.mark.parametrize("value", [10**400, "1_0e", [1]])
def test_a_number_that_is_none_is_refused_in_one_line(tmp_path, value):
    with pytest.raises(DataError, match="line 1: field 'scores' must be a"):
        load_preferences(write(tmp_path, {"prompt": "q", "responses": ["a", "b"], "scores": [value, 1]}))


@pytest.mark.parametrize("broken", [{"responses": {"p": ["x"]}}, {"responses": {"p": "x"}}, {"fields": ["x"]}])
def test_a_record_of_another_shape_is_refused_in_one_line(tmp_path, broken):
    with pytest.raises(DataError, match="line 1: "):
        load_preferences(write(tmp_path, record({"value": "a"}) | broken))
