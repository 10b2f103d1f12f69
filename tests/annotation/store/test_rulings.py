"""Where annotators do not agree, what a manager decides there, and that it is what is learned from."""

import pytest
from sqlalchemy import select

from posttrain.annotation.store import projects, work
from posttrain.annotation.store.people import Refused
from posttrain.annotation.store.project_statistics import statistics_of
from posttrain.annotation.store.tables import Event, Item, User
from posttrain.annotation.task_kinds import KINDS, NoAnswer
from posttrain.annotation.training_rows import LESSONS
from tests.annotation.worlds import add_project, add_user, completions, item

STEPS = "one\ntwo\nthree"


def judged(store, answers, kind="rank", items=None, **options):
    """A project in which everybody has said this: by annotator, an answer for each item in order."""
    items = items or [item(f"q{n}") for n in range(len(next(iter(answers.values()))))]
    add_project(store, items=items, kind=kind, annotators_per_item=len(answers), **options)
    for name, mine in answers.items():
        user = add_user(store, name, "helpful")
        while True:
            with store.write() as connection:
                given = work.next_for(connection, projects.find(connection, "helpful"), user)
                if given is None:
                    break
                answer = mine[given.item_id - 1]
                work.answer(connection, given, answer, sending=f"{name} {given.id}", version=0, seconds=1)
    return add_user(store, "boss", role="manager")


def rule(store, boss, number, answer, *, version=0, sending=None):
    with store.write() as connection:
        found, user = connection.get_one(Item, number), connection.get_one(User, boss.id)
        sending = sending or f"ruling {number} {version}"
        return work.rule(connection, found, user, answer, sending=sending, version=version)


def seen(store, what):
    with store.read() as connection:
        return what(connection, projects.find(connection, "helpful"))


def disputed(store):
    rows = seen(
        store,
        lambda connection, project: [
            (connection.get_one(Item, d.item).name, d.agreement, d.decided)
            for d in statistics_of(connection, project).disputes
        ],
    )
    return [(name, pytest.approx(share), decided) for name, share, decided in rows]


def lessons(store, name, kind):
    return list(LESSONS[name][kind](seen(store, projects.told), "majority"))


UP, DOWN, ODD = ({"ranking": [[n] for n in order]} for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1)))


def test_what_they_agree_on_least_comes_first_and_what_is_decided_last(store):
    boss = judged(store, {"ann": [UP, UP, UP], "ben": [UP, DOWN, ODD]})
    assert disputed(store) == [("q1", 0.0, ""), ("q2", 0.75, "")]
    rule(store, boss, 2, UP)
    assert disputed(store) == [("q2", 0.75, ""), ("q1", 0.0, "boss")]


def test_a_decision_is_what_they_say_together(store):
    boss = judged(store, {"ann": [UP, UP], "ben": [DOWN, UP]})
    assert [row["item"] for row in lessons(store, "pairs", "rank")] == ["q1"] * 3
    rule(store, boss, 1, {"ranking": [[1], [0]], "failed": [2]})
    mine = [row for row in lessons(store, "pairs", "rank") if row["item"] == "q0"]
    said = [(row["chosen"], row["rejected"]) for row in mine]
    assert said == [(f"answer {i} to q0", f"answer {j} to q0") for i, j in ((1, 0), (1, 2), (0, 2))]
    assert all(row["strength"] == 1 and row["annotators"] == 2 for row in mine)
    labels = {row["completion"]: row["label"] for row in lessons(store, "judgements", "rank") if row["item"] == "q0"}
    assert labels == {"answer 1 to q0": True, "answer 2 to q0": False}


def test_annotators_are_measured_by_it_and_rows_tell_it(store):
    boss = judged(store, {"ann": [UP], "ben": [DOWN]})
    assert [one.agreement for one in seen(store, statistics_of).annotators] == [None, None]
    rule(store, boss, 1, UP)
    assert [one.agreement for one in seen(store, statistics_of).annotators] == [1.0, 0.0]
    rows = seen(store, lambda connection, project: list(projects.rows(connection, project)))
    assert [row["ruling"]["ranking"] for row in rows] == [[[0], [1], [2]]] * 2


def test_the_strength_of_a_decided_comparison_is_the_managers(store):
    sides = [{"better": better, "strength": 3} for better in (0, 1)]
    boss = judged(store, {"ann": sides[:1], "ben": sides[1:]}, "compare", [item("q0", size=2)])
    assert lessons(store, "pairs", "compare") == []
    rule(store, boss, 1, {"better": 1, "strength": 1})
    (row,) = lessons(store, "pairs", "compare")
    assert row["chosen"] == "answer 1 to q0" and row["strength"] == pytest.approx(1 / 3)


def test_thumbs_and_steps_are_decided_too(store):
    boss = judged(store, {"ann": [{"good": [0, 1, 2], "bad": []}], "ben": [{"good": [0], "bad": [1, 2]}]}, "thumbs")
    assert [row["label"] for row in lessons(store, "judgements", "thumbs")] == [True]
    rule(store, boss, 1, {"good": [0, 2], "bad": [1]})
    assert [row["label"] for row in lessons(store, "judgements", "thumbs")] == [True, False, True]


