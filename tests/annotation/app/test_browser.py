"""The whole path in a real browser: a manager invites, three people rank eight items, one loses the network midway.

Needs Chromium (Debian: apt-get install chromium) and playwright; skipped with the reason where one of them is missing.
`pictures.py` draws the pages for docs/ in the same way.
"""

import json
import re
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from posttrain.annotation.store import projects
from posttrain.annotation.store.database import open_store
from posttrain.annotation.store.tables import Completion, Item
from tests.annotation.worlds import PASSWORD, add_project, add_user
from tests.conftest import CHROMIUM

playwright = pytest.importorskip("playwright.sync_api", reason="the browser's tests need playwright")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="the browser's tests need Chromium; on Debian: apt-get install chromium"),
]

TEXTS = ["It is **12**: 17 - 9 is 8, and 8 + 4 is 12.", "12", "4", "I do not know."]
ATTACK = (
    "<script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\"> [x](javascript:alert(1))"
)
ITEMS = 8


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Office:
    """A server over a store of its own, and browsers."""

    def __init__(self, folder, browser, height=1400, serve=()):
        self.serve = serve  # options of the command
        self.height = height  # of a window; in a high one nothing scrolls while a card is dragged
        self.folder, self.browser, self.port = folder, browser, free_port()
        self.url = f"http://localhost:{self.port}"
        self.store = str(folder / "annotation.db")
        rows = [
            {
                "item": f"q{n}",
                "prompt": "What is 17 - 9 + 4?" if n else ATTACK,
                "completions": [
                    {"text": text, "model": f"model {i}"} for i, text in enumerate([*TEXTS, ATTACK][n % 2 :][:4])
                ],
            }
            for n in range(ITEMS)
        ]
        (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.server = self.start()

    def command(self, *words):
        return [sys.executable, "-m", "posttrain", "annotate", *words, "--store", self.store]

    def start(self):
        server = subprocess.Popen(
            self.command("serve", "--port", str(self.port), *self.serve), stderr=subprocess.PIPE, text=True
        )
        self.said = []
        for line in server.stderr:
            self.said.append(line)
            if "serving" in line:
                break
        for _ in range(100):
            try:
                urllib.request.urlopen(f"{self.url}/login", timeout=5)
                return server
            except OSError:
                time.sleep(0.1)
        raise AssertionError("the server does not answer")

    def page(self, **options):
        page = self.browser.new_context(**{"viewport": {"width": 1000, "height": self.height}} | options).new_page()
        page.wrong = []
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.set_default_timeout(20_000)
        return page

    def enter(self, link, name):
        page = self.page()
        page.goto(link)
        page.fill("[name=name]", name)
        page.fill("[name=password]", PASSWORD)
        page.click("button.primary")
        page.wait_for_url(f"{self.url}/")
        return page

    def close(self):
        self.server.kill()
        self.server.wait()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def office(browser, tmp_path, request):
    found = Office(tmp_path, browser, serve=getattr(request, "param", ()))
    yield found
    found.close()
    for context in browser.contexts:
        context.close()


def numbers(page):
    return page.locator(".completion").evaluate_all("cards => cards.map((card) => Number(card.dataset.number))")


def drag(page, number, above):
    """Drag a card by its handle to just above another one."""
    card, target = (page.locator(f'.completion[data-number="{n}"]') for n in (number, above))
    card.locator(".handle").scroll_into_view_if_needed()
    handle, to = card.locator(".handle").bounding_box(), target.bounding_box()
    page.mouse.move(handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2)
    page.mouse.down()
    page.mouse.move(to["x"] + 40, to["y"] + 3, steps=4)
    page.mouse.up()


def by_drag(page, order):
    """Make this order with the mouse."""
    for place in range(len(order) - 2, -1, -1):
        if numbers(page).index(order[place]) != numbers(page).index(order[place + 1]) - 1:
            drag(page, order[place], order[place + 1])
    if page.locator("#keep").is_visible():
        page.click("#keep")
    assert numbers(page) == order
    return {"ranking": [[number] for number in order], "failed": []}


def choose(page, number):
    """By the arrow keys."""
    if page.evaluate("document.activeElement.dataset.number === undefined"):
        page.keyboard.press("ArrowDown")
    here = page.evaluate("[...document.activeElement.parentNode.children].indexOf(document.activeElement)")
    steps = numbers(page).index(number) - here
    for _ in range(abs(steps)):
        page.keyboard.press("ArrowDown" if steps > 0 else "ArrowUp")


def by_keys(page, order):
    """Make this order by the keyboard alone, fail the last, and tie the second with the first."""
    for place, number in enumerate(order, 1):
        choose(page, number)
        page.keyboard.press(str(place))
    page.keyboard.press("f")
    choose(page, order[1])
    page.keyboard.press("=")
    assert numbers(page) == order
    return {"ranking": [sorted(order[:2]), *[[n] for n in order[2:-1]]], "failed": order[-1:]}


def submit(page):
    """By the Enter key, and wait for the next page."""
    before = page.url
    page.keyboard.press("Enter")
    leave(page, before)


def leave(page, before):
    """Wait until another page is there."""
    page.wait_for_url(lambda url: url != before)


def rank_all(page, name, rank, *, offline_at=None):
    """Rank until nothing is left; returns what was done, by item."""
    done = {}
    page.click("text=Go on")
    while "/work/" in page.url:
        page.wait_for_load_state()
        assert page.title() != "hacked"
        order = sorted(numbers(page), key=lambda n: (n * 7 + len(done) * 3 + len(name)) % 5)
        done[page.url] = rank(page, order)
        if len(done) == offline_at:
            before = page.url
            page.context.set_offline(True)
            page.keyboard.press("Enter")
            page.wait_for_selector("text=there is no connection")
            page.wait_for_timeout(3500)  # it has tried again meanwhile
            assert page.url == before
            page.context.set_offline(False)
            leave(page, before)
        else:
            submit(page)
        assert page.wrong == []
    assert "All done" in page.text_content("main")
    return done


def said(office, *words):
    """What a command answers."""
    done = subprocess.run([*office.command(*words), "--json"], capture_output=True, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def fill(office):
    """Put the items before people."""
    found = said(office, "import", "--project", "helpful", "--dataset", str(office.folder / "items.jsonl"))
    assert found["items"] == ITEMS


def test_the_whole_path(office):
    boss = office.enter(re.search(r"by (\S+)", office.said[0])[1], "boss")
    boss.click("text=Manage")
    boss.fill("[name=name]", "helpful")
    boss.click("text=Create")
    fill(office)
    boss.reload()
    boss.fill("[name=uses]", "3")
    boss.click("text=Make a link")
    link = boss.input_value("#link")
    people = {name: office.enter(link, name) for name in ("ann", "ben", "cat")}
    done = {
        "ann": rank_all(people["ann"], "ann", by_drag),
        "ben": rank_all(people["ben"], "ben", by_keys, offline_at=7),
        "cat": rank_all(people["cat"], "cat", by_keys),
    }
    assert all(len(mine) == ITEMS for mine in done.values())

    path = office.folder / "out.jsonl"
    assert said(office, "export", "--project", "helpful", "--output", str(path))["rows"] == 3 * ITEMS
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 3 * ITEMS and len({(row["item"], row["annotator"]) for row in rows}) == 3 * ITEMS
    for name, mine in done.items():
        kept = [{"ranking": row["ranking"], "failed": row["failed"]} for row in rows if row["annotator"] == name]
        assert kept == list(mine.values())
    assert all(row["seconds"] > 0 and row["version"] == 1 for row in rows)

    boss.reload()
    boss.goto(f"{office.url}/manage/1")
    assert f"{3 * ITEMS} of {3 * ITEMS} judgements" in boss.text_content("main")
    assert said(office, "status")["projects"][0]["whole"] == ITEMS


@pytest.fixture
def page(office):
    """The page of an annotator who has been given the first item."""
    fill(office)
    link = said(office, "users", "--invite", "annotator", "--project", "helpful", "--url", office.url)["link"]
    page = office.enter(link, "ann")
    page.click("text=Go on")
    page.wait_for_load_state()
    return page


@pytest.mark.parametrize("again", ["the same page", "another one"])
def test_a_page_that_was_closed_before_the_answer_arrived_sends_it_when_one_is_opened(office, page, again):
    path, order = page.url, numbers(page)
    page.keyboard.press("o")
    office.close()  # the server is gone, by SIGKILL
    page.keyboard.press("Enter")
    page.wait_for_selector("text=there is no connection")
    context = page.context
    page.close()
    office.server = office.start()
    page = context.new_page()
    if again == "the same page":
        page.goto(path)
        page.wait_for_url(lambda url: url != path)
    else:
        page.goto(office.url)
        page.wait_for_selector("text=An answer that had not arrived is saved now. Look at it.")
        assert page.evaluate("Object.keys(localStorage).filter((key) => /^(pending|draft)/.test(key))") == []
    store = open_store(office.store)
    with store.read() as connection:
        (row,) = projects.rows(connection, projects.find(connection, "helpful"))
    store.close()
    assert row["ranking"] == [[number] for number in order]


def test_a_draft_outlives_the_page(page):
    order = numbers(page)
    page.locator(".completion").nth(2).focus()
    page.keyboard.press("1")
    page.keyboard.press("f")
    moved = [*order[:2], order[3], order[2]]
    assert numbers(page) == moved
    page.reload()
    assert numbers(page) == moved
    assert page.locator(".completion.failed").count() == 1
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: "/work/2" in url)
    page.keyboard.press("Enter")  # an order that nobody has looked at is no answer
    page.wait_for_selector("text=Put the answers in order first")
    page.keyboard.press("u")
    page.wait_for_url(lambda url: "/work/1" in url)
    assert numbers(page) == moved and page.inner_text("#submit") == "Change"
    page.keyboard.press("s")  # what is answered cannot be skipped
    assert page.locator("dialog[open]").count() == 0


def talk(office, project, *options, topic="Plan a trip to the sea.", name="ann"):
    """The page of an annotator who is to talk with a model."""
    row = {"item": "trip", "topic": topic}
    (office.folder / "topics.jsonl").write_text(json.dumps(row) + "\n")
    said(office, "import", "--project", project, "--dataset", str(office.folder / "topics.jsonl"), *options)
    link = said(office, "users", "--invite", "annotator", "--project", project, "--url", office.url)["link"]
    page = office.enter(link, name)
    page.click("text=Go on")
    page.wait_for_load_state()
    return page


@pytest.mark.model
@pytest.mark.parametrize("office", [("--model", "smollm2-135m-instruct", "--max-new-tokens", "12")], indirect=True)
def test_a_person_talks_with_a_model(office):
    (office.folder / "rules.txt").write_text("Do no harm.\nDo not lie.\n")
    page = talk(office, "attack", "--kind", "red-team", "--rules", str(office.folder / "rules.txt"))
    for turn, message in enumerate(("Where shall I go?", "And what shall I take with me?")):
        page.fill("[name=text]", message)
        page.context.set_offline(turn == 1)
        page.press("[name=text]", "Control+Enter")
        if turn == 1:
            page.wait_for_selector("text=there is no connection")
            page.context.set_offline(False)
        page.wait_for_selector(".completion", timeout=120_000)
        page.wait_for_load_state()  # a key pressed before the page's scripts have run is lost
        if turn == 1:
            page.locator("[name^=broken-]").nth(1).check()
        page.locator("h1, header").first.click()
        page.keyboard.press("1")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=What you say next")
        page.wait_for_load_state()
    page.keyboard.press("Escape")  # out of the text
    page.keyboard.press("u")
    page.wait_for_selector(".completion")
    page.wait_for_load_state()
    assert page.locator("[name^=broken-]").nth(1).is_checked() and page.inner_text("#submit") == "Change"
    page.locator("[name=choice]").nth(1).check(force=True)
    page.click("#submit")
    page.wait_for_selector("text=What you say next")
    page.click("#end button")
    page.wait_for_selector("text=All done")
    assert page.wrong == []

    path = office.folder / "out.jsonl"
    said(office, "export", "--project", "attack", "--output", str(path), "--history")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [len(row["choices"]) for row in rows] == [1, 2, 2] and [row["version"] for row in rows] == [1, 2, 3]
    first, last = rows[-1]["turns"]
    upper = [turn["shown"][0] for turn in (first, last)]
    choices = rows[-1]["choices"]
    assert [(one["better"], one["strength"]) for one in choices] == [(upper[0], 3), (upper[1], 2)]
    assert choices[1]["broken"][str(upper[1])] == [1] and first["taken"] == first["shown"][1]
    assert all(len(turn["replies"]) == 2 and turn["message"].endswith(("go?", "me?")) for turn in (first, last))
    pairs = office.folder / "pairs.jsonl"
    assert said(office, "export", "--project", "attack", "--to", "pairs", "--output", str(pairs))["rows"] == 2
    pair = json.loads(pairs.read_text().splitlines()[1])
    assert [message["role"] for message in pair["prompt"]] == ["user", "assistant", "user"]


PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}
KINDS = {"rank": 4, "compare": 2, "thumbs": 2, "score": 1, "steps": 1, "demonstrate": 1}  # answers to an item of each
FAINT = r"""() => {
  const numbers = (colour) => colour.match(/[\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = colour.map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = numbers(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] > 0.99) return colour.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const of = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !of.checkVisibility() || of.closest(":disabled, script, style")) continue;
    const both = [light(numbers(getComputedStyle(of).color).slice(0, 3)), light(ground(of))].sort((a, b) => b - a);
    const contrast = (both[0] + 0.05) / (both[1] + 0.05);
    if (contrast < 4.5) found.push([walk.currentNode.data.trim(), contrast]);
  }
  return found;
}"""
SMALL = """() => {
  const told = "button, input:not([type=hidden]), select, textarea, summary, .handle";
  const small = ({ width, height }) => Math.min(width, height) < 24;
  return [...document.querySelectorAll(told)]
    .filter((e) => e.checkVisibility() && small((e.closest("label") ?? e).getBoundingClientRect()))
    .map((e) => e.outerHTML.slice(0, 80));
}"""


