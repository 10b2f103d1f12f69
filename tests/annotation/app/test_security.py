"""What must be refused: the table in docs/annotation.md has a row for each of these."""

import asyncio
import time

import pytest
from sqlalchemy import func, select

from posttrain.annotation.app import create_app, security
from posttrain.annotation.app.security import Limit, TooOften
from posttrain.annotation.app.session import COOKIE
from posttrain.annotation.store import people
from posttrain.annotation.store.tables import Judgement, Project
from tests.annotation.app.browsing import JSON, Browser, office
from tests.annotation.worlds import PASSWORD, add_project, add_user, completions, item

ANSWER = '{"ranking": [[0], [1], [2]]}'


@pytest.fixture
def desk(store):
    """Two annotators of one project; the path and the form of what the first was given."""
    add_project(store)
    app, (ann, ben) = office(store, "ann", "ben")
    path = ann.get("/projects/1").url.path
    return app, ann, ben, path, ann.fields(path) | {"answer": ANSWER}


def judged(store):
    with store.read() as connection:
        return connection.scalar(select(func.count()).select_from(Judgement))


def test_another_persons_item_is_not_there(desk, store):
    _, _, ben, path, form = desk
    assert ben.get(path).status_code == 404
    mine = form | {"csrf": ben.csrf}
    assert ben.post(path, JSON, **mine).status_code == 404
    assert ben.post(f"{path}/skip", csrf=mine["csrf"], reason="x").status_code == 404
    assert judged(store) == 0


def test_another_project_is_not_there(desk, store):
    _, ann, *_ = desk
    add_project(store, "secret")
    for path in ("/projects/2", "/projects/2/mine", "/projects/99"):
        assert ann.get(path).status_code == 404


@pytest.mark.parametrize("token", [None, "", "guess", "x" * 5000, "é"])
def test_a_forged_form_is_refused(desk, store, token):
    _, ann, ben, path, form = desk
    forged = {name: value for name, value in form.items() if name != "csrf"}
    for sent in (forged if token is None else forged | {"csrf": token}, forged | {"csrf": ben.csrf}):
        assert ann.post(path, JSON, **sent).status_code == 403
        assert ann.post(f"{path}/skip", JSON, reason="x", **sent).status_code == 403
        assert ann.post("/logout", JSON, **sent).status_code == 403
    assert judged(store) == 0 and ann.get("/").url.path == "/"


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_form_from_another_site_is_refused_even_with_the_token(desk, store, headers):
    _, ann, _, path, form = desk
    assert ann.post(path, JSON | headers, **form).status_code == 403 and judged(store) == 0
    assert Browser(ann.client.app).post("/login", headers, name="ann", password=PASSWORD).status_code == 403
    assert (
        ann.post(path, JSON | {"origin": "http://testserver", "sec-fetch-site": "same-origin"}, **form).status_code
        == 200
    )


def test_the_session_cookie_is_for_our_pages_only(desk):
    app, *_ = desk
    response = Browser(app).client.post("/login", data={"name": "ann", "password": PASSWORD}, follow_redirects=False)
    cookie = response.headers["set-cookie"].lower()
    assert (
        cookie.startswith(f"{COOKIE}=") and "httponly" in cookie and "samesite=lax" in cookie and "secure" not in cookie
    )


def test_behind_tls_the_cookie_goes_no_other_way(store):
    add_user(store, "ann")
    client = Browser(create_app(store, https=True)).client
    response = client.post("/login", data={"name": "ann", "password": PASSWORD}, follow_redirects=False)
    assert "secure" in response.headers["set-cookie"].lower()


def test_a_script_in_a_prompt_or_completion_is_text(store):
    text = "<script>document.title='x'</script><img src=x onerror=alert(1)>"
    prompt = [{"role": "user", "content": text}]
    bad = item(text, prompt=prompt, completions=completions(text, "[a](javascript:x)"))
    add_project(store, items=[bad])
    _, (ann,) = office(store, "ann")
    for path in (ann.get("/projects/1").url.path, "/projects/1/mine"):
        page = ann.get(path)
        assert "<script>doc" not in page.text and "<img" not in page.text and 'href="javascript' not in page.text
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy and "unsafe" not in policy


