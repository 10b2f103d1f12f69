import json
from pathlib import Path
from typing import Any

import pytest

from posttrain.data import ChatFormat, Example, Pair, fitting, load_preferences, pair_of
from posttrain.errors import DataError
from posttrain.types import Message, Preference
from tests.data.families import of_family


def load(tmp_path: Path, *rows: dict[str, Any], **options: Any) -> list[Preference]:
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return load_preferences(str(path), **options).preferences


def test_a_prompt_and_two_responses(tmp_path):
    (found,) = load(tmp_path, {"prompt": "1+1?", "chosen": "2", "rejected": "3"})
    assert (found.prompt, found.chosen, found.rejected) == ((Message("user", "1+1?"),), "2", "3")
    assert found.source.endswith("pairs.jsonl line 1")


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


def test_pairs_with_one_long_response_are_left_out():
    def example(length: int) -> Example:
        return Example((1, 2), (3,) * length, (True,) * length)

    short, one_long = Pair(example(3), example(2)), Pair(example(1), example(4))
    assert fitting([short, one_long], 5) == [short]
    assert fitting([short, one_long], 6) == [short, one_long]


@pytest.mark.parametrize(
    ("rejected", "problem"),
    [
        ("\n\nHuman: x\n\nAssistant: b", "answer different prompts"),
        ("\n\nHuman: a\n\nAssistant: b", "are the same"),
        ("\n\nHuman: a\n\nAssistant:", "'rejected' has a turn in which nothing is said"),
    ],
)
def test_what_nothing_can_be_learned_from_is_left_out_and_named(tmp_path, rejected, problem):
    good = {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: c"}
    bad = {"chosen": good["chosen"], "rejected": rejected}
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (good, bad, good)))
    found = load_preferences(str(path))
    assert len(found.preferences) == 2
    (left_out,) = found.left_out
    assert "pairs.jsonl line 2: " in left_out and left_out.endswith(problem)
    path.write_text(json.dumps(bad) + "\n")
    with pytest.raises(DataError, match=f"line 1: .*{problem}, and nothing can be learned from the other rows either"):
        load_preferences(str(path))


def test_only_the_responses_are_learned_even_where_a_template_rewrites_what_was_said_before():
    chat = ChatFormat(of_family("qwen3"))  # drops the thinking of earlier turns
    prompt = (Message("user", "1+1?"), Message("assistant", "<think>\nhm\n</think>\n\n2"), Message("user", "2+2?"))
    pair = pair_of(chat, Preference(prompt, "4", "5"))
    assert pair.chosen.prefix == tuple(chat.prompt_ids(prompt)) and all(pair.chosen.learned)
    assert "4" in chat.decode(pair.chosen.continuation)
