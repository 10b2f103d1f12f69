"""What managers see, and what they make."""

import contextlib
import re

import pytest
from sqlalchemy import event

from posttrain.annotation.app import create_app
from posttrain.annotation.store import projects
from posttrain.annotation.store.tables import Assignment
from tests.annotation.app.browsing import JSON, Browser, office
from tests.annotation.worlds import PASSWORD, add_project, add_user, item
from tests.references.annotation import ordinal_alpha


def manager(store):
    add_user(store, "boss", role="manager")
    return Browser(create_app(store), "boss")


def test_from_nothing_to_an_annotator(store):
    boss = manager(store)
    assert "None yet" in boss.get("/manage").text
    made = boss.post(
        "/manage", csrf=boss.csrf, name="kind <b>", kind="rank", annotators="2", repeats="10", instructions="Be *kind*."
    )
    assert made.url.path == "/manage/1" and "There are no items yet" in made.text and "kind &lt;b&gt;" in made.text
    with store.read() as connection:
        project = projects.find(connection, "kind <b>")
        assert (project.annotators_per_item, project.repeat_share, project.instructions) == (2, 0.1, "Be *kind*.")
    page = boss.post("/manage/1/invite", csrf=boss.csrf, role="annotator", uses="1", days="1").text
    link = re.search(r'id="link" value="http://localhost:8400(/invite/[\w-]+)"', page)[1]
    ann = Browser(boss.client.app)
    assert "Welcome to kind &lt;b&gt;" in ann.get(link).text
    inside = ann.post(link, name="ann", password=PASSWORD)
    assert inside.url.path == "/" and "kind &lt;b&gt;" in inside.text
    assert "invite" not in boss.get("/manage/1").text.split('id="link"')[0].split("<form")[0]
    assert Browser(boss.client.app).get(link).status_code == 404  # it was for one


def test_who_is_a_user_already_joins_and_becomes_what_the_invitation_says(store):
    add_project(store)
    boss = manager(store)
    add_user(store, "ann")
    ann = Browser(boss.client.app, "ann")
    assert ann.get("/manage").status_code == 404 and "helpful" not in ann.get("/").text
    page = boss.post("/manage/1/invite", csrf=boss.csrf, role="manager").text
    link = re.search(r"(/invite/[\w-]+)\"", page)[1]
    assert "You are ann, and become a manager." in ann.get(link).text
    assert "helpful" in ann.post(f"{link}/join", csrf=ann.csrf).text
    assert ann.get("/manage").status_code == 200
    assert ann.post(f"{link}/join", csrf=ann.csrf).status_code == 404  # it was for one


def test_an_invitation_begins_with_the_configured_address_whatever_the_request_says(store):
    add_project(store)
    add_user(store, "boss", role="manager")
    boss = Browser(create_app(store, url="https://feedback.example"), "boss")
    forged = {"host": "evil.example", "x-forwarded-host": "evil.example", "forwarded": "host=evil.example"}
    page = boss.post("/manage/1/invite", forged, csrf=boss.csrf).text
    assert re.search(r'id="link" value="https://feedback.example/invite/[\w-]+"', page) and "evil" not in page
    assert boss.get("/manage/", headers=forged, follow_redirects=False).status_code == 404  # no redirect by Host


NUMBERS = ["9" * 400, "9" * 5000, "-" + "9" * 400, "1e400", "0x10", "-1", "1.5"]


@pytest.mark.parametrize("field", ["annotators", "repeats", "uses", "days"])
def test_a_number_that_is_none_or_too_long_is_refused_in_one_line(store, field):
    boss = manager(store)
    boss.post("/manage", csrf=boss.csrf, name="a")
    path = "/manage" if field in ("annotators", "repeats") else "/manage/1/invite"
    for number in NUMBERS:
        found = boss.post(path, csrf=boss.csrf, name="b", **{field: number})
        said = re.search(r'role="alert">([^<]*)<', found.text)[1]
        assert found.status_code == 400 and said == f"{field} must be a whole number of at most 9 digits", number


