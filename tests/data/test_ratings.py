"""Rated responses: what each layout says, what is left out, and what is refused."""

import json

import pytest

from posttrain.data import ChatFormat, graded_of, load_ratings
from posttrain.data.preferences import pair_of
from posttrain.data.ratings import Rated
from posttrain.errors import DataError
from posttrain.types import Message, Preference
from tests.data.families import of_family


def write(tmp_path, *rows):
    path = tmp_path / "ratings.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


OWN = {"prompt": "1+1", "completion": "2", "ratings": {"correct": 7, "polite": None, "clear": 2.5}}


def test_our_own_layout_and_an_attribute_that_nobody_rated(tmp_path):
    found = load_ratings(write(tmp_path, OWN), system="Be brief.", prompt_template="Say {prompt}")
    prompt = (Message("system", "Be brief."), Message("user", "Say 1+1"))
    assert found.items == [Rated(prompt, "2", {"correct": 7.0, "clear": 2.5}, "ratings.jsonl line 1")]


def test_a_row_that_nobody_rated_is_left_out_and_named(tmp_path):
    changes = ({"ratings": {"correct": None}}, {"ratings": None}, {"completion": ""}, {"completion": " "})
    found = load_ratings(write(tmp_path, OWN, *(OWN | change for change in changes[:3])))
    why = "it has no rating, or no text"
    assert len(found.items) == 1 and found.left_out == tuple(f"ratings.jsonl line {n}: {why}" for n in (2, 3, 4))
    with pytest.raises(DataError, match="or no text, and no other row"):
        load_ratings(write(tmp_path, OWN | {"ratings": {}}))


def test_helpsteer_with_a_conversation_for_a_prompt(tmp_path):
    scores = {"helpfulness": 3, "correctness": 4, "coherence": 4, "complexity": 1, "verbosity": 0}
    row = {"prompt": "Hi<extra_id_1>Assistant\nHello\n<extra_id_1>User\nBye", "response": "Ciao", **scores}
    (found,) = load_ratings(write(tmp_path, row)).items
    assert [(m.role, m.content) for m in found.prompt] == [("user", "Hi"), ("assistant", "Hello"), ("user", "Bye")]
    assert found.response == "Ciao" and found.ratings == {name: float(score) for name, score in scores.items()}
    (part,) = load_ratings(write(tmp_path, row | {"helpfulness": None})).items
    assert part.ratings == {name: float(score) for name, score in scores.items() if name != "helpfulness"}


def test_ultrafeedback_has_a_rating_for_each_aspect_of_each_completion(tmp_path):
    annotations = {"honesty": {"Rating": "4", "Rationale": "a"}, "truthfulness": {"Rating": "N/A"}}
    completions = [
        {"response": "one", "annotations": annotations},
        {"response": "two", "annotations": {"honesty": {"Rating": 5}}},
        {"response": "", "annotations": annotations},
        {"response": "three", "annotations": {"honesty": {"Rating": "N/A"}}},
        {"response": "four", "annotations": {"honesty": None}},
        {"response": "five", "annotations": None},
    ]
    found = load_ratings(write(tmp_path, {"instruction": "Q", "completions": completions})).items
    assert [(one.response, one.ratings) for one in found] == [("one", {"honesty": 4.0}), ("two", {"honesty": 5.0})]
    assert {one.prompt for one in found} == {(Message("user", "Q"),)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ratings": [1]}, "line 1: field 'ratings' must be an object"),
        ({"ratings": {"clear": "good"}}, "line 1: the rating of 'clear' must be a number"),
        ({"ratings": {"clear": True}}, "the rating of 'clear' must be a number"),
        ({"ratings": {"clear": float("nan")}}, "the rating of 'clear' must be a number"),
        ({"ratings": {"very clear": 1}}, "an attribute's name is one word"),
        ({"ratings": {"a=b": 1}}, "an attribute's name is one word"),
        ({"ratings": {"": 1}}, "an attribute's name is one word"),
        ({"completion": 7}, "field 'completion' must be text"),
    ],
)
def test_what_is_no_rating_is_refused_by_its_place(changes, message, tmp_path):
    with pytest.raises(DataError, match=message):
        load_ratings(write(tmp_path, OWN | changes))


def test_a_row_without_ratings_is_no_rating(tmp_path):
    with pytest.raises(DataError, match="field 'ratings' is missing"):
        load_ratings(write(tmp_path, {"prompt": "1", "completion": "2"}))


def test_a_rated_response_has_the_tokens_of_a_compared_one():
    chat = ChatFormat(of_family("smollm2"))
    prompt = (Message("user", "1+1"),)
    graded = graded_of(chat, Rated(prompt, "2", {"clear": 1.0}))
    assert graded.example == pair_of(chat, Preference(prompt, "2", "3")).chosen
    assert graded.ratings == {"clear": 1.0}
