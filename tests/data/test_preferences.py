import json
from pathlib import Path
from typing import Any

import pytest

from posttrain.data import ChatFormat, judged_of, judgements_of, load_judgements, load_preferences, pair_of
from posttrain.data.judgements import Judgement
from posttrain.data.packing import Example, Ranked
from posttrain.data.preferences import ranked_of, shortened, together
from posttrain.errors import DataError
from posttrain.types import Message, Preference
from tests.data.families import of_family


def load(tmp_path: Path, *rows: dict[str, Any], **options: Any) -> list[Preference]:
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return load_preferences(str(path), **options).items


def test_a_prompt_and_two_responses(tmp_path):
    (found,) = load(tmp_path, {"prompt": "1+1?", "chosen": "2", "rejected": "3"})
    assert (found.prompt, found.chosen, found.rejected) == ((Message("user", "1+1?"),), "2", "3")
    assert found.source.endswith("pairs.jsonl line 1")


def test_how_much_better_and_which_part_of_a_benchmark(tmp_path):
    row = {"prompt": "1+1?", "chosen": "2", "rejected": "3"}
    rows = [
        row,
        row | {"strength": 0.25, "subset": "math", "category": "other", "id": "x"},
        row | {"margin": 3, "category": "chat"},
    ]
    found = load(tmp_path, *rows, row | {"strength": None, "subset": 4})
    assert [(one.strength, one.category) for one in found] == [(1.0, ""), (0.25, "math"), (3.0, "chat"), (1.0, "")]
    for wrong in (-1, "much", True, float("inf")):
        with pytest.raises(DataError, match=r'must be how much better.*`columns="other=margin"`'):
            load(tmp_path, row | {"margin": wrong})


def test_pairs_of_one_prompt_that_follow_each_other_are_one_ranking(tmp_path):
    said = [("q", "a", "b"), ("q", "a", "c"), ("r", "a", "b"), ("q", "c", "b")]
    rows = [{"prompt": p, "chosen": c, "rejected": r, "strength": i} for i, (p, c, r) in enumerate(said)]
    rows.append(rows[-1] | {"steps": ["one"]})
    preferences = load(tmp_path, *rows)
    found = together(preferences)
    assert [len(one) for one in found] == [2, 1, 1, 1]
    chat = ChatFormat(of_family("smollm2"))
    ranked = ranked_of(chat, found[0])
    assert ranked.pairs == ((0, 1, 0.0), (0, 2, 1.0)) and ranked.bag == ()
    pairs = [pair_of(chat, one) for one in found[0]]
    assert ranked.examples == (pairs[0].chosen, pairs[0].rejected, pairs[1].rejected)
    across = ranked_of(chat, [found[0][0], found[2][0]])  # a over b, and c over b
    assert across.pairs == ((0, 1, 0.0), (2, 1, 3.0)) and across.examples[2] == pair_of(chat, found[2][0]).chosen
    again = ranked_of(chat, [found[0][1], found[0][0]])
    assert again.pairs == ((0, 1, 1.0), (0, 2, 0.0)) and again.examples[1] == pairs[1].rejected


def test_a_ranking_loses_its_long_responses_and_no_others():
    examples = tuple(Example((7,), (1,) * length, (True,) * length) for length in (2, 9, 3, 4))
    ranked = Ranked(examples, ((0, 1, 1.0), (2, 0, 2.0), (3, 2, 0.5), (1, 3, 1.0)), (1.0, 2.0))
    assert shortened(ranked, 5) == Ranked(
        (examples[0], examples[2], examples[3]), ((1, 0, 2.0), (2, 1, 0.5)), (1.0, 2.0)
    )
    assert shortened(ranked, 10) == ranked
    assert shortened(ranked, 3) is None and shortened(ranked, 1) is None


def test_whole_conversations_that_differ_in_their_last_message(tmp_path):
    said = [{"role": "user", "content": "hi"}]
    row = {
        "chosen": [*said, {"role": "assistant", "content": "hello"}],
        "rejected": [*said, {"role": "assistant", "content": "go"}],
    }
    (found,) = load(tmp_path, row, system="Be kind.")
    assert found.prompt == (Message("system", "Be kind."), Message("user", "hi"))
    assert (found.chosen, found.rejected) == ("hello", "go")


