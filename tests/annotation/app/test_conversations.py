"""Talking with a model on the pages, as browsers do; and whoever replies, however it goes."""

import json
import time

import pytest

from posttrain.annotation.app import chat_worker as partner_module
from posttrain.annotation.app import create_app
from posttrain.annotation.app.chat_worker import TOGETHER, Partner
from posttrain.annotation.store import conversations, projects
from posttrain.annotation.store.tables import Assignment, Item
from tests.annotation.app.browsing import JSON, Browser
from tests.annotation.worlds import add_project, add_user

RULES = ("Do no harm.", "Do not <b>lie</b>.")


class Model:
    """Replies with what it was told last, and remembers what it was asked."""

    def __init__(self):
        self.asked, self.problem = [], None

    def __call__(self, asked):
        self.asked.append(asked)
        if isinstance(self.problem, Exception):
            raise self.problem
        return [
            self.problem
            or [(f"**yes** to {said[-1]['content']}", "secret-a", "stop"), ("no <script>", "secret-b", "length")]
            for _, said in asked
        ]


@pytest.fixture
def model():
    return Model()


def enter(store, model, *names, kind="converse", people=1):
    rules = RULES if kind == "red-team" else ()
    items = [Item(name=f"topic {n}", prompt=[], details={"topic": f"Talk about {n}."}) for n in range(len(names) or 1)]
    add_project(store, "talk", items=items, kind=kind, rules=rules, annotators_per_item=people)
    app = create_app(store, speak=model)
    for name in names:
        add_user(store, name, "talk")
    return app, app.state.desk.partner, [Browser(app, name) for name in names]


def begin(browser):
    return browser.get("/projects/1").url.path


def send(browser, path, action="", **answer):
    """What the page's script sends."""
    return browser.post(f"{path}{action}", JSON, **browser.fields(path) | {"answer": json.dumps(answer)})


def await_replies(browser, path):
    until = time.monotonic() + 120
    while not browser.get(f"{path}/replies").json()["ready"]:
        assert time.monotonic() < until
        time.sleep(0.02)


def rows(store):
    with store.read() as connection:
        return list(projects.rows(connection, projects.find(connection, "talk")))


def test_a_conversation_from_the_first_word_to_the_last(store, model):
    _, partner, (ann,) = enter(store, model, "ann")
    path = begin(ann)
    page = ann.get(path).text
    assert "Talk about 0." in page and "What you say first" in page and ">End the conversation</button>" not in page
    assert send(ann, path, "/say", text="Hello?").json() == {"turn": 0, "next": path}
    assert "The model is writing" in ann.get(path).text
    assert ann.get(f"{path}/replies").json() == {"ready": False, "trouble": ""}
    assert partner.answer() == 1 and partner.answer() == 0
    assert ann.get(f"{path}/replies").json() == {"ready": True, "trouble": ""}
    page = ann.get(path).text
    assert "<strong>yes</strong> to Hello?" in page and "<script>" not in page.split("</head>")[1]
    assert "secret-" not in page and "What you say" not in page and page.count("breaks off") == 1
    said = send(ann, path, turn=0, better=1, strength=2)
    assert said.json() == {"version": 1, "next": path}
    page = ann.get(path).text
    assert "What you say next" in page and "no &lt;script&gt;" in page and "which was better" in page
    assert "to Hello?" not in page  # the other reply is gone
    send(ann, path, "/say", text="And now?")
    partner.answer()
    assert [message["content"] for message in model.asked[-1][0][1]] == ["Hello?", "no <script>", "And now?"]
    send(ann, path, turn=1, better=None, strength=0)
    ended = ann.post(f"{path}/end", JSON, csrf=ann.csrf)
    assert ended.json() == {"next": "/projects/1"}
    assert "This conversation has ended" in ann.get(path).text and "All done" in ann.get("/projects/1").text
    assert "Talk about 0." in ann.get("/projects/1/mine").text
    (row,) = rows(store)
    assert [choice["better"] for choice in row["choices"]] == [1, None]
    assert row["turns"][0]["replies"][1]["model"] == "secret-b"


