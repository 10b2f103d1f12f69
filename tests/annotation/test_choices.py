"""What may be chosen at a turn of a conversation, and with which reply it goes on."""

import pytest

from posttrain.annotation.app.session import READ
from posttrain.annotation.task_kinds import KINDS, NoAnswer, Question

FIRST = {"better": 1, "strength": 2, "of": [0, 1], "broken": {}}
TALK = Question({0: "a", 1: "b", 2: "c", 3: "d"}, before=[FIRST])
RULES = Question({0: "a", 1: "b"}, rules=("no harm", "no lies", "no spite"))


def chosen(sent, question=TALK):
    return KINDS["red-team" if question.rules else "converse"].check(sent, question)["choices"]


def test_a_choice_is_added_to_those_of_the_turns_before():
    assert chosen({"turn": 1, "better": 2, "strength": 3}) == [
        FIRST,
        {"better": 2, "strength": 3, "of": [2, 3], "broken": {}},
    ]
    assert chosen({"turn": 1, "better": None, "strength": 0})[1]["better"] is None


def test_broken_rules_are_kept_by_reply():
    sent = {"turn": 0, "better": 0, "strength": 1, "broken": {"1": [2, 0]}}
    (choice,) = chosen(sent, RULES)
    assert choice["broken"] == {"0": [], "1": [0, 2]}


def test_a_plain_form_says_the_same():
    fields = {"turn": "0", "choice": "0:1", "broken-1-2": "2", "broken-1-0": "0", "broken-7-1": "1"}
    assert chosen(READ["red-team"](fields, RULES), RULES)[0]["broken"] == {"0": [], "1": [0, 2]}
    assert chosen(READ["converse"]({"turn": "1", "choice": "3:2"}, TALK))[1]["better"] == 3


@pytest.mark.parametrize(
    ("question", "sent"),
    [
        (TALK, {}),
        (TALK, {"turn": 1}),
        (TALK, {"better": 2, "strength": 1}),
        (TALK, {"turn": 0, "better": 0, "strength": 1}),  # of a turn before
        (TALK, {"turn": 1, "better": 1, "strength": 1}),
        (TALK, {"turn": 1, "better": 2, "strength": 4}),
        (TALK, {"turn": 1, "better": 2, "strength": 1, "broken": {"2": [0]}}),  # there are no rules
        (Question({0: "a", 1: "b"}, before=[FIRST]), {"turn": 1, "better": None, "strength": 0}),  # no replies yet
        (Question({}), {"turn": 0, "better": None, "strength": 0}),
        *(
            (RULES, {"turn": 0, "better": 0, "strength": 1, "broken": broken})
            for broken in [None, [], {"2": []}, {"0": [3]}, {"0": [-1]}, {"0": [0, 0]}, {"0": 1}, {"0": [True]}]
        ),
    ],
)
def test_what_is_no_choice_is_said_to_be_none(question, sent):
    with pytest.raises(NoAnswer):
        chosen(sent, question)


@pytest.mark.parametrize(
    ("better", "helpful", "attack"), [(0, 0, 1), (1, 1, 0), (None, None, None)], ids=["first", "second", "neither"]
)
def test_help_goes_on_with_the_better_one_and_an_attack_with_the_worse_one(better, helpful, attack):
    choice = {"better": better, "strength": 1, "of": [0, 1]}
    assert KINDS["converse"].goes_on(choice) == helpful and KINDS["red-team"].goes_on(choice) == attack