def test_a_wrong_form_says_what_is_wrong_and_keeps_the_invitation(store):
    boss = manager(store)
    boss.post("/manage", csrf=boss.csrf, name="a")
    for fields, words in (
        ({"name": "a"}, "there is a project"),
        ({"name": ""}, "1 to 80 letters"),
        ({"name": "b", "annotators": "many"}, "annotators must be a whole number"),
    ):
        found = boss.post("/manage", csrf=boss.csrf, **fields)
        assert found.status_code == 400 and words in found.text
    for fields in ({"role": "king"}, {"uses": "0"}, {"days": "1000"}):
        assert boss.post("/manage/1/invite", csrf=boss.csrf, **fields).status_code == 400
    link = re.search(r"(/invite/[\w-]+)\"", boss.post("/manage/1/invite", csrf=boss.csrf).text)[1]
    found = Browser(boss.client.app).post(link, name="ann", password="short")
    assert found.status_code == 400 and "at least 8" in found.text and 'value="ann"' in found.text
    assert Browser(boss.client.app).post(link, name="ann", password=PASSWORD).status_code == 200


def test_progress_agreement_and_disagreement_are_shown(store):
    add_project(store, items=6)
    boss = manager(store)
    _, browsers = office(store, "ann", "ben", "cat")
    orders = {"ann": "[[0],[1],[2]]", "ben": "[[0],[1],[2]]", "cat": "[[2],[1],[0]]"}
    for name, browser in zip(orders, browsers, strict=True):
        while (path := browser.get("/projects/1").url.path).startswith("/work/"):
            browser.post(path, JSON, **browser.fields(path) | {"answer": f'{{"ranking": {orders[name]}}}'})
    page = boss.get("/manage/1").text
    assert "18 of 18 judgements; 6 of 6 items have all 3; 0 skipped; 3 people" in page
    alpha = ordinal_alpha([[1, 1, 3], [2, 2, 2], [3, 3, 1]] * 6)
    assert "Kendall's W 0.111" in page and f"Krippendorff's alpha {alpha:.3f}" in page
    assert re.search(r"<tr[^>]*><td>cat<td>6<td>0<td>0<td>0.00", page)
    assert page.count("question q") == 6


def test_annotators_do_not_manage(store):
    add_project(store)
    _, (ann,) = office(store, "ann")
    assert "Manage" not in ann.get("/").text
    for path in ("/manage", "/manage/1"):
        assert ann.get(path).status_code == 404
    assert ann.post("/manage", csrf=ann.csrf, name="mine").status_code == 404
    assert ann.post("/manage/1/invite", csrf=ann.csrf).status_code == 404


def test_a_manager_decides_what_annotators_do_not_agree_on(store):
    add_project(store, items=1)
    boss = manager(store)
    _, (ann, ben) = office(store, "ann", "ben")

    def judge(browser, order):
        path = browser.get("/projects/1").url.path
        browser.post(path, JSON, **browser.fields(path) | {"answer": f'{{"ranking": {order}}}'})

    judge(ann, "[[0],[1],[2]]")
    judge(ben, "[[2],[1],[0]]")
    with store.write() as connection:
        projects.add_items(connection, projects.find(connection, "helpful"), [item("another")])
    judge(ann, "[[0,1,2]]")
    place = "/manage/1/items/1"
    assert f'href="{place}"' in boss.get("/manage/1").text
    page = boss.get(place).text
    assert (
        "A &gt; B &gt; C" in page
        and "C &gt; B &gt; A" in page
        and "A = B = C" not in page
        and ">Decide</button>" in page
    )
    assert "secret-model" not in page and "/skip" not in page
    kept = boss.post(place, JSON, **boss.fields(place) | {"answer": '{"ranking": [[1],[0],[2]]}'})
    assert kept.json() == {"next": "/manage/1"}
    assert "decided by boss" in boss.get("/manage/1").text
    again = boss.fields(place)
    page = boss.get(place).text
    assert again["version"] == "1" and ">Change</button>" in page and "boss, who decides" in page
    plain = boss.post(place, **again, **{"place-0": "1", "place-1": "1", "place-2": "F"})
    assert plain.url.path == "/manage/1"
    with store.read() as connection:
        assert projects.rulings(connection, projects.find(connection, "helpful")) == {
            "q0": {"ranking": [[0, 1]], "failed": [2]}
        }


