"""Labelled reasonings: what rows of each layout say, and where their steps end in tokens."""

import json
from pathlib import Path

import pytest

from posttrain.data import ChatFormat, in_memory
from posttrain.data.loaded import Unusable
from posttrain.data.packing import size_of
from posttrain.data.ratings import Reasoning, first_steps, load_steps, stepwise_of
from posttrain.errors import DataError
from posttrain.types import Message
from tests.data.families import of_family


def read(*rows: dict):
    return [(one.steps, one.labels) for one in load_steps(in_memory(list(rows))).items]


def test_steps_after_the_first_wrong_one_are_left_out():
    row = {"prompt": "2 + 2 + 1?", "steps": ["a", "b", "c", "d"], "labels": [True, None, False, True]}
    assert read(row) == [(("a", "b", "c"), (True, None, False))]
    assert read(row | {"labels": [1, 1, 1, 0]}) == [(("a", "b", "c", "d"), (True, True, True, False))]
    found = load_steps(in_memory([row]), system="S", prompt_template="Q: {prompt}").items[0]
    assert found.prompt == (Message("system", "S"), Message("user", "Q: 2 + 2 + 1?"))


def test_layouts_of_other_tools_say_the_same():
    trl = {"prompt": "q", "completions": ["a", "b", "c"], "labels": [True, False, True]}
    shepherd = {"input": "q Step 1: a ки\nStep 2: b ки", "label": "q Step 1: a +\nStep 2: b -", "task": "GSM8K"}
    assert read(trl) == [(("a", "b"), (True, False))]
    assert read(shepherd) == [(("Step 1: a", "Step 2: b"), (True, False))]


def prm800k(*steps: dict, problem: str = "q") -> dict:
    """A row in the layout of PRM800K; each step has its alternatives as (text, rating)."""
    made = [
        {
            "completions": [{"text": text, "rating": rating, "flagged": None} for text, rating in step["said"]],
            "human_completion": step.get("human"),
            "chosen_completion": step.get("chosen"),
        }
        for step in steps
    ]
    about = {"labeler": "l", "timestamp": "2023-01-22T04:34:27.052924", "generation": 9}
    question = {"problem": problem, "ground_truth_answer": "4", "pre_generated_steps": []}
    return about | {"question": question, "label": {"steps": made, "total_time": 1, "finish_reason": "solution"}}


def test_a_neutral_rating_counts_as_right_and_alternatives_follow_the_steps_before_them(tmp_path: Path):
    row = prm800k(
        {"said": [("a", 1), ("bad", -1)], "chosen": 0},
        {"said": [("b", 0)], "chosen": 0},
        {"said": [("no", None)], "human": {"text": "c", "rating": None}},
        {"said": [("d", -1), ("e", -1)]},
    )
    (tmp_path / "phase2_train.jsonl").write_text(json.dumps(row) + "\n")
    found = load_steps(str(tmp_path / "phase2_train.jsonl")).items
    assert [(one.steps, one.labels) for one in found] == [
        (("a", "b", "c", "e"), (True, True, None, False)),
        (("bad",), (False,)),
        (("a", "b", "c", "d"), (None, None, None, False)),
    ]
    with pytest.raises(DataError, match="must be -1, 0, 1 or null; got 2"):
        read(prm800k({"said": [("a", 2)], "chosen": 0}))


def test_a_label_may_be_how_likely_a_step_is_right():
    row = {"prompt": "q", "steps": ["a", "b", "c", "d"], "labels": [1.0, 0.25, 0.0, 0.5]}
    assert read(row) == [(("a", "b", "c"), (True, 0.25, False))]


def test_rows_of_processbench_have_the_first_wrong_step():
    row = {"id": "x", "problem": "q", "steps": ["a", "b", "c"], "label": 1, "final_answer_correct": True}
    assert read(row, row | {"label": -1}) == [(("a", "b"), (True, False)), (("a", "b", "c"), (True, True, True))]
    assert load_steps(in_memory([row])).items[0].prompt == (Message("user", "q"),)
    for wrong in (3, -2, "1", None):
        with pytest.raises(DataError, match="field 'label' must be -1 or the number of a step, below 3; got"):
            read(row | {"label": wrong})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "q", "steps": ["a"], "labels": [1.5]}, "a number between or null; got 1.5"),
        ({"prompt": "q", "steps": ["a"], "labels": [float("nan")]}, "a number between or null; got nan"),
        ({"prompt": "q", "steps": [], "labels": []}, "'steps' must be"),
        ({"prompt": "q", "steps": ["a"], "labels": [True, False]}, "1 'steps' need as many 'labels'; got 2"),
        ({"prompt": "q", "steps": ["a"], "labels": ["maybe"]}, r"must be true \(or 1\).*got 'maybe'"),
        ({"prompt": "q", "steps": ["a"]}, "field 'labels' is missing"),
        ({"prompt": "q", "steps": ["a", " "], "labels": [1, 1]}, "'steps' must be text that is not empty"),
        ({"prompt": "q", "steps": ["a", "b"], "labels": [0, -1]}, "has 0 where others have -1"),
        ({"prompt": "q", "steps": ["a"], "labels": [None]}, "none of its steps is labelled"),
    ],
)
def test_rows_that_are_no_labelled_reasoning_are_refused_in_a_line(row, message):
    with pytest.raises(DataError, match=message) as refused:
        read(row)
    assert "\n" not in str(refused.value)


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat(of_family("smollm2"))


def reasoning(*steps: str, labels: tuple[float | None, ...] = ()) -> Reasoning:
    return Reasoning((Message("user", "q"),), steps, labels or (True,) * len(steps), "here")


def ends(chat: ChatFormat, example) -> list[str]:
    """The text up to the token behind each learned one."""
    places = [place for place, learned in enumerate(example.learned) if learned]
    return [chat.decode(example.continuation[:place]) for place in places]


def test_each_labelled_step_is_read_at_the_end_of_its_last_line(chat):
    found = stepwise_of(chat, reasoning("one", "  two \nlines", "three.", labels=(True, None, False)))
    assert ends(chat, found.example) == ["one\n", "one\ntwo\nlines\nthree.\n"] and found.right == (True, False)
    assert found.example.prefix == tuple(chat.prompt_ids([Message("user", "q")]))


def test_a_step_has_the_same_tokens_whatever_follows(chat):
    short, long = (stepwise_of(chat, reasoning(*steps)).example for steps in (("1.", "2."), ("1.", "2.", "3.")))
    assert long.continuation[: len(short.continuation) - 1] == short.continuation[:-1]


def test_special_tokens_that_a_step_spells_are_text(chat):
    found = stepwise_of(chat, reasoning("so <|im_end|>", "right")).example
    assert not chat.stop_ids & set(found.continuation[:-1])


def test_a_step_without_tokens_is_named(chat, monkeypatch):
    monkeypatch.setattr(chat, "text_ids", lambda text: [] if text == "b\n" else [5])
    with pytest.raises(Unusable, match=r"here: step 2 \('b'\) cannot be located: it has no tokens"):
        stepwise_of(chat, reasoning("a", "b"))


def test_a_long_reasoning_keeps_its_first_steps(chat):
    whole = stepwise_of(chat, reasoning("one", "two", "three", labels=(True, True, False)))
    assert first_steps(whole, size_of(whole.example)) == whole
    cut = first_steps(whole, size_of(whole.example) - 1)
    assert cut is not None and cut.right == (True, True) and ends(chat, cut.example) == ["one\n", "one\ntwo\n"]
    assert first_steps(whole, len(whole.example.prefix) + 1) is None
