"""What annotators see and send, as their browsers do."""

import json

import pytest

from posttrain.annotation.store import projects
from tests.annotation.app.browsing import JSON, Browser, office
from tests.annotation.worlds import add_project, item


def answers(store):
    with store.read() as connection:
        return list(projects.rows(connection, projects.find(connection, "helpful"), history=True))


def begin(browser, number=1):
    """The next item's path, and the form on its page."""
    path = browser.get(f"/projects/{number}").url.path
    return path, browser.fields(path)


def test_a_day_of_work(store):
    add_project(store, items=2)
    _, (ann,) = office(store, "ann")
    assert "helpful" in ann.get("/").text
    for _ in range(2):
        path, form = begin(ann)
        page = ann.get(path).text
        assert "question q" in page and page.count("answer ") >= 3 and "how to judge" in page
        sent = ann.post(path, JSON, **form | {"answer": json.dumps({"ranking": [[2, 1], [0]]}), "seconds": "4.2"})
        assert (sent.status_code, sent.json()) == (200, {"version": 1, "next": "/projects/1"})
    assert "All done" in ann.get("/projects/1").text and "judged 2 items" in ann.get("/projects/1").text
    assert [row["ranking"] for row in answers(store)] == [[[1, 2], [0]]] * 2
    assert answers(store)[0]["seconds"] == 4.2
    assert ann.get("/projects/1/mine").text.count('href="/work/') == 2


def test_models_are_not_named_anywhere(store):
    add_project(store, items=1)
    _, (ann,) = office(store, "ann")
    path, form = begin(ann)
    assert "secret-model" not in ann.get(path).text
    ann.post(path, JSON, **form | {"answer": '{"ranking": [[0], [1], [2]]}'})
    assert not any("secret-model" in ann.get(page).text for page in (path, "/", "/projects/1/mine"))


def test_without_a_script_places_are_chosen_from_lists(store):
    add_project(store, items=2)
    _, (ann,) = office(store, "ann")
    path, form = begin(ann)
    sent = ann.post(path, **form, **{"place-0": "2", "place-1": "F", "place-2": "2"})
    assert sent.status_code == 200 and sent.url.path.startswith("/work/")  # on to the next
    (row,) = answers(store)
    assert (row["ranking"], row["failed"]) == ([[0, 2]], [1])
    path, form = begin(ann)
    half = ann.post(path, **form, **{"place-0": "1", "place-1": "F"})
    assert half.status_code == 422 and "rank every answer once" in half.text
    assert len(answers(store)) == 1


def test_an_answer_is_shown_again_and_can_be_changed(store):
    add_project(store, items=2)
    _, (ann,) = office(store, "ann")
    path, form = begin(ann)
    ann.post(path, JSON, **form | {"answer": '{"ranking": [[0], [1], [2]]}'})
    following, _ = begin(ann)
    assert f'href="{path}"' in ann.get(following).text  # change the last one
    page = ann.get(path).text
    assert "&#34;ranking&#34;" in page and ">Change</button>" in page and 'id="skip"' not in page
    again = ann.fields(path)
    assert again["version"] == "1" and again["sending"] != form["sending"]
    ann.post(path, JSON, **again | {"answer": '{"ranking": [[2]], "failed": [0, 1]}'})
    stale = ann.post(path, JSON, **again | {"answer": '{"ranking": [[1], [0], [2]]}', "sending": "another page"})
    assert stale.status_code == 409 and "elsewhere" in stale.json()["error"]
    assert [row["version"] for row in answers(store)] == [1, 2]


def test_an_answer_whose_receipt_was_lost_is_sent_again(store):
    add_project(store, items=1)
    _, (ann,) = office(store, "ann")
    path, form = begin(ann)
    fields = form | {"answer": '{"ranking": [[0], [1], [2]]}'}
    first, second = ann.post(path, JSON, **fields), ann.post(path, JSON, **fields)
    assert first.json() == second.json() and len(answers(store)) == 1


def test_skipping_needs_a_reason(store):
    add_project(store, items=1)
    _, (ann,) = office(store, "ann")
    path, form = begin(ann)
    assert ann.post(f"{path}/skip", csrf=form["csrf"], reason=" ").status_code == 400
    assert "All done" in ann.post(f"{path}/skip", csrf=form["csrf"], reason="cannot <b>read</b> this").text
    assert "skipped: cannot &lt;b&gt;read&lt;/b&gt; this" in ann.get("/projects/1/mine").text


@pytest.mark.parametrize(
    "change",
    [
        {"answer": "{"},
        {"answer": "[1]"},
        {"answer": "[" * 50_000},
        {"answer": '{"ranking": [[0], [1]]}'},
        {"version": "x"},
        {"seconds": "soon"},
        {"sending": "short"},
        {"sending": "x" * 65},
        {"version": "7"},
    ],
)
def test_what_no_page_of_ours_sends_is_refused_in_words(store, change):
    add_project(store, items=1)
    _, (ann,) = office(store, "ann")
    path, form = begin(ann)
    found = ann.post(path, JSON, **form | {"answer": '{"ranking": [[0], [1], [2]]}'} | change)
    assert found.status_code in (409, 422) and found.json()["error"] and not answers(store)


@pytest.mark.parametrize("seconds", ["nan", "inf", "-5", "1e300"])
def test_a_time_that_cannot_be_is_none(store, seconds):
    add_project(store, items=1)
    _, (ann,) = office(store, "ann")
    path, form = begin(ann)
    ann.post(path, JSON, **form | {"answer": '{"ranking": [[0], [1], [2]]}', "seconds": seconds})
    assert answers(store)[0]["seconds"] == 0


def test_who_has_logged_out_meanwhile_is_told_so(store):
    add_project(store, items=1)
    app, (ann,) = office(store, "ann")
    path, form = begin(ann)
    ann.post("/logout", csrf=form["csrf"])
    found = ann.post(path, JSON, **form | {"answer": '{"ranking": [[0], [1], [2]]}'})
    assert found.status_code == 401 and "logged out" in found.json()["error"]
    assert Browser(app).get(path).url.path == "/login"


@pytest.mark.parametrize(
    ("kind", "size", "fields", "kept"),
    [
        ("compare", 2, {"choice": "1:2"}, {"better": 1, "strength": 2, "of": [0, 1]}),
        ("thumbs", 2, {"thumb-0": "good", "thumb-1": "bad"}, {"good": [0], "bad": [1]}),
        (
            "score",
            1,
            {"score-0-helpful": "3", "score-0-correct": "4", "score-0-clear": "5"},
            {"scores": {"0": {"helpful": 3, "correct": 4, "clear": 5}}},
        ),
        ("steps", 1, {"wrong": "0"}, {"wrong": 0}),
        ("demonstrate", 1, {"text": "Hello."}, {"text": "Hello."}),
        ("demonstrate", 0, {"text": "Hello."}, {"text": "Hello."}),
    ],
)
def test_every_kind_has_a_page_that_asks_keeps_and_shows(store, kind, size, fields, kept):
    add_project(store, items=[item("q0", size=size)], kind=kind)
    _, (ann,) = office(store, "ann")
    path, form = begin(ann)
    page = ann.get(path).text
    assert "question q0" in page and page.count("answer ") >= size and f'data-kind="{kind}"' in page
    assert ann.post(path, **form).status_code == 422
    assert ann.post(path, **form, **fields).status_code == 200
    (row,) = answers(store)
    assert {name: row[name] for name in kept} == kept
    assert (ann.get(path).status_code == 200 and "Hello." in ann.get(path).text) or kind != "demonstrate"