def test_steps_that_are_disputed(store):
    said = {
        "ann": [{"wrong": 1}, {"wrong": 2}],
        "ben": [{"wrong": None}, {"wrong": 2}],
        "cat": [{"wrong": 0}, {"wrong": 2}],
    }
    items = [item(f"q{n}", completions=completions(STEPS)) for n in range(2)]
    boss = judged(store, said, "steps", items)
    assert disputed(store) == [("q0", 1 / 3, "")]
    assert [row["item"] for row in lessons(store, "steps", "steps")] == ["q1"]
    rule(store, boss, 1, {"wrong": 2})
    first = next(row for row in lessons(store, "steps", "steps") if row["item"] == "q0")
    assert (first["steps"], first["labels"]) == (["one", "two", "three"], [True, True, False])
    assert (first["agree"], first["annotators"]) == (0, 3)
    together = seen(store, statistics_of)
    assert together.kendall_w is None and together.alpha is not None
    assert [one.annotator for one in together.annotators] == ["ann", "ben", "cat"]


def test_a_decision_is_corrected_by_another_and_sent_twice_is_kept_once(store):
    boss = judged(store, {"ann": [UP, UP], "ben": [DOWN, DOWN]})
    first = rule(store, boss, 1, UP)
    assert rule(store, boss, 1, UP, sending=first.sent).id == first.id
    with pytest.raises(work.Changed, match="another decision"):
        rule(store, boss, 1, DOWN, sending=first.sent)
    with pytest.raises(Refused, match="another item"):
        rule(store, boss, 2, UP, sending=first.sent)
    with pytest.raises(work.Changed, match="decided"):
        rule(store, boss, 1, DOWN, sending="an old page")
    rule(store, boss, 1, DOWN, version=1)
    assert seen(store, projects.rulings)["q0"]["ranking"] == [[2], [1], [0]]
    with store.read() as connection:
        events = connection.scalars(select(Event).where(Event.action == "rule")).all()
    assert [(event.subject, event.user_id, event.details["version"]) for event in events] == [
        ("item 1", boss.id, 1),
        ("item 1", boss.id, 2),
    ]


def test_what_cannot_be_decided(store):
    boss = judged(store, {"ann": [UP]})
    with pytest.raises(NoAnswer):
        rule(store, boss, 1, {"ranking": [[0]]})
    add_project(store, "new", items=[item("q")])
    with pytest.raises(Refused, match="nobody has judged"):
        rule(store, boss, 2, UP)
    add_project(store, "write", items=[item("q", size=0)], kind="demonstrate")
    with pytest.raises(Refused, match="of their own"):
        rule(store, boss, 3, {"text": "Hello."})


@pytest.mark.parametrize(
    ("kind", "answer", "words"),
    [
        ("rank", {"ranking": [[1], [0, 2]], "failed": [3]}, "B > A = C; failed: D"),
        ("rank", {"ranking": [], "failed": [0, 1]}, "failed: A, B"),
        ("rank", {"ranking": [[1], [0]], "failed": []}, "B > A"),
        ("compare", {"better": 3, "strength": 1, "of": [2, 3]}, "B is slightly better"),
        ("compare", {"better": None, "strength": 0, "of": [0, 1]}, "neither"),
        ("thumbs", {"good": [], "bad": [0, 1]}, "bad: A, B"),
        ("thumbs", {"good": [2], "bad": [0, 1]}, "good: C; bad: A, B"),
        (
            "score",
            {"scores": {"0": {"clear": 3, "kind": 5}, "1": {"clear": 1, "kind": 7}}},
            "A: clear 3, kind 5; B: clear 1, kind 7",
        ),
        ("steps", {"wrong": 2}, "step 3 is the first wrong one"),
        ("steps", {"wrong": None}, "all steps are right"),
    ],
)
def test_answers_in_words(kind, answer, words):
    assert KINDS[kind].words(answer) == words


def test_thumbs_and_scores_are_disputed_where_no_order_tells(store):
    good, bad, mixed = ({"good": g, "bad": b} for g, b in (([0, 1, 2], []), ([], [0, 1, 2]), ([0], [1, 2])))
    judged(store, {"ann": [good, good, good], "ben": [bad, good, mixed], "cat": [bad, good, good]}, "thumbs")
    assert disputed(store) == [("q0", 2 / 3, ""), ("q2", 7 / 9, "")]


def test_scores_are_disputed_by_how_far_they_are_apart(store):
    said = [
        [{"scores": {"0": {"kind": kind, "clear": clear}}} for kind, clear in mine]
        for mine in (((1, 4), (6, 6)), ((7, 4), (7, 6)))
    ]
    items = [item(f"q{n}", size=1) for n in range(2)]
    judged(store, dict(zip(("ann", "ben"), said, strict=True)), "score", items, attributes=["kind", "clear"])
    assert disputed(store) == [("q0", 1 / 2, ""), ("q1", 1 - 1 / 12, "")]


def with_others(store):
    return {one.annotator: one.with_others for one in seen(store, statistics_of).annotators}


def test_others_are_judged_by_the_decision_too(store):
    boss = judged(store, {"ann": [UP], "ben": [DOWN], "cat": [DOWN]})
    assert with_others(store)["ann"] == 0.0
    rule(store, boss, 1, UP)
    assert with_others(store) == {"ann": 1.0, "ben": 0.0, "cat": 0.0}


def test_a_decided_step_is_what_annotators_are_compared_with(store):
    items = [item("q0", completions=completions(STEPS))]
    boss = judged(store, {"ann": [{"wrong": 1}], "ben": [{"wrong": 2}], "cat": [{"wrong": 2}]}, "steps", items)
    assert with_others(store) == {"ann": 0.0, "ben": None, "cat": None}
    rule(store, boss, 1, {"wrong": 1})
    assert with_others(store) == {"ann": 1.0, "ben": 0.0, "cat": 0.0}