def fits(page):
    """That everything on a page is as wide as the phone, can be read and be hit by a finger: WCAG 2.2, 1.4.3, 2.5.8."""
    page.wait_for_load_state()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360, page.url
    assert page.evaluate(FAINT) == [], page.url
    assert page.evaluate(SMALL) == [], page.url
    assert page.wrong == []


def log_in(page, office, name):
    page.goto(f"{office.url}/login")
    fits(page)
    page.fill("[name=name]", name)
    page.fill("[name=password]", PASSWORD)
    page.click("button.primary")
    page.wait_for_url(f"{office.url}/")
    fits(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_a_phone_and_can_be_read_in_light_and_dark(office, scheme):
    store = open_store(office.store)
    long = "A long word: " + "donaudampfschifffahrt" * 5 + " and `" + "code " * 30 + "`\n\n1. one\n2. two\n\n"
    long += "```\n" + "a line of code " * 20 + "\n```\n\n" + "| a long cell " * 20 + "|\n" + "|---" * 20 + "|\n"
    for kind, size in KINDS.items():
        completions = [Completion(number=number, text=f"{long} {number}") for number in range(size)]
        one = Item(name="q", prompt=[{"role": "user", "content": long}], completions=completions)
        attributes = ["helpful", "correct"] if kind == "score" else []
        add_project(store, kind, [one], kind=kind, attributes=attributes)
        add_user(store, f"ann of {kind}", kind)
    add_user(store, "boss of all", role="manager")
    store.close()
    for kind in KINDS:
        page = office.page(**PHONE, color_scheme=scheme)
        log_in(page, office, f"ann of {kind}")
        page.click("text=Go on")
        page.wait_for_url("**/work/*")
        fits(page)
        page.goto(f"{office.url}/projects/{list(KINDS).index(kind) + 1}/mine")
        fits(page)
        page.context.close()
    page = office.page(**PHONE, color_scheme=scheme)
    log_in(page, office, "boss of all")
    paths = ["manage", *(f"manage/{n}" for n in range(1, 7)), *(f"manage/{n}/items/{n}" for n in range(1, 6))]
    for path in (*paths, "nowhere"):
        assert page.goto(f"{office.url}/{path}").ok == (path != "nowhere")
        fits(page)


def test_cards_are_dragged_by_a_finger(office):
    fill(office)
    store = open_store(office.store)
    add_user(store, "ann", "helpful")
    store.close()
    page = office.page(**PHONE)
    log_in(page, office, "ann")
    page.click("text=Go on")
    page.wait_for_load_state()
    order = numbers(page)
    finger = page.context.new_cdp_session(page)
    handle, to = (page.locator(".completion").nth(n) for n in (1, 0))
    handle.scroll_into_view_if_needed()
    start, end = handle.locator(".handle").bounding_box(), to.bounding_box()
    x, y = start["x"] + start["width"] / 2, start["y"] + start["height"] / 2
    finger.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
    for part in (0.25, 0.5, 0.75, 1.0):
        at = {"x": x, "y": y + part * (end["y"] + 3 - y)}
        finger.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [at]})
    finger.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    assert numbers(page) == [order[1], order[0], *order[2:]]
