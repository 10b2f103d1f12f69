"""Projects and items: what may be made, and how far it is."""

import pytest
from sqlalchemy import func, select

from posttrain.annotation.store import projects, work
from posttrain.annotation.store.people import Refused
from posttrain.annotation.store.tables import Item
from posttrain.annotation.task_kinds import NoAnswer, instructions
from tests.annotation.worlds import add_project, add_user, completions, item


def test_a_project_has_instructions_unless_given_its_own(store):
    assert add_project(store, "a").instructions == instructions("rank")
    assert add_project(store, "b", text=" Be kind. ").instructions == "Be kind."
    words = instructions("rank").lower()
    assert all(word in words for word in ("correct", "informative", "sparingly", "fail", "long is not better"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": " "}, "1 to 80 letters"),
        ({"name": "a" * 81}, "1 to 80 letters"),
        ({"name": "there"}, "already"),
        ({"kind": "paint"}, "there is no kind 'paint'; there are: rank, compare"),
        ({"annotators_per_item": 0}, "1 to 100 annotators; got 0"),
        ({"annotators_per_item": 101}, "1 to 100 annotators"),
        ({"attributes": ["kind"]}, "attributes are for the kind 'score'"),
        ({"kind": "score", "attributes": ["kind", "kind"]}, "each once"),
        ({"kind": "score", "attributes": ["<b>"]}, "words of up to 40"),
        ({"kind": "score", "attributes": ["a" * 41]}, "words of up to 40"),
        ({"repeat_share": 0.6}, "0 to 0.5; got 0.6"),
        ({"repeat_share": -0.1}, "0 to 0.5"),
    ],
)
def test_a_project_that_makes_no_sense_is_refused(store, options, message):
    add_project(store, "there")
    with pytest.raises(Refused, match=message), store.write() as connection:
        projects.create(connection, **({"name": "new"} | options))


def test_items_are_added_once_and_all_or_none(store):
    add_project(store, "a", items=2)
    with store.write() as connection:
        project = projects.find(connection, "a")
        assert projects.add_items(connection, project, [item("q1"), item("q2")]) == 1
    for wrong, error in (
        (item("x", size=1), Refused),
        (item("x", size=10), Refused),
        (item("x", expected={"ranking": [[0]]}), NoAnswer),
        (item("a\0", prompt=[], completions=completions("a", "b")), Refused),
        (item("x", completions=completions("a", "b", model="model\0")), Refused),
        (item("x", completions=completions("fine", "half \ud83d")), Refused),
        (item("x", prompt=[{"role": "user", "content": "nothing\0"}]), Refused),
    ):
        with pytest.raises(error), store.write() as connection:
            projects.add_items(connection, projects.find(connection, "a"), [item("new"), wrong])
    with store.read() as connection:
        assert connection.scalar(select(func.count()).select_from(Item)) == 3
        with pytest.raises(Refused, match="there is no project 'b'; there are: 'a'"):
            projects.find(connection, "b")


def test_progress_by_hand(store):
    add_project(store, "a", items=3, annotators_per_item=2)
    people = [add_user(store, name, "a") for name in ("ann", "ben")]
    for person, answers in zip(people, (3, 1), strict=True):
        for turn in range(answers):
            with store.write() as connection:
                assignment = work.next_for(connection, projects.find(connection, "a"), person)
                work.answer(
                    connection,
                    assignment,
                    {"ranking": [[0], [1], [2]]},
                    sending=f"{person.name} {turn}",
                    version=0,
                    seconds=1,
                )
    with store.write() as connection:
        project = projects.find(connection, "a")
        work.skip(connection, work.next_for(connection, project, people[1]), "no idea")
        assert projects.progress(connection, project) == (3, 0, 6, 4, 1, 1, 2)