def test_a_prompt_beside_whole_conversations_is_not_said_twice(tmp_path):
    said = [{"role": "user", "content": "hi"}]
    row = {"prompt": "hi", "chosen": [*said, {"role": "assistant", "content": "a"}]}
    (found,) = load(tmp_path, row | {"rejected": [*said, {"role": "assistant", "content": "b"}]})
    assert (found.prompt, found.chosen) == ((Message("user", "hi"),), "a")


def test_transcripts_of_hh_rlhf(tmp_path):
    before = "\n\nHuman: Who?\n\nAssistant: Me.\n\nHuman: Human: is a word?\n\nAssistant:"
    (found,) = load(tmp_path, {"chosen": f"{before} Yes.", "rejected": f"{before} No."})
    assert [m.role for m in found.prompt] == ["user", "assistant", "user"]
    assert found.prompt[2].content == "Human: is a word?"
    assert (found.chosen, found.rejected) == ("Yes.", "No.")


def test_beside_a_prompt_a_response_is_text_whatever_it_quotes(tmp_path):
    quoted = "They wrote:\n\nHuman: hi"
    (found,) = load(tmp_path, {"prompt": "a", "chosen": quoted, "rejected": "c"})
    assert found.chosen == quoted


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"prompt": "a", "chosen": "b"}, "field 'rejected' is missing"),
        ({"chosen": "b", "rejected": "c"}, "no prompt before the two responses"),
        ({"chosen": "x\n\nHuman: a\n\nAssistant: b", "rejected": "c"}, "words before the first turn: 'x'"),
        ({"chosen": "\n\nHuman: a", "rejected": "\n\nHuman: b"}, "no prompt before"),
        (
            {"prompt": "a", "chosen": [{"role": "user", "content": "b"}], "rejected": "c"},
            "'chosen' must end with an assistant message; it ends with the role 'user'",
        ),
    ],
)
def test_a_row_that_is_no_preference_is_named_with_what_is_wrong(tmp_path, row, problem):
    with pytest.raises(DataError, match=f"pairs.jsonl line 2: .*{problem}"):
        load(tmp_path, {"prompt": "a", "chosen": "b", "rejected": "c"}, row)


def test_a_pair_shares_its_prompt_and_learns_each_response_from_its_first_token_to_its_stop():
    tokenizer = of_family("smollm2")
    chat = ChatFormat(tokenizer)
    asked = Message("user", "1+1?")
    pair = pair_of(chat, Preference((asked,), "2", "three"))
    assert pair.chosen.prefix == pair.rejected.prefix == tuple(chat.prompt_ids([asked]))
    for example, text in zip(pair, ("2", "three"), strict=True):
        assert all(example.learned)
        assert chat.decode(example.continuation) == text
        whole = chat.training_ids([asked, Message("assistant", text)]).token_ids
        assert [*example.prefix, *example.continuation] == whole


@pytest.mark.parametrize(
    ("rejected", "problem"),
    [
        ("\n\nHuman: x\n\nAssistant: b", "answer different prompts"),
        ("\n\nHuman: a\n\nAssistant: b", "are the same"),
        ("\n\nHuman: a\n\nAssistant:", "'rejected' has an empty turn"),
    ],
)
def test_what_nothing_can_be_learned_from_is_left_out_and_named(tmp_path, rejected, problem):
    good = {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: c"}
    bad = {"chosen": good["chosen"], "rejected": rejected}
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (good, bad, good)))
    found = load_preferences(str(path))
    assert len(found.items) == 2
    (left_out,) = found.left_out
    assert "pairs.jsonl line 2: " in left_out and left_out.endswith(problem)
    path.write_text(json.dumps(bad) + "\n")
    with pytest.raises(DataError, match=f"line 1: .*{problem}, and no other row can be used for training"):
        load_preferences(str(path))


def test_only_the_responses_are_learned_even_where_a_template_rewrites_what_was_said_before():
    chat = ChatFormat(of_family("qwen3"))  # drops the thinking of earlier turns
    prompt = (Message("user", "1+1?"), Message("assistant", "<think>\nhm\n</think>\n\n2"), Message("user", "2+2?"))
    pair = pair_of(chat, Preference(prompt, "4", "5"))
    assert pair.chosen.prefix == tuple(chat.prompt_ids(prompt)) and all(pair.chosen.learned)
    assert "4" in chat.decode(pair.chosen.continuation)