def test_only_managers_decide_and_only_what_is_there(store):
    add_project(store, items=1)
    add_project(store, "other", items=1)
    boss = manager(store)
    _, (ann,) = office(store, "ann")
    path = ann.get("/projects/1").url.path
    form = ann.fields(path)
    ann.post(path, JSON, **form | {"answer": '{"ranking": [[0],[1],[2]]}'})
    sent = {"sending": "a sending", "version": "0", "answer": '{"ranking": [[2],[1],[0]]}'}
    assert ann.get("/manage/1/items/1").status_code == 404
    assert ann.post("/manage/1/items/1", JSON, csrf=ann.csrf, **sent).status_code == 404
    for place in ("/manage/1/items/2", "/manage/1/items/9", "/manage/9/items/1"):
        assert boss.get(place).status_code == 404
        assert boss.post(place, JSON, csrf=boss.csrf, **sent).status_code == 404
    assert boss.post("/manage/1/items/1", JSON, csrf="guess", **sent).status_code == 403
    assert boss.post("/manage/1/items/1", JSON, csrf=boss.csrf, **sent).status_code == 200


def test_the_people_of_every_kind_are_listed(store):
    add_project(store, items=[item("q", size=1)], kind="demonstrate")
    boss = manager(store)
    _, (ann,) = office(store, "ann")
    path = ann.get("/projects/1").url.path
    ann.post(path, JSON, **ann.fields(path) | {"answer": '{"text": "Hello."}', "seconds": "7"})
    page = boss.get("/manage/1").text
    assert re.search(r"<tr><td>ann<td>1<td>0<td>7<td>–", page) and "Krippendorff" not in page
    assert boss.get("/manage/1/items/1").status_code == 404


def judge_all(browser, order="[[0],[1],[2]]"):
    """Give every item that is left this order."""
    while (path := browser.get("/projects/1").url.path).startswith("/work/"):
        browser.post(path, JSON, **browser.fields(path) | {"answer": f'{{"ranking": {order}}}'})


@contextlib.contextmanager
def counted(target, name):
    """How often an event comes."""
    seen = []

    def listener(*_):
        seen.append(1)

    event.listen(target, name, listener)
    yield seen
    event.remove(target, name, listener)


def test_the_projects_page_asks_the_store_as_often_however_much_was_judged(store):
    add_project(store, items=2, annotators_per_item=2)
    boss = manager(store)
    _, people = office(store, "ann", "ben")
    asked = []
    for more in (0, 10):
        with store.write() as connection:
            new = [item(f"more {n}") for n in range(more)]
            projects.add_items(connection, projects.find(connection, "helpful"), new)
        judge_all(people[0])
        judge_all(people[1], "[[2],[1],[0]]")
        boss.get("/manage/1")
        with counted(store.engine, "after_cursor_execute") as statements:
            page = boss.get("/manage/1").text
        assert page.count("<td>0.00<td></tr>") == 2 + more  # W of each item
        asked.append(len(statements))
    assert asked[0] == asked[1]


def test_an_items_page_and_its_decision_read_no_other_items_judgements(store):
    add_project(store, items=6, annotators_per_item=2)
    boss = manager(store)
    _, people = office(store, "ann", "ben")
    for browser in people:
        judge_all(browser)
    place = "/manage/1/items/1"
    with counted(Assignment, "load") as loaded:
        assert boss.get(place).text.count("A &gt; B &gt; C") == 2
    assert len(loaded) == 2
    form = boss.fields(place) | {"answer": '{"ranking": [[1],[0],[2]]}'}
    with counted(Assignment, "load") as loaded:
        assert boss.post(place, JSON, **form).status_code == 200
    assert len(loaded) <= 2
