"""Work is given out once, and what comes back is neither lost, doubled nor overwritten."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select

from posttrain.annotation.store import projects, work
from posttrain.annotation.store.people import Refused
from posttrain.annotation.store.project_statistics import statistics_of
from posttrain.annotation.store.tables import Assignment, Event, Item, Judgement, Member, User
from posttrain.annotation.task_kinds import NoAnswer
from tests.annotation.worlds import add_project, add_user, item

ORDER = {"ranking": [[0], [1], [2]], "failed": []}


def give(store, user, project="helpful"):
    with store.write() as connection:
        return work.next_for(connection, projects.find(connection, project), user)


def say(store, assignment, answer=ORDER, *, sending=None, version=0):
    with store.write() as connection:
        mine = connection.get_one(Assignment, assignment.id)
        sending = sending or f"{assignment.id} {version}"
        return work.answer(connection, mine, answer, sending=sending, version=version, seconds=2.5)


def test_the_order_on_the_page_is_shuffled_and_kept(store):
    add_project(store, items=[item(f"q{n}", size=5) for n in range(40)])
    ann = add_user(store, "ann", "helpful")
    orders = []
    for _ in range(40):
        assignment = give(store, ann)
        assert give(store, ann).id == assignment.id  # the same until it is answered
        orders.append(tuple(assignment.shown))
        say(store, assignment, {"ranking": [assignment.shown]})
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders) and len(set(orders)) > 20
    firsts = [order[0] for order in orders]
    assert all(firsts.count(number) < 20 for number in range(5))


def test_everybody_gets_each_item_once_and_no_item_goes_to_more_than_it_should(store):
    add_project(store, items=12, annotators_per_item=2)
    people = [add_user(store, f"person {n}", "helpful") for n in range(5)]

    def labour(person):
        done = []
        while (assignment := give(store, person)) is not None:
            say(store, assignment)
            done.append(assignment.item_id)
        return done

    with ThreadPoolExecutor(5) as pool:
        found = list(pool.map(labour, people))
    assert all(len(set(done)) == len(done) for done in found)
    everything = [number for done in found for number in done]
    assert sorted(everything) == sorted([*range(1, 13)] * 2)


def test_higher_priority_comes_first_and_then_what_others_have_begun(store):
    add_project(store, items=[item("a"), item("b", priority=2.0), item("c"), item("d")])
    ann, ben = (add_user(store, name, "helpful") for name in ("ann", "ben"))
    first = give(store, ann)
    assert first.item.name == "b"
    say(store, first)
    second = give(store, ann)
    say(store, give(store, ben))
    assert give(store, ben).item.name == second.item.name


def test_an_answer_sent_twice_is_kept_once(store):
    add_project(store)
    ann = add_user(store, "ann", "helpful")
    assignment = give(store, ann)
    one, two = (say(store, assignment, sending="the same") for _ in range(2))
    assert one.id == two.id
    with store.read() as connection:
        assert connection.scalar(select(func.count()).select_from(Judgement)) == 1
    other = give(store, ann)
    with pytest.raises(Refused, match="for another item"):
        say(store, other, sending="the same")


def test_a_correction_is_another_version_and_none_is_overwritten(store):
    add_project(store)
    assignment = give(store, add_user(store, "ann", "helpful"))
    say(store, assignment)
    say(store, assignment, {"ranking": [[2], [1]], "failed": [0]}, version=1)
    with pytest.raises(work.Changed, match="answered this elsewhere"):
        say(store, assignment, ORDER, sending="a page that was open all the time", version=1)
    with store.read() as connection:
        project = projects.find(connection, "helpful")
        (row,) = projects.rows(connection, project)
        assert (row["ranking"], row["failed"], row["version"]) == ([[2], [1]], [0], 2)
        assert [r["version"] for r in projects.rows(connection, project, history=True)] == [1, 2]


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"ranking": [[0], [1]]},
        {"ranking": [[0], [1], [2], [3]]},
        {"ranking": [[0], [1], [1], [2]]},
        {"ranking": [[0], [1]], "failed": [2, 2]},
        {"ranking": [[0, 1, 2.0]]},
        {"ranking": [[False, True, 2]]},
        {"ranking": [0, 1, 2]},
        {"ranking": "012"},
        {"ranking": [[0], [1], [2]], "failed": "no"},
        {"ranking": None},
    ],
)
def test_what_is_no_answer_is_not_kept(store, answer):
    add_project(store)
    assignment = give(store, add_user(store, "ann", "helpful"))
    with pytest.raises(NoAnswer):
        say(store, assignment, answer)
    with store.read() as connection:
        assert connection.get_one(Assignment, assignment.id).state == "open"


def test_what_is_skipped_goes_to_somebody_else(store):
    add_project(store, items=1, annotators_per_item=1)
    ann, ben = (add_user(store, name, "helpful") for name in ("ann", "ben"))
    assignment = give(store, ann)
    assert give(store, ben) is None
    with pytest.raises(Refused, match="say why"), store.write() as connection:
        work.skip(connection, connection.get_one(Assignment, assignment.id), "  ")
    for _ in range(2):  # twice is once
        with store.write() as connection:
            work.skip(connection, connection.get_one(Assignment, assignment.id), "too long")
    assert give(store, ann) is None
    again = give(store, ben)
    assert again.item_id == assignment.item_id
    say(store, assignment)  # who skipped may come back to it
    with store.read() as connection:
        assert connection.get_one(Item, assignment.item_id).given == 2
        assert connection.get_one(Assignment, assignment.id).state == "done"
    with pytest.raises(Refused, match="change the answer"), store.write() as connection:
        work.skip(connection, connection.get_one(Assignment, assignment.id), "too late")


def test_nobody_sees_an_assignment_of_another_or_of_a_project_that_is_not_theirs(store):
    add_project(store)
    ann, ben = (add_user(store, name, "helpful") for name in ("ann", "ben"))
    assignment = give(store, ann)
    with store.read() as connection:
        assert work.assigned(connection, assignment.id, ann).id == assignment.id
        for number, user in ((assignment.id, ben), (assignment.id + 1, ann), (-1, ann)):
            with pytest.raises(LookupError):
                work.assigned(connection, number, user)


def test_who_has_left_a_project_sees_nothing_of_it(store):
    add_project(store)
    ann = add_user(store, "ann", "helpful")
    assignment = give(store, ann)
    with store.write() as connection:
        connection.delete(connection.get(Member, (assignment.item.project_id, ann.id)))
    with store.read() as connection, pytest.raises(LookupError):
        work.assigned(connection, assignment.id, ann)


def test_an_item_that_came_twice_to_one_person_still_wants_another(store):
    add_project(store, items=20, annotators_per_item=2, repeat_share=0.25)
    ann = add_user(store, "ann", "helpful")
    while (assignment := give(store, ann)) is not None:
        say(store, assignment)
    with store.read() as connection:
        found = projects.progress(connection, projects.find(connection, "helpful"))
        assert (found.judged, found.whole, found.wanted) == (20, 0, 40)


def test_items_come_a_second_time_later_and_count_once(store):
    add_project(store, items=20, annotators_per_item=1, repeat_share=0.25)
    ann = add_user(store, "ann", "helpful")
    order = []
    while (assignment := give(store, ann)) is not None:
        order.append((assignment.item_id, assignment.repeat))
        say(store, assignment, ORDER if not assignment.repeat else {"ranking": [[2], [1], [0]]})
    again = [number for number, repeat in order if repeat]
    assert len(order) == 25 and len(set(again)) == len(again) == 5
    for number in again:
        assert order.index((number, True)) - order.index((number, False)) > work.APART
    with store.read() as connection:
        project = projects.find(connection, "helpful")
        assert projects.progress(connection, project).judged == 20
        assert len(projects.told(connection, project).rankings) == 20
        assert statistics_of(connection, project).work["ann"].repeats == (0, 5)
        assert len(list(projects.rows(connection, project, history=True))) == 25


def test_known_answers_come_to_everybody_among_the_others_and_teach_nothing(store, monkeypatch):
    checks = [item(f"known {n}", expected=ORDER, priority=1.0) for n in range(2)]
    add_project(store, items=[*checks, *(item(f"q{n}") for n in range(4))], annotators_per_item=1)
    ann, ben, cat = (add_user(store, name, "helpful") for name in ("ann", "ben", "cat"))

    def met(person, draw):
        monkeypatch.setattr(work.random, "random", lambda: draw)
        assignment = give(store, person)
        if assignment:
            say(store, assignment)
        return assignment and assignment.item.name.split()[0][0]

    # of two known and four others one in three, of two and three, of one and three, of one and two
    assert [met(ann, 2 / 6), met(ann, 2 / 5 - 1e-6), met(ann, 1 / 4), met(ann, 1 / 3 - 1e-6)] == list("qkqk")
    assert met(ann, 0) == "q"  # there is no other
    assert [met(ben, 2 / 6), met(ben, 2 / 6)] == ["q", None]  # the other three have been judged by enough
    assert [met(ben, 0), met(ben, 0)] == [None, None]
    assert met(cat, 0) is None  # nobody is asked what is known where there is nothing else to do
    with store.read() as connection:
        project = projects.find(connection, "helpful")
        done = statistics_of(connection, project).work
        assert done["ann"].checks == (2, 2) and done["ben"].checks == (0, 0) and "cat" not in done
        assert {one.item for one in projects.told(connection, project).rankings} == {"q0", "q1", "q2", "q3"}
        assert {name for name, *_ in projects.told(connection, project).answers} == {"q0", "q1", "q2", "q3"}
        assert [row["check"] for row in projects.rows(connection, project)].count(True) == 2
        counted = projects.progress(connection, project)
        assert counted == (4, 2, 4, 4, 4, 0, 3)  # items, known, wanted, judged, whole, skipped, people


@pytest.mark.parametrize(
    ("kind", "known", "same", "other"),
    [
        ("compare", {"better": 1, "strength": 3}, {"better": 1, "strength": 1}, {"better": 0, "strength": 3}),
        (
            "score",
            {"scores": {"0": {"clear": 6}, "1": {"clear": 2}}},
            {"scores": {"0": {"clear": 7}, "1": {"clear": 1}}},
            {"scores": {"0": {"clear": 6}, "1": {"clear": 4}}},
        ),
        ("thumbs", {"good": [0, 1], "bad": []}, {"good": [1, 0], "bad": []}, {"good": [0], "bad": [1]}),
    ],
)
def test_careful_people_answer_about_the_same(store, kind, known, same, other):
    items = [item("a", 2, expected=known), item("b", 2, expected=known)]
    add_project(store, items=items, kind=kind, attributes=["clear"] if kind == "score" else [])
    ann = add_user(store, "ann", "helpful")
    for answer in (same, other):
        say(store, give(store, ann), answer)
    with store.read() as connection:
        assert statistics_of(connection, projects.find(connection, "helpful")).work["ann"].checks == (1, 2)


def test_known_answers_show_who_pays_attention(store):
    checks = [item(f"q{n}", expected={"ranking": [[2], [0, 1]]}) for n in range(3)]
    add_project(store, items=checks)
    ann = add_user(store, "ann", "helpful")
    right = True
    while (assignment := give(store, ann)) is not None:
        good = right and assignment.item.expected
        right = right and not good
        say(store, assignment, {"ranking": [[2], [1, 0]] if good else [[0], [1], [2]]})
    with store.read() as connection:
        found = statistics_of(connection, projects.find(connection, "helpful")).work["ann"]
        assert found.checks == (1, 3) and found.done == 3 and found.seconds == 2.5


def test_an_export_says_how_each_judgement_came_about(store):
    add_project(store, items=1)
    ann = add_user(store, "ann", "helpful")
    assignment = give(store, ann)
    say(store, assignment)
    with store.read() as connection:
        (row,) = projects.rows(connection, projects.find(connection, "helpful"))
    assert row["annotator"] == "ann" and row["item"] == "q0" and row["shown"] == assignment.shown
    assert [one["model"] for one in row["completions"]] == [f"secret-model-{n}" for n in range(3)]
    assert row["prompt"] == [{"role": "user", "content": "question q0"}] and row["seconds"] == 2.5
    assert row["given"] <= row["time"] and row["version"] == 1 and not row["repeat"] and not row["check"]


def test_the_audit_has_what_was_given_said_and_skipped(store):
    add_project(store, items=2)
    ann = add_user(store, "ann", "helpful")
    say(store, give(store, ann))
    with store.write() as connection:
        work.skip(
            connection,
            work.next_for(connection, projects.find(connection, "helpful"), connection.get_one(User, ann.id)),
            "why",
        )
    with store.read() as connection:
        mine = select(Event.action).where(Event.user_id == ann.id).order_by(Event.id)
        assert list(connection.scalars(mine)) == ["accept", "join", "give", "judge", "give", "skip"]


def test_a_second_time_that_is_skipped_does_not_come_again(store):
    add_project(store, items=12, repeat_share=0.5)
    ann = add_user(store, "ann", "helpful")
    skipped = 0
    while (assignment := give(store, ann)) is not None:
        if not assignment.repeat:
            say(store, assignment)
            continue
        skipped += 1
        with store.write() as connection:
            work.skip(connection, connection.get_one(Assignment, assignment.id), "again?")
    assert skipped == 6


def test_another_answer_of_the_same_sending_is_not_taken_for_the_first(store):
    add_project(store)
    assignment = give(store, add_user(store, "ann", "helpful"))
    say(store, assignment, sending="the same")
    with pytest.raises(work.Changed, match="another answer was kept"):
        say(store, assignment, {"ranking": [[2], [1], [0]]}, sending="the same")


def test_what_somebody_left_goes_to_others_when_they_have_nothing_else(store, monkeypatch):
    add_project(store, items=1, annotators_per_item=1)
    ann, ben = (add_user(store, name, "helpful") for name in ("ann", "ben"))
    left = give(store, ann)
    assert give(store, ben) is None
    monkeypatch.setattr(work, "HELD", -work.HELD)
    assert give(store, ben).item_id == left.item_id
    say(store, left)  # who left it may still answer
    with store.read() as connection:
        project = projects.find(connection, "helpful")
        assert connection.get_one(Item, left.item_id).given == 2
        assert projects.progress(connection, project).judged == 1
