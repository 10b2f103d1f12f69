"""What a model learns from, by hand; and posttrain reads what is written."""

import json

import pytest

from posttrain.annotation.aggregation import METHODS
from posttrain.annotation.store.tables import Completion, Item
from posttrain.annotation.training_rows import LESSONS, Told
from posttrain.data import in_memory, load_demonstrations, load_judgements, load_preferences, load_ratings
from posttrain.data.ratings import load_steps
from posttrain.types import Message

PROMPT = [{"role": "user", "content": "My house is too hot."}]
TEXTS = {0: "There is nothing you can do.", 1: "Turn on the air conditioning.", 2: "It is not too hot."}


def told(kind, *answers, texts=TEXTS):
    """What annotators a, b, c, ... say of one item."""
    said = [("x", chr(ord("a") + place), answer) for place, answer in enumerate(answers)]
    completions = [Completion(number=number, text=text, model=f"model {number}") for number, text in texts.items()]
    return Told(kind, {"x": Item(name="x", prompt=PROMPT, completions=completions)}, said)


def rows(name, found, method="majority"):
    return list(LESSONS[name][found.kind](found, method))


def ranked(*groups, failed=()):
    return {"ranking": [list(group) for group in groups], "failed": list(failed)}


EXAMPLE = told("rank", ranked([1], [0], [2]), ranked([1], [0], [2]), ranked([2], [0], [1]))


@pytest.mark.parametrize("method", METHODS)
def test_the_example_makes_three_pairs(method):
    found = rows("pairs", EXAMPLE, method)
    assert [(row["chosen"], row["rejected"]) for row in found] == [
        (TEXTS[i], TEXTS[j]) for i, j in ((1, 0), (1, 2), (0, 2))
    ]
    assert all(row["strength"] == pytest.approx(1 / 3) and row["annotators"] == 3 for row in found)
    assert all(row["prompt"] == PROMPT and row["item"] == "x" and row["method"] == method for row in found)
    assert [(row["models"]["chosen"], row["models"]["rejected"]) for row in found] == [
        (f"model {i}", f"model {j}") for i, j in ((1, 0), (1, 2), (0, 2))
    ]


def test_ties_and_fails_make_the_pairs_that_they_should():
    found = rows("pairs", told("rank", ranked([0, 1], failed=[2]), ranked([0, 1], failed=[2])))
    assert {(row["chosen"], row["rejected"]) for row in found} == {(TEXTS[0], TEXTS[2]), (TEXTS[1], TEXTS[2])}
    assert all(row["strength"] == 1 for row in found)
    assert rows("pairs", told("rank", ranked([0, 1, 2]))) == []


def test_the_strength_of_comparisons_is_kept():
    two = {0: TEXTS[0], 1: TEXTS[1]}

    def compared(better, strength):
        return {"better": better, "strength": strength, "of": [0, 1]}

    (row,) = rows(
        "pairs", told("compare", compared(1, 3), compared(1, 1), compared(0, 2), compared(None, 0), texts=two)
    )
    assert (
        row["chosen"] == TEXTS[1] and row["strength"] == pytest.approx((3 + 1 - 2 + 0) / 12) and row["annotators"] == 4
    )
    assert rows("pairs", told("compare", compared(1, 3), compared(0, 1), texts=two)) == []
    (row,) = rows("pairs", told("compare", compared(0, 1), compared(0, 1), compared(1, 3), texts=two))
    assert row["chosen"] == TEXTS[0] and row["strength"] == 0


def test_thumbs_are_good_or_bad_by_most():
    found = told(
        "thumbs",
        {"good": [0, 1], "bad": [2]},
        {"good": [1], "bad": [0, 2]},
        {"good": [1, 2], "bad": [0]},
        {"good": [0, 1], "bad": [2]},
    )
    assert {row["completion"]: row["label"] for row in rows("judgements", found)} == {TEXTS[1]: True, TEXTS[2]: False}
    assert {row["completion"]: row["model"] for row in rows("judgements", found)} == {
        TEXTS[1]: "model 1",
        TEXTS[2]: "model 2",
    }
    pairs = rows("pairs", found)
    assert (pairs[0]["chosen"], pairs[0]["rejected"], pairs[0]["strength"]) == (TEXTS[1], TEXTS[0], 0.5)


def test_of_an_order_the_first_is_good_and_what_failed_is_bad():
    found = rows("judgements", told("rank", ranked([1], [0], failed=[2])))
    assert {row["model"] for row in found} == {"model 1", "model 2"} and found[0]["method"] == "majority"
    assert {row["completion"]: row["label"] for row in found} == {TEXTS[1]: True, TEXTS[2]: False}
    assert rows("judgements", told("rank", ranked([0, 1, 2]))) == []
    assert [row["label"] for row in rows("judgements", told("rank", ranked(failed=[0, 1, 2])))] == [False] * 3