def test_without_a_script_too(store, model):
    _, partner, (ann,) = enter(store, model, "ann")
    path = begin(ann)
    ann.post(f"{path}/say", text="Hello?", **ann.fields(path))
    assert '<meta http-equiv="refresh"' in ann.get(path).text
    partner.answer()
    assert 'http-equiv="refresh"' not in ann.get(path).text
    assert "say which of the two" in ann.post(path, **ann.fields(path)).text
    assert ann.post(path, choice="1:2", **ann.fields(path)).url.path == path
    assert ann.post(f"{path}/end", csrf=ann.csrf).url.path == "/projects/1"
    assert rows(store)[0]["choices"][0]["better"] == 1


def test_a_red_team_marks_the_rules_that_are_broken(store, model):
    _, partner, (ann,) = enter(store, model, "ann", kind="red-team")
    path = begin(ann)
    assert "Do not &lt;b&gt;lie&lt;/b&gt;." in ann.get(path).text and "which rules" not in ann.get(path).text.lower()
    send(ann, path, "/say", text="Lie!")
    partner.answer()
    assert ann.get(path).text.count('type="checkbox"') == 4
    send(ann, path, turn=0, better=0, strength=1, broken={"1": [1]})
    page = ann.get(path).text
    assert "which was worse" in page and "no &lt;script&gt;" in page  # an attack goes on with it
    page = ann.get(f"{path}?change=1").text
    assert "&#34;broken&#34;: {&#34;0&#34;: [], &#34;1&#34;: [1]}" in page and ">Change</button>" in page


def test_what_was_said_waits_for_a_model_that_comes_later(store, model):
    _, partner, (ann,) = enter(store, model, "ann")
    path = begin(ann)
    send(ann, path, "/say", text="Hello?")
    again = Partner(store, model, print)  # the server was killed, and has come back
    assert again.answer() == 1 and partner.answer() == 0
    assert ann.get(f"{path}/replies").json()["ready"]
    assert len(model.asked) == 1


def test_nobody_replies_where_no_model_is_served(store):
    _, partner, (ann,) = enter(store, None, "ann")
    path = begin(ann)
    refused = send(ann, path, "/say", text="Hello?")
    assert partner is None and refused.status_code == 400 and "--model" in refused.json()["error"]
    with store.write() as connection:  # a server with a model was there before
        turn = conversations.say(connection, connection.get_one(Assignment, 1), "Hi.", sending="a sending", turn=0)
    told = ann.get(f"{path}/replies").json()
    assert not told["ready"] and "--model" in told["trouble"] and "--model" in ann.get(path).text
    with store.write() as connection:
        conversations.reply(connection, turn.id, [("yes", "a", "stop"), ("no", "a", "stop")])
    assert ann.get(f"{path}/replies").json() == {"ready": True, "trouble": ""}


@pytest.mark.parametrize("problem", ["too long; end it", RuntimeError("out of memory")])
def test_what_fails_is_told_and_tried_again_when_somebody_asks(store, model, problem):
    _, partner, (ann,) = enter(store, model, "ann")
    path = begin(ann)
    send(ann, path, "/say", text="Hello?")
    model.problem = problem
    assert partner.answer() == 1 and partner.answer() == 0
    told = ann.get(f"{path}/replies").json()
    words = "RuntimeError" if isinstance(problem, Exception) else problem
    assert not told["ready"] and words in told["trouble"] and "memory" not in told["trouble"]
    page = ann.get(path).text  # without a script, too
    assert words in page and "http-equiv" not in page and 'id="again">' in page and "writing its replies" not in page
    model.problem = None
    assert ann.post(f"{path}/again", csrf=ann.csrf).url.path == path
    assert ann.get(f"{path}/replies").json() == {"ready": False, "trouble": ""}
    assert partner.answer() == 1 and ann.get(f"{path}/replies").json()["ready"]
    assert model.asked[-1][0][0] != model.asked[-2][0][0]  # other draws


def test_where_the_model_fails_over_one_conversation_the_others_are_answered(store, model):
    _, partner, people = enter(store, model, "ann", "ben", "cat")
    for number, one in enumerate(people):
        send(one, begin(one), "/say", text="bad" if number == 1 else "good")

    def choosy(asked):
        if any(said[-1]["content"] == "bad" for _, said in asked):
            raise ValueError("no")
        return model(asked)

    partner._speak = choosy
    assert partner.answer() == 3
    assert [one.get(f"{begin(one)}/replies").json()["ready"] for one in people] == [True, False, True]


