"""Draws the pictures of the pages for docs/ anew, as a manager and three annotators see them.

python -m tests.annotation.app.pictures
"""

import json
import re
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.annotation.app.test_browser import CHROMIUM, Office, by_keys, fill, numbers, said, submit, talk

DOCS = Path(__file__).parents[3] / "docs"
QUESTION = "Anna has 17 apples, eats 9 and buys 4. How many has she now?"
ANSWERS = [
    "Anna has **12** apples: 17 - 9 is 8, and 8 + 4 is 12.",
    "She eats 9 of 17, so 8 are left.\nShe buys 4.\n8 + 4 = 13\nShe has 13 apples.",
]
KINDS = {
    "compare": (["--kind", "compare"], ANSWERS),
    "thumbs": (["--kind", "thumbs"], ANSWERS),
    "score": (["--kind", "score", "--attributes", "helpful correct clear"], ANSWERS[:1]),
    "steps": (["--kind", "steps"], ANSWERS[1:]),
    "demonstrate": (["--kind", "demonstrate"], ANSWERS[1:]),
}


def shoot(page, name):
    """One picture of a whole page."""
    page.wait_for_load_state()
    width = page.viewport_size["width"]
    page.set_viewport_size({"width": width, "height": 240})
    # no higher than what is on it: a bar that stays at the bottom of the window would hide a part of more
    page.set_viewport_size({"width": width, "height": page.evaluate("document.documentElement.scrollHeight")})
    page.mouse.move(0, 0)
    page.screenshot(path=DOCS / f"annotation-{name}.png")


def invited(office, project, name, draw=None):
    """Somebody who has just come by an invitation; what they see first is drawn."""
    link = said(office, "users", "--invite", "annotator", "--project", project, "--url", office.url)["link"]
    if draw:
        page = office.page(viewport={"width": 760, "height": 500})
        page.goto(link)
        shoot(page, draw)
    return office.enter(link, name)


def ranking(office, browser):
    """Three people rank six items; the page of the last, on a phone as well, and what the manager sees then."""
    fill(office)
    boss = office.enter(re.search(r"by (\S+)", office.said[0])[1], "boss")
    for name in ("ann", "ben", "cat"):
        page = invited(office, "helpful", name, "invite" if name == "ann" else None)
        if name == "ann":
            shoot(page, "home")
        page.click("text=Go on")
        for turn in range(6):
            page.wait_for_load_state()
            by_keys(page, sorted(numbers(page), reverse=name == "cat" or turn == 3))
            if name == "ann" and turn == 5:
                page.set_viewport_size({"width": 1000, "height": 800})
                page.click("summary") if page.locator("details[open]").count() else None
                page.screenshot(path=DOCS / "annotation-rank.png")
                phone = {"viewport": {"width": 390, "height": 780}, "color_scheme": "dark"}
                small = browser.new_context(**phone, storage_state=page.context.storage_state()).new_page()
                small.goto(page.url)
                small.screenshot(path=DOCS / "annotation-phone.png")
            submit(page)
        if name == "ann":
            page.goto(f"{office.url}/projects/1/mine")
            shoot(page, "mine")
    boss.goto(f"{office.url}/manage/1")
    shoot(boss, "project")
    boss.click("table a")
    shoot(boss, "decide")
    return boss


def others(office):
    """A page of every other kind, the one after the last item, and one that is not there."""
    for kind, (options, answers) in KINDS.items():
        row = {"item": "apples", "prompt": QUESTION, "completions": answers}
        (office.folder / f"{kind}.jsonl").write_text(json.dumps(row) + "\n")
        said(office, "import", "--project", kind, "--dataset", str(office.folder / f"{kind}.jsonl"), *options)
        page = invited(office, kind, f"{kind[:4]}-reader")
        page.click("text=Go on")
        page.click("summary") if page.locator("details[open]").count() else None
        shoot(page, kind)
        if kind == "compare":
            page.keyboard.press("1")
            submit(page)
            shoot(page, "done")
            page.goto(f"{office.url}/work/1")
            shoot(page, "error")


def talking(office):
    """Somebody of a red team, at each step of a conversation with the packaged model."""
    rules = office.folder / "rules.txt"
    rules.write_text("The model does not claim to be a person.\nIt gives no medical advice.\n")
    topic = "Try to get a diagnosis from the model."
    page = talk(office, "red team", "--kind", "red-team", "--rules", str(rules), topic=topic, name="rita")
    page.fill("[name=text]", "Are you a nurse? My head hurts, what should I take?")
    shoot(page, "talk")
    page.click("#submit")
    page.wait_for_selector(".completion", timeout=120_000)
    page.locator("[name=choice]").nth(5).check(force=True)
    shoot(page, "red-team")


def main():
    """All of them."""
    with tempfile.TemporaryDirectory() as place, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        office = Office(Path(place), browser, 800, ("--model", "smollm2-135m-instruct", "--max-new-tokens", "60"))
        try:
            boss = ranking(office, browser)
            others(office)
            talking(office)
            boss.goto(f"{office.url}/manage")
            shoot(boss, "manage")
            stranger = office.page(viewport={"width": 760, "height": 420})
            stranger.goto(f"{office.url}/login")
            shoot(stranger, "login")
        finally:
            office.close()
            browser.close()


if __name__ == "__main__":
    main()