def test_steps_end_with_the_first_wrong_one():
    texts = {0: "17 - 9 is 8.\n\n8 + 4 is 13.\nSo it is 13."}

    def found(*wrong):
        return rows("steps", told("steps", *({"wrong": one} for one in wrong), texts=texts))

    (read,) = load_steps(in_memory(found(1, 1, None))).items  # as reward-model reads it
    assert (read.steps, read.labels) == (("17 - 9 is 8.", "8 + 4 is 13."), (True, False))
    assert read.prompt == (Message("user", PROMPT[0]["content"]),)
    (row,) = found(1, 1, None)
    assert (row["steps"], row["labels"], row["model"]) == (["17 - 9 is 8.", "8 + 4 is 13."], [True, False], "model 0")
    assert (row["agree"], row["annotators"]) == (2, 3)
    (row,) = found(None)
    assert len(row["steps"]) == 3 and row["labels"] == [True] * 3
    (row,) = found(0)
    assert row["labels"] == [False]
    assert found(1, None) == []


def test_posttrain_reads_what_is_written(tmp_path):
    path = tmp_path / "lesson.jsonl"

    def write(name, found):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows(name, found)))
        return str(path)

    pairs = load_preferences(write("pairs", EXAMPLE)).items
    assert (pairs[0].chosen, pairs[0].rejected) == (TEXTS[1], TEXTS[0])
    assert pairs[0].prompt == (Message("user", "My house is too hot."),)
    ((one,), (other,)) = load_judgements(write("judgements", told("rank", ranked([1], [0], failed=[2])))).items
    assert (one.response, one.good, other.response, other.good) == (TEXTS[1], True, TEXTS[2], False)
    written = load_demonstrations(write("demonstrations", told("demonstrate", {"text": "Open a window."})))
    assert written[0][-1] == Message("assistant", "Open a window.")


def tied(found, method="majority"):
    assert all(row["tie"] is True and row["prompt"] == PROMPT for row in rows("ties", found, method))
    return {(row["chosen"], row["rejected"]) for row in rows("ties", found, method)}


def test_ties_are_what_people_find_equal():
    assert tied(told("rank", ranked([0, 1], [2]), ranked([0, 1], [2]))) == {(TEXTS[0], TEXTS[1])}
    assert tied(EXAMPLE) == set()
    assert tied(told("rank", ranked([0, 1, 2]))) == {(TEXTS[i], TEXTS[j]) for i, j in ((0, 1), (0, 2), (1, 2))}
    two = {0: TEXTS[0], 1: TEXTS[1]}
    assert len(tied(told("compare", {"better": None, "strength": 0, "of": [0, 1]}, texts=two))) == 1


def test_what_people_are_divided_on_is_no_tie():
    assert tied(told("rank", ranked([0], [1], [2]), ranked([1], [0], [2]))) == set()
    assert tied(told("rank", ranked([0], [1], [2]), ranked([1], [0], [2]), ranked([0, 1], [2]))) == set()


def test_a_circle_is_no_tie_and_what_failed_is_none():
    circle = told("rank", ranked([0], [1], [2]), ranked([1], [2], [0]), ranked([2], [0], [1]))
    assert rows("pairs", circle) == [] and tied(circle) == set()
    assert tied(told("rank", ranked([0], failed=[1, 2]))) == set()


def test_a_decided_tie_is_one():
    found = told("rank", ranked([0], [1], [2]), ranked([1], [0], [2]), ranked([1], [0], [2]))
    assert tied(found) == set()
    assert tied(found._replace(rulings={"x": ranked([0, 1], [2])})) == {(TEXTS[0], TEXTS[1])}
    assert tied(found._replace(rulings={"x": ranked([0], failed=[1, 2])})) == set()


def test_training_leaves_ties_out_and_evaluation_reads_them(tmp_path):
    found = told("rank", ranked([0, 1], [2]), ranked([0, 1], [2]))
    path = tmp_path / "all.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (*rows("pairs", found), *rows("ties", found))))
    learned, equal = load_preferences(str(path)), load_preferences(str(path), ties=True)
    assert len(learned.items) == 2 and "a tie" in learned.left_out[0] and len(learned.left_out) == 1
    assert [(one.chosen, one.rejected) for one in equal.items] == [(TEXTS[0], TEXTS[1])] and len(equal.left_out) == 2
    assert len(load_judgements(str(path)).items) == 2


def test_ratings_are_the_mean_of_what_people_gave_or_what_was_decided(tmp_path):
    two = {0: TEXTS[0], 1: TEXTS[1]}

    def scored(*scores):
        return {"scores": {str(number): {"helpful": a, "clear": b} for number, (a, b) in enumerate(scores)}}

    found = told("score", scored((1, 7), (5, 2)), scored((2, 7), (6, 4)), texts=two)
    written = rows("ratings", found)
    assert [(row["completion"], row["ratings"], row["annotators"]) for row in written] == [
        (TEXTS[0], {"helpful": 1.5, "clear": 7}, 2),
        (TEXTS[1], {"helpful": 5.5, "clear": 3}, 2),
    ]
    assert [row["model"] for row in written] == ["model 0", "model 1"]
    decided = found._replace(rulings={"x": scored((4, 4), (3, 3))})
    assert [row["ratings"]["helpful"] for row in rows("ratings", decided)] == [4, 3]
    path = tmp_path / "ratings.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in written), encoding="utf-8")
    items = load_ratings(str(path)).items
    assert [one.ratings for one in items] == [row["ratings"] for row in written]
    assert items[0].prompt == (Message("user", "My house is too hot."),)
