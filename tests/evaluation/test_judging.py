"""Verdicts of judges that score alone and that compare, and styles that change no word of the answer."""

import math

import pytest

from posttrain.evaluation.judging import STYLES, Verdict, plain, reworded, sentences, totals, verdicts
from posttrain.rewards import JudgePrompt, Weighted, parse_rewards, reward_function
from posttrain.rewards.judges.consensus import Consensus
from posttrain.types import Message, Score, Task
from tests.rewards.judges.test_pointwise import Says, judge

TASK = Task((Message("user", "?"),), id="t")


def length(completion):
    return len(completion) / 10


def test_a_judge_that_scores_alone_is_asked_once_for_each_text():
    seen = []

    def judge(completion):
        seen.append(completion)
        return len(completion) / 10

    found = verdicts(parse_rewards(judge), [(TASK, "aaa", "a"), (TASK, "a", "aaa"), (TASK, "b", "a")])
    assert [one.margin for one in found] == pytest.approx([0.2, -0.2, 0.0]) and seen == ["aaa", "a", "b"]
    assert [one.win for one in found] == [1.0, 0.0, 0.5] and found[0].swapped is None


@reward_function(min_group=2)
def first(group, completions):
    """Prefers what is shown first, unless the other is much longer."""
    one, other = completions
    return [1.0, 0.0] if len(one) + 3 >= len(other) else [0.0, 1.0]


def test_a_judge_that_compares_is_asked_in_both_orders_and_disagreement_is_a_tie():
    asked = [(TASK, "a", "b"), (TASK, "a" * 9, "b"), (TASK, "a", "b"), (TASK, "b", "a" * 9)]
    found = verdicts(parse_rewards(first), asked)
    assert found == [
        Verdict(0.0, 1.0, 1.0),
        Verdict(1.0, 0.0, 0.5),
        Verdict(0.0, 1.0, 1.0),
        Verdict(-1.0, 0.0, 0.5),
    ]
    assert [one.win for one in found] == [0.5, 1.0, 0.5, 0.0]


def test_a_tie_in_both_orders_is_no_disagreement():
    def equal(group, completions):
        return [0.5, 0.5]

    found = verdicts(parse_rewards(reward_function(min_group=2)(equal)), [(TASK, "a", "b")])
    assert found == [Verdict(0.0, 0.0, 0.5)]


def test_a_listwise_judge_is_shown_each_two_answers_in_both_orders():
    model = Says(lambda asked, seed: "Scores: 9, 1")  # what is shown first
    listwise = judge(model, prompt=JudgePrompt("kind: listwise\n---\n{answers}\n{scale 0 to 10}"))
    asked = [(TASK, f"a{n}", f"b{n}") for n in range(9)]
    found = verdicts(Weighted(((listwise, 1.0),)), asked)
    assert {(one.margin, one.swapped, one.first is not None) for one in found} == {(0.0, 1.0, True)}


def test_a_judge_that_asks_in_both_orders_itself_is_asked_once_about_a_pair():
    def says(asked, seed):  # the longer wins, of two alike what stands first
        a, b = asked.split("|")
        return f"Winner: {'A' if len(a) >= len(b) else 'B'}"

    model = Says(says)
    paired = judge(model, prompt=JudgePrompt("kind: pairwise\n---\n{answer_a}|{answer_b}"))
    found = verdicts(Weighted(((paired, 1.0),)), [(TASK, "aaa", "b"), (TASK, "a", "b"), (TASK, "a", "bbb")])
    assert found == [Verdict(1.0, 0.0, 0.5), Verdict(0.0, 1.0, 1.0), Verdict(-1.0, 0.0, 0.5)] and len(model.asked) == 6
    two = Consensus((paired, judge("Winner: A", prompt=paired.prompt)))  # the second always says the first
    (both,) = verdicts(Weighted(((two, 1.0), (parse_rewards(length).parts[0][0], 0.0))), [(TASK, "aaa", "b")])
    assert both == Verdict(0.5, 0.5, 0.75)  # 1 of one judge, a tie of the other
    silent = verdicts(Weighted(((judge("Hm.", prompt=paired.prompt), 1.0),)), [(TASK, "a", "b")])
    assert math.isnan(silent[0].margin) and silent[0][1:] == (None, None)


def test_a_judge_that_says_nothing_has_no_margin():
    def silent(completion):
        return Score.not_applicable() if completion == "x" else 1.0

    assert [
        math.isnan(one.margin) for one in verdicts(parse_rewards(silent), [(TASK, "x", "a"), (TASK, "b", "a")])
    ] == [
        True,
        False,
    ]
    assert totals(parse_rewards(length), [(TASK, "ab")]) == [0.2]


def test_styles_change_only_the_style():
    text = "## Title\n\n- **Rivers** carry `water`.\n2. They end in the sea."
    assert plain(text) == "Title\n\nRivers carry water.\nThey end in the sea."
    assert sentences(text) == ["Title", "Rivers carry water.", "They end in the sea."]
    said = {name: style(text) for name, style in STYLES.items()}
    assert plain(said["markdown"]).split() == ["Answer", *plain(text).split()]
    assert said["long"].count(plain(text)) == 2 and plain(text) in said["tone"]


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("I do not like that colour.", "I don't like that color"),
        ("Can't say. It will not do", "Cannot say.  It won't do."),
        ("- **Apples** are red\n- pears", "* **Apples** are red\n* pears."),
        ("Don't you know? DO NOT ask", "Don't you know?  DO NOT ask."),  # no "do not you"
        ("`do not`, $is not$:\n```\n- colour\n```", "`do not`, $is not$:\n```\n- colour\n```"),
        ("x = 3\n- 5 = 2", "x = 3\n- 5 = 2"),
        ("colour: red; see colour.py, Colour 3", "colour: red; see colour.py, Colour 3"),
        ("42", "42"),
        ("", ""),
    ],
)
def test_other_words_say_the_same_and_back(text, other):
    assert reworded(text) == other and reworded(other) == text