JUDGED = {"prompt": "1+1?", "completion": "2", "label": True}


def judged(tmp_path: Path, *rows: dict[str, Any], **options: Any) -> list[tuple[Judgement, ...]]:
    path = tmp_path / "thumbs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return load_judgements(str(path), **options).items


def test_single_responses_that_were_judged(tmp_path):
    bad = {"prompt": "1+1?", "completion": [{"role": "assistant", "content": "3"}], "label": 0}
    ((good,), (other,)) = judged(tmp_path, JUDGED, bad, system="Add.")
    assert good.prompt == (Message("system", "Add."), Message("user", "1+1?"))
    assert [(one.response, one.good) for one in (good, other)] == [("2", True), ("3", False)]
    assert other.source.endswith("thumbs.jsonl line 2")


def test_a_pair_is_a_good_response_and_a_bad_one(tmp_path):
    row = {"prompt": "1+1?", "chosen": "2", "rejected": "3", "steps": "So: "}
    ((good, bad),) = judged(tmp_path, row)
    assert [(one.response, one.good) for one in (good, bad)] == [("2", True), ("3", False)]
    assert all(one.opening == "So: " and one.partial for one in (good, bad))
    said = Preference((Message("user", "a"),), "b", "c", 1.0, "Ann", "x", "2026-01-31", "d", True)
    assert judgements_of(said)[1] == Judgement(said.prompt, "c", False, "x", "d", True)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (
            JUDGED | {"label": "perhaps"},
            "for a bad one; got 'perhaps'",
        ),
        (JUDGED | {"completion": [{"role": "user", "content": "b"}]}, "'completion' must be one response"),
        ({"prompt": "a", "completion": "b", "rating": 1}, "field 'label' is missing"),
        ({"prompt": "a", "completion": "b", "label": None}, "field 'label' has no value"),
        ({"prompt": "a", "completion": "b", "label": "2"}, "field 'label' must be true"),
        ({"completion": "a", "label": True}, "field 'prompt' is missing"),
    ],
)
def test_a_row_that_is_no_judgement_is_named_with_what_is_wrong(tmp_path, row, problem):
    with pytest.raises(DataError, match=f"thumbs.jsonl line 2: .*{problem}"):
        judged(tmp_path, JUDGED, row)


def test_judged_rows_are_no_pairs_and_the_error_says_which_algorithm_takes_them(tmp_path):
    with pytest.raises(DataError, match=r'pairs.jsonl line 1: .*`algorithm="kto"`'):
        load(tmp_path, JUDGED)


def test_a_judgement_is_learned_from_its_first_token_to_its_stop():
    chat = ChatFormat(of_family("smollm2"))
    found = judged_of(chat, Judgement((Message("user", "1+1?"),), "three", False))
    assert not found.good and all(found.example.learned)
    assert found.example.prefix == tuple(chat.prompt_ids([Message("user", "1+1?")]))
    assert chat.decode(found.example.continuation) == "three" and found.example.continuation[-1] in chat.stop_ids


@pytest.mark.parametrize("field", ["steps", "initial_reason_steps"])
@pytest.mark.parametrize("steps", ["1+1=2\n", ["1+1=2"]])
def test_steps_that_both_share_are_given_and_neither_they_nor_a_stop_are_learned(tmp_path, field, steps):
    row = {"prompt": "1+1+2?", "chosen": "2+2=4", "rejected": "2+2=5", field: steps}
    (found,) = load(tmp_path, row)
    assert found.opening == "1+1=2\n" and found.partial
    chat = ChatFormat(of_family("smollm2"))
    pair = pair_of(chat, found)
    prompt = tuple(chat.prompt_ids(found.prompt))
    assert pair.chosen.prefix == pair.rejected.prefix and pair.chosen.prefix[: len(prompt)] == prompt
    assert chat.decode(pair.chosen.prefix[len(prompt) :]) == "1+1=2\n"
    assert [chat.decode(example.continuation) for example in pair] == ["2+2=4", "2+2=5"]
    assert all(all(example.learned) for example in pair)
    assert not any(set(example.continuation) & chat.stop_ids for example in pair)  # more follows after a step
    good, bad = (judged_of(chat, one) for one in judgements_of(found))
    assert (good.example, bad.example) == pair