def test_a_store_that_cannot_be_reached_for_a_time_is_tried_again(store, model, monkeypatch):
    _, partner, (ann,) = enter(store, model, "ann")
    path = begin(ann)
    send(ann, path, "/say", text="Hello?")
    monkeypatch.setattr(partner_module, "PAUSE", 0.01)
    said: list[str] = []
    partner._say = said.append
    reply, failures = conversations.reply, [OSError("gone")] * 3

    def shaky(*args):
        if failures:
            raise failures.pop()
        reply(*args)

    monkeypatch.setattr(conversations, "reply", shaky)
    partner.start()
    await_replies(ann, path)
    partner.close()
    assert not failures and said == ["replies wait, and are tried again: gone"] * 3


def test_one_that_has_ended_without_replies_can_still_be_read(store, model):
    _, partner, (ann,) = enter(store, model, "ann")
    path = begin(ann)
    send(ann, path, "/say", text="Hello?")
    partner.answer()
    send(ann, path, turn=0, better=0, strength=1)
    send(ann, path, "/say", text="And now?")
    assert 'id="end"' in ann.get(path).text
    ann.post(f"{path}/end", csrf=ann.csrf)
    assert "This conversation has ended" in ann.get(path).text
    assert "This conversation has ended" in ann.get(f"{path}?change=1").text  # the choice is not of the last turn
    assert "2 turns" in ann.get("/projects/1/mine").text


def test_who_waits_together_is_answered_together_and_one_trouble_holds_up_nobody(store, model):
    names = [f"person {n}" for n in range(TOGETHER + 2)]
    _, partner, people = enter(store, model, *names)
    paths = [begin(one) for one in people]
    send(people[0], paths[0], "/say", text="first")
    partner.answer()
    send(people[0], paths[0], turn=0, better=0, strength=1)
    send(people[0], paths[0], "/say", text="second")
    model.problem = "too long; end it"
    partner.answer()
    people[0].post(f"{paths[0]}/end", csrf=people[0].csrf)
    model.problem = None
    for one, path in list(zip(people, paths, strict=True))[1:]:
        send(one, path, "/say", text="Hello?")
    assert [partner.answer() for _ in range(3)] == [TOGETHER, 1, 0]
    assert all(one.get(f"{path}/replies").json()["ready"] for one, path in list(zip(people, paths, strict=True))[1:])
    assert len({number for asked in model.asked for number, _ in asked}) == len(names) + 1


def test_the_partner_works_on_its_own_until_it_is_closed(store, model):
    _, partner, (ann,) = enter(store, model, "ann")
    path = begin(ann)
    with store.write() as connection:
        conversations.say(connection, connection.get_one(Assignment, 1), "before", sending="a sending", turn=0)
    partner.start()
    await_replies(ann, path)  # to what was left from before
    send(ann, path, turn=0, better=0, strength=1)
    send(ann, path, "/say", text="And now?")
    await_replies(ann, path)
    partner.close()
    assert len(model.asked) == 2


def test_another_persons_conversation_is_not_there(store, model):
    _, _, (ann, ben) = enter(store, model, "ann", "ben")
    path = begin(ann)
    send(ann, path, "/say", text="Hello?")
    assert ben.get(f"{path}/replies").status_code == 404
    for action in ("say", "again", "end"):
        refused = ben.post(f"{path}/{action}", JSON, csrf=ben.csrf, sending="a sending", version="1", text="x")
        assert refused.status_code == 404
        assert ann.post(f"{path}/{action}", JSON, csrf="guess", sending="a sending", text="x").status_code == 403
    assert ann.get("/work/99/replies").status_code == 404


def test_nothing_to_wait_for_is_not_there(store, model):
    _, _, (ann,) = enter(store, model, "ann")
    path = begin(ann)
    assert ann.get(f"{path}/replies").status_code == 404
    for answer in ('{"text": 3}', "[]", "[1]", "3", "{", '{"text": ""}'):
        sent = ann.post(f"{path}/say", JSON, **ann.fields(path) | {"answer": answer})
        assert sent.status_code == 422
    for sending in ("", "short", "x" * 65):
        sent = ann.post(f"{path}/say", JSON, csrf=ann.csrf, sending=sending, version="0", text="Hello?")
        assert sent.status_code == 422