def test_a_body_that_is_too_large_is_refused_unread(desk, store):
    _, ann, _, path, form = desk
    large = "x" * (security.LARGEST + 1)
    assert ann.post(path, JSON, **form | {"answer": large}).status_code == 413

    def pieces():  # without a content-length
        for _ in range(security.LARGEST // 1024 + 2):
            yield b"x" * 1024

    assert (
        ann.client.post(
            path, content=pieces(), headers={"content-type": "application/x-www-form-urlencoded"}
        ).status_code
        == 413
    )
    for length in ("-1", "many", "1" * 30, "1" * 5000):
        assert ann.client.post(path, headers={"content-length": length}).status_code == 413
    assert judged(store) == 0


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b'{"csrf": 1'),
        ("application/json", b"[]"),
        ("multipart/form-data; boundary=x", b"--x\r\nnonsense"),
        ("multipart/form-data", b"--"),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="csrf"; filename="a"\r\n\r\nx\r\n--x--\r\n',
        ),
        ("application/x-www-form-urlencoded", b"\xff\xfe&&==%zz"),
        ("application/x-www-form-urlencoded", b"&".join(b"a%d=1" % n for n in range(500))),
        ("text/plain", b"csrf=x"),
        ("", b""),
    ],
)
def test_a_malformed_body_is_a_refusal_and_no_crash(desk, store, kind, body):
    _, ann, _, path, _ = desk
    for target in (path, f"{path}/skip", "/logout", "/login", "/invite/x"):
        found = ann.client.post(target, content=body, headers={"content-type": kind, **JSON})
        assert 400 <= found.status_code < 500, (target, found.status_code)
    assert judged(store) == 0


@pytest.mark.parametrize(
    "path",
    ["/work/0", "/work/-1", "/work/x", "/work/" + "9" * 40, "/projects/" + "9" * 40, "/projects/%00", "/manage/1"],
)
def test_a_path_that_leads_nowhere_is_a_refusal(desk, path):
    _, ann, *_ = desk
    assert ann.get(path).status_code in (404, 422)


def test_an_invitation_is_not_found_by_guessing(desk):
    app, *_ = desk
    guesser = Browser(app)
    codes = [guesser.get(f"/invite/guess-{n}").status_code for n in range(30)]
    assert codes[:20] == [404] * 20 and codes[20:] == [429] * 10
    assert guesser.post("/invite/guess", name="eve", password=PASSWORD).status_code == 429


@pytest.mark.parametrize("way", ["", "/join"])
def test_an_invitation_is_not_found_by_using_it_unseen(desk, way):
    _, ann, *_ = desk
    fields = {"csrf": ann.csrf, "name": "eve", "password": PASSWORD}
    codes = [ann.post(f"/invite/guess-{n}{way}", **fields).status_code for n in range(25)]
    assert codes == [404] * 20 + [429] * 5


def test_a_password_is_not_found_by_guessing(desk):
    app, *_ = desk
    guesser = Browser(app)
    codes = [guesser.post("/login", name="ann", password=f"guess {n}").status_code for n in range(25)]
    assert codes[:20] == [403] * 20 and codes[20:] == [429] * 5


def test_who_writes_too_often_has_to_wait(desk, monkeypatch):
    app, ann, _, path, form = desk
    monkeypatch.setattr(app.state.desk.writes, "most", 3)
    codes = [ann.post(path, JSON, **form).status_code for _ in range(5)]
    assert codes == [200] * 3 + [429] * 2


def full(limit, key):
    try:
        limit.check(key)
    except TooOften:
        return True
    return False


def test_a_limit_forgets(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    limit = Limit(2, 60)
    for at, reached in ((0, False), (30, False), (59, True), (60, False), (89, False)):
        clock[0] = at
        assert full(limit, "a") == reached
        assert not full(limit, "b")
        if at < 59:
            limit.count("a")
    assert not full(limit, "a")


def test_addresses_that_never_come_back_are_forgotten(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(security, "SWEPT", 10)
    limit = Limit(1, 60)
    for n in range(100):
        clock[0] = 10.0 * n
        limit.count(f"address {n}")
        assert len(limit._seen) <= 10
        assert all(full(limit, f"address {now}") for now in range(max(0, n - 5), n + 1))  # who came just now is known


@pytest.mark.parametrize("number", ["9" * 400, "-" + "9" * 400, "9" * 5000])
def test_a_number_of_many_digits_in_an_answer_is_a_refusal(desk, store, number):
    _, ann, _, path, form = desk
    for changed in ({"version": number}, {"answer": f'{{"ranking": [[{number}], [0], [1]]}}'}):
        found = ann.post(path, JSON, **form | changed)
        assert 400 <= found.status_code < 500 and len(found.json()["error"]) < 200
    assert judged(store) == 0
    assert ann.post(path, JSON, **form | {"seconds": number}).status_code in (200, 422)


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("feedback.example", 303),
        ("FEEDBACK.example:443", 303),
        ("feedback.example.", 303),
        ("localhost:8400", 303),
        ("127.0.0.1", 303),
        ("[::1]:8400", 303),
        ("192.168.1.5:8400", 303),
        ("evil.example", 421),
        ("feedback.example.evil.example", 421),
        ("feedback.example@evil.example", 421),
        ("[bad", 421),
        ("", 421),
    ],
)
def test_other_names_than_ours_are_not_served(store, host, code):
    """Another site's name that leads to this server (DNS rebinding), or that a proxy passes on."""
    client = Browser(create_app(store, hosts={"feedback.example"})).client
    found = client.get("/", headers={"host": host}, follow_redirects=False)
    assert found.status_code == code and ("--url" in found.text) == (code == 421) and "evil" not in found.text
    assert found.headers["x-frame-options"] == "DENY"


