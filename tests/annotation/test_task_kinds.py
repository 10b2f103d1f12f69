"""What is an answer to each kind of question, what it says of an order, and that a plain form says the same."""

import pytest

from posttrain.annotation.app.session import READ
from posttrain.annotation.task_kinds import KINDS, LONGEST, NoAnswer, Question, instructions, steps_of

TWO = Question({0: "first", 1: "second"})
SCORED = Question({0: "first", 2: "second"}, ("helpful", "clear"))
STEPS = Question({0: "one\n\ntwo\n three \n"})
EMPTY = Question({})

# kind, question, what a page sends, what a plain form sends, what is kept, what it says of the order
GOOD = [
    (
        "rank",
        TWO,
        {"ranking": [[1], [0]]},
        {"place-0": "2", "place-1": "1"},
        {"ranking": [[1], [0]], "failed": []},
        (((1,), (0,)), ()),
    ),
    (
        "rank",
        TWO,
        {"ranking": [[], [1]], "failed": [0]},
        {"place-0": "F", "place-1": "2"},
        {"ranking": [[1]], "failed": [0]},
        (((1,),), (0,)),
    ),
    (
        "compare",
        TWO,
        {"better": 1, "strength": 3},
        {"choice": "1:3"},
        {"better": 1, "strength": 3, "of": [0, 1]},
        (((1,), (0,)), ()),
    ),
    (
        "compare",
        TWO,
        {"better": None, "strength": 0},
        {"choice": ":0"},
        {"better": None, "strength": 0, "of": [0, 1]},
        (((0, 1),), ()),
    ),
    (
        "thumbs",
        TWO,
        {"good": [1], "bad": [0]},
        {"thumb-0": "bad", "thumb-1": "good"},
        {"good": [1], "bad": [0]},
        (((1,), (0,)), ()),
    ),
    (
        "thumbs",
        TWO,
        {"good": [1, 0], "bad": []},
        {"thumb-0": "good", "thumb-1": "good"},
        {"good": [0, 1], "bad": []},
        (((0, 1),), ()),
    ),
    (
        "score",
        SCORED,
        {"scores": {"2": {"helpful": 7, "clear": 1}, "0": {"clear": 2, "helpful": 5}}},
        {"score-0-helpful": "5", "score-0-clear": "2", "score-2-helpful": "7", "score-2-clear": "1"},
        {"scores": {"0": {"helpful": 5, "clear": 2}, "2": {"helpful": 7, "clear": 1}}},
        (((2,), (0,)), ()),
    ),
    ("steps", STEPS, {"wrong": 2}, {"wrong": "2"}, {"wrong": 2}, None),
    ("steps", STEPS, {"wrong": None}, {"wrong": "none"}, {"wrong": None}, None),
    ("demonstrate", EMPTY, {"text": " Hello. "}, {"text": "Hello."}, {"text": "Hello."}, None),
]


@pytest.mark.parametrize(("kind", "question", "sent", "fields", "kept", "order"), GOOD)
def test_an_answer_is_kept_and_says_an_order(kind, question, sent, fields, kept, order):
    found = KINDS[kind].check(sent, question)
    assert found == kept and KINDS[kind].check(found, question) == kept
    assert KINDS[kind].check(READ[kind](fields, question), question) == kept
    ranking = KINDS[kind].ranking
    assert (ranking and ranking(found)) == order


@pytest.mark.parametrize(
    ("kind", "question", "sent"),
    [
        *(("rank", TWO, {"ranking": ranking}) for ranking in [[[True], [False]], [["0"], [1]], [[0]], [[0], [0, 1]]]),
        *(
            ("compare", TWO, {"better": better, "strength": strength})
            for better, strength in [
                (None, 1),
                (0, 0),
                (0, 4),
                (2, 1),
                (0, -1),
                (True, 1),
                (0, True),
                (None, False),
                (0, 1.5),
                ("0", 1),
                (None, None),
                (0, None),
            ]
        ),
        ("compare", TWO, {}),
        *(
            ("thumbs", TWO, {"good": good, "bad": bad})
            for good, bad in [
                ([0], []),
                ([0, 1], [1]),
                ([0, 0], [1]),
                ([2], [0, 1]),
                ("0", [1]),
                ([False], [True]),
                (None, [0, 1]),
                ([[]], [0]),
            ]
        ),
        *(
            ("score", SCORED, {"scores": scores})
            for scores in [
                None,
                {},
                {"0": {"helpful": 1, "clear": 1}},
                {"0": {"helpful": 1, "clear": 1}, "2": {"helpful": 1}},
                {"0": {"helpful": 1, "clear": 1}, "2": {"helpful": 1, "clear": 8}},
                {"0": {"helpful": 1, "clear": 1}, "2": {"helpful": 0, "clear": 1}},
                {"0": {"helpful": 1, "clear": 1}, "2": {"helpful": 1, "clear": True}},
                {"0": {"helpful": 1, "clear": 1}, "2": {"helpful": 1, "clear": 1, "more": 1}},
                {"0": {"helpful": 1, "clear": 1}, "1": {"helpful": 1, "clear": 1}},
                {"0": [1, 1], "2": [1, 1]},
            ]
        ),
        *(
            ("steps", STEPS, sent)
            for sent in [{}, {"wrong": 3}, {"wrong": -1}, {"wrong": "1"}, {"wrong": True}, {"wrong": 1.0}]
        ),
        *(
            ("demonstrate", EMPTY, sent)
            for sent in [
                {},
                {"text": " \n"},
                {"text": 3},
                {"text": "x" * (LONGEST + 1)},
                {"text": "a\0"},
                {"text": "\ud800"},
            ]
        ),
    ],
)
def test_what_is_no_answer_is_said_to_be_none(kind, question, sent):
    with pytest.raises(NoAnswer):
        KINDS[kind].check(sent, question)


@pytest.mark.parametrize(
    ("kind", "question", "fields"),
    [(k, q, {}) for k, q, *_ in GOOD]
    + [
        ("compare", TWO, {"choice": "1:"}),
        ("compare", TWO, {"choice": "é:²"}),
        ("thumbs", TWO, {"thumb-0": "good"}),
        ("score", SCORED, {"score-0-helpful": "9" * 40}),
        ("steps", STEPS, {"wrong": "last"}),
        ("rank", TWO, {"place-0": "1"}),
    ],
)
def test_a_form_that_is_not_filled_in_is_no_answer(kind, question, fields):
    with pytest.raises(NoAnswer):
        KINDS[kind].check(READ[kind](fields, question), question)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_page_and_a_text(kind):
    assert len(instructions(kind)) > 300 and "**" in instructions(kind)
    assert KINDS[kind].name == kind and kind in READ


def test_steps_are_lines():
    assert steps_of("a\n\n b\nc") == ["a", " b", "c"]