def test_the_first_step_has_nothing_before_it_and_is_a_step_all_the_same(tmp_path):
    (found,) = load(tmp_path, {"prompt": "1+1?", "chosen": "1", "rejected": "2", "steps": ""})
    chat = ChatFormat(of_family("smollm2"))
    pair = pair_of(chat, found)
    assert found.partial and pair.chosen.prefix == tuple(chat.prompt_ids(found.prompt))
    assert [chat.decode(example.continuation) for example in pair] == ["1", "2"]
    assert not any(set(example.continuation) & chat.stop_ids for example in pair)


def test_a_response_that_only_repeats_the_steps_keeps_a_token_of_its_own():
    chat = ChatFormat(of_family("smollm2"))
    pair = pair_of(chat, Preference((Message("user", "?"),), "b", "bc", opening="aa", partial=True))
    assert [chat.decode(example.continuation) for example in pair] == ["b", "bc"]


def test_of_a_response_that_ends_after_the_steps_the_stop_is_learned():
    chat = ChatFormat(of_family("smollm2"))
    judged = judged_of(chat, Judgement((Message("user", "?"),), "", True, opening="aa"))
    assert len(judged.example.continuation) == 1 and set(judged.example.continuation) <= chat.stop_ids
    assert chat.decode(judged.example.prefix).endswith("aa")


def test_steps_that_are_none_say_how_to_rename_them(tmp_path):
    with pytest.raises(DataError, match='`columns="other=steps"`'):
        load(tmp_path, {"prompt": "a", "chosen": "b", "rejected": "c", "steps": 7})


@pytest.mark.parametrize("empty", ["", "  ", [{"role": "assistant", "content": " "}]])
def test_a_response_that_says_nothing_is_left_out_and_named(tmp_path, empty):
    path = tmp_path / "pairs.jsonl"
    good = {"prompt": "a", "chosen": "b", "rejected": "c"}
    path.write_text(json.dumps(good) + "\n" + json.dumps(good | {"rejected": empty}) + "\n")
    found = load_preferences(str(path))
    assert len(found.items) == 1 and found.left_out[0].endswith("line 2: 'rejected' says nothing")
    path.write_text(json.dumps(JUDGED) + "\n" + json.dumps(JUDGED | {"completion": empty}) + "\n")
    assert load_judgements(str(path)).left_out[0].endswith("line 2: 'completion' says nothing")


def test_a_token_that_runs_over_the_end_of_the_steps_is_learned():
    chat = ChatFormat(of_family("smollm2"))  # in which two newlines are one token, and `20` is one
    pair = pair_of(chat, Preference((Message("user", "?"),), "0", "1", opening="=2"))
    prompt = tuple(chat.prompt_ids([Message("user", "?")]))
    assert chat.decode(pair.chosen.prefix[len(prompt) :]) == "="
    assert [chat.decode(example.continuation) for example in pair] == ["20", "21"]


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "q"}], ["Be brief.", "q"]),
        ([{"role": "user", "content": "q"}], ["q"]),
        ("q", ["q"]),
        ("something that the conversation does not say", None),
        ([{"role": "user", "content": "another"}], None),
    ],
)
def test_a_prompt_beside_whole_conversations_is_not_lost(tmp_path, prompt, said):
    def whole(text):
        return [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}]

    rows = [{"prompt": prompt, "chosen": whole("b"), "rejected": whole("c")}]
    rows.append({"prompt": "x", "chosen": "b", "rejected": "c"})
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load_preferences(str(tmp_path / "pairs.jsonl"))
    if said is None:
        assert "'chosen' does not continue 'prompt'" in found.left_out[0] and len(found.items) == 1
    else:
        assert [message.content for message in found.items[0].prompt] == said and not found.left_out


def test_a_judged_response_is_one_message(tmp_path):
    said = [{"role": "assistant", "content": text} for text in ("a", "b")]
    (tmp_path / "judged.jsonl").write_text(json.dumps({"prompt": "q", "completion": said, "label": True}) + "\n")
    with pytest.raises(DataError, match="'completion' must be one response"):
        load_judgements(str(tmp_path / "judged.jsonl"))