def test_a_form_from_the_configured_address_is_ours_even_where_a_proxy_does_not_pass_the_host(store):
    add_user(store, "ann")
    client = Browser(create_app(store, url="https://feedback.example", hosts={"feedback.example"})).client
    form = {"name": "ann", "password": PASSWORD}
    for origin, code in (("https://feedback.example", 303), ("http://feedback.example", 403)):
        headers = {"host": "127.0.0.1:8400", "origin": origin}
        assert client.post("/login", data=form, headers=headers, follow_redirects=False).status_code == code


def test_a_session_ends_when_its_browser_logs_in_again_or_takes_an_invitation(store):
    """Whoever has an old cookie is logged out, too."""
    add_project(store)
    app, (ann,) = office(store, "ann")

    def stolen():
        other = Browser(app)
        other.client.cookies.set(COOKIE, ann.client.cookies[COOKIE])
        assert other.get("/").url.path == "/"
        return other

    first = stolen()
    ann.post("/login", name="ann", password=PASSWORD)
    assert first.get("/").url.path == "/login" and ann.get("/").url.path == "/"
    with store.write() as connection:
        promoted, new = people.invite(connection, "manager"), people.invite(connection, "annotator")
    second = stolen()
    ann.post(f"/invite/{promoted}/join", csrf=ann.csrf)
    assert second.get("/manage").url.path == "/login" and ann.get("/manage").status_code == 200
    third = stolen()
    ann.post(f"/invite/{new}", name="anna", password=PASSWORD)
    assert third.get("/").url.path == "/login" and "anna" in ann.get("/").text


@pytest.mark.parametrize("path", ["/", "/projects/1", "/projects/1/mine", "/work/1", "/manage", "/manage/1"])
def test_nobody_sees_anything_without_logging_in(desk, path):
    app, *_ = desk
    assert Browser(app).get(path).url.path == "/login"
    forged = Browser(app)
    forged.client.cookies.set(COOKIE, "guess")
    assert forged.get(path).url.path == "/login"


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/redoc"])
def test_what_is_not_a_page_is_not_there(desk, path):
    app, *_ = desk
    assert Browser(app).get(path).status_code == 404


@pytest.mark.parametrize("path", ["/static/../main.py", "/static//etc/passwd", "/static/style.css"])
def test_no_other_file_is_served(desk, path):
    """Asked as it stands: a client would take the dots out of it first."""
    app, *_ = desk
    coming = [{"type": "http.request", "body": b"", "more_body": False}]
    sent = []

    async def receive():
        return coming.pop() if coming else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [], "root_path": ""}
    asyncio.run(app(scope | {"raw_path": path.encode(), "scheme": "http", "http_version": "1.1"}, receive, send))
    assert sent[0]["status"] == (200 if path.endswith("style.css") else 404)


def test_every_answer_has_the_headers(desk):
    _, ann, *_ = desk
    for path in ("/", "/nothing", "/static/style.css", "/login"):
        found = ann.get(path)
        assert all(found.headers[name] == value for name, value in security.HEADERS.items()), path


def test_a_manager_of_nothing_sees_no_project_of_others_as_their_work(store):
    add_project(store)
    add_user(store, "boss", role="manager")
    boss = Browser(create_app(store), "boss")
    assert boss.get("/projects/1").status_code == 404 and boss.get("/manage/1").status_code == 200
    with store.read() as connection:
        assert connection.get_one(Project, 1).turn == 0
