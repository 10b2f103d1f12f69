"""Many annotators at once: how fast the pages answer, and whether anything is lost, also when the server is killed.

    python benchmarks/annotate.py                                # fifty for two minutes
    python benchmarks/annotate.py --seconds 30 --kill            # the same, and SIGKILL to the server half-way
    python benchmarks/annotate.py --judged 5000 --managers 5     # managers watch a project with 5,000 judgements

A server of its own on loopback, over an SQLite file in a temporary folder. Every annotator is a thread: next item,
think, submit, and so on, as a browser does; what fails is sent again with the same name until it is acknowledged. In
the end every acknowledged judgement must be in the store once, with the ranking that was sent. With --judged the
project has judgements before they begin, and the manager's page is timed first with nobody else there: alone, and five
at once; with --managers so many load it again and again while the annotators work. Prints one line of JSON; exits 1 if
a judgement was lost or doubled, or without --kill a request failed.
"""

import argparse
import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from urllib.parse import urlencode

from sqlalchemy import select
from sqlalchemy.orm import Session

from posttrain.annotation.store import people, projects
from posttrain.annotation.store.database import open_store
from posttrain.annotation.store.tables import Assignment, Completion, Item, Judgement, User

KINDS = ("next", "page", "submit", "manager")
PASSWORD = "benchmark password"
HIDDEN = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)"')


class Annotator(threading.Thread):
    """One person's browser."""

    def __init__(self, port: int, name: str, think: tuple[float, float], inside: threading.Barrier) -> None:
        super().__init__(daemon=True)
        self.port, self.name_, self.think, self.inside = port, name, think, inside
        self.until = float("inf")  # when to stop; set once all are inside
        self.draws = random.Random(name)
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.sent: dict[str, list[list[int]]] = {}  # by the name of the sending, of what was acknowledged
        self.failed: list[str] = []
        self.cookie = ""
        self.line: http.client.HTTPConnection | None = None

    def ask(self, kind: str, path: str, fields: dict[str, str] | None = None) -> tuple[int, str, str]:
        """One request: status, where to, text. What does not arrive is noted and asked again."""
        body = urlencode(fields) if fields else None
        headers = {"cookie": self.cookie, "accept": "application/json" if kind == "submit" else "text/html"}
        if body:
            headers["content-type"] = "application/x-www-form-urlencoded"
        while True:
            began = time.perf_counter()
            try:
                self.line = self.line or http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
                self.line.request("POST" if body else "GET", path, body, headers)
                response = self.line.getresponse()
                text = response.read().decode()
                if response.status >= 400:
                    raise OSError(f"{kind} {response.status} {text[:80]}")
            except (OSError, http.client.HTTPException) as problem:
                self.failed.append(f"{type(problem).__name__} {problem}")
                self.line = None
                if time.time() > self.until + 60:
                    raise
                time.sleep(0.2)
                continue
            self.seconds[kind].append(time.perf_counter() - began)
            if cookie := response.getheader("set-cookie"):
                self.cookie = cookie.split(";")[0]
            return response.status, response.getheader("location") or "", text

    def come_in(self) -> None:
        """Log in, wait for the others, and begin within a while, as people do."""
        self.ask("login", "/login", {"name": self.name_, "password": PASSWORD})
        self.inside.wait()
        time.sleep(self.draws.uniform(0.0, self.think[1]))

    def run(self) -> None:
        self.come_in()
        while time.time() < self.until:
            _, path, _ = self.ask("next", "/projects/1")
            if not path:
                return
            _, _, page = self.ask("page", path)
            form = dict(HIDDEN.findall(page))
            time.sleep(self.draws.uniform(*self.think))
            order = [[number] for number in self.draws.sample(range(4), 4)]
            answer = json.dumps({"ranking": order})
            self.ask("submit", path, form | {"answer": answer, "seconds": "1"})
            self.sent[form["sending"]] = order


class Manager(Annotator):
    """One manager's browser, which loads the project's page again and again."""

    def run(self) -> None:
        self.come_in()
        while time.time() < self.until:
            self.ask("manager", "/manage/1")
            time.sleep(self.draws.uniform(*self.think))


def fill(store_path: str, people_: int, items: int, judged: int, managers: int) -> None:
    """Make the people, with one password's work, the items, and judgements of the first of them."""
    store = open_store(store_path)
    with store.write() as connection:
        project = projects.create(connection, "load", annotators_per_item=3)
        secret = people.invite(connection, "annotator", project=project.id, uses=people_)
        kept = people.sealed(PASSWORD)
        for number in range(people_):
            people.accept(connection, secret, f"person {number}", kept)
        secret = people.invite(connection, "manager", uses=max(1, managers))
        for number in range(managers):
            people.accept(connection, secret, f"manager {number}", kept)
        projects.add_items(connection, project, [item_of(number) for number in range(items)])
        connection.flush()
        judge(connection, judged)
    store.close()


def item_of(number: int) -> Item:
    """A question with four long answers."""
    texts = [Completion(number=n, text=f"answer {n} " * 40, model=f"model {n}") for n in range(4)]
    return Item(name=f"q{number}", prompt=[{"role": "user", "content": f"question {number}"}], completions=texts)


def judge(connection: Session, judged: int) -> None:
    """Three judgements of each of the first items, by people in turn: a shared order with errors."""
    draws = random.Random(0)
    users = list(connection.scalars(select(User.id).where(User.role == "annotator")))
    for number, item in enumerate(connection.scalars(select(Item).order_by(Item.id).limit((judged + 2) // 3))):
        for turn in range(min(3, judged - 3 * number)):
            order = sorted(range(4), key=lambda place: place + draws.gauss(0, 1.5))
            user = users[(3 * number + turn) % len(users)]
            given = Assignment(item_id=item.id, user_id=user, shown=[0, 1, 2, 3], state="done")
            answer = {"ranking": [[place] for place in order], "failed": []}
            sent = f"before {number} {turn}"
            given.judgements.append(Judgement(version=1, answer=answer, seconds=draws.uniform(5, 60), sent=sent))
            connection.add(given)
            item.given += 1


def watched(port: int, together: int, times: int) -> list[float]:
    """Seconds of the manager's page with nobody else there, loaded by `together` managers at once."""
    crowd = [Manager(port, f"manager {n}", (0.0, 0.0), threading.Barrier(1)) for n in range(together)]
    for one in crowd:
        one.ask("login", "/login", {"name": one.name_, "password": PASSWORD})
    for _ in range(times):
        threads = [threading.Thread(target=one.ask, args=("manager", "/manage/1")) for one in crowd]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [round(seconds, 3) for one in crowd for seconds in one.seconds["manager"]]


def serve(store: str, port: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "posttrain", "annotate", "serve", "--store", store, "--port", str(port)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    for line in server.stderr:
        if "serving" in line:
            break
    return server


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--annotators", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--think", type=float, nargs=2, default=(1.0, 3.0), help="seconds from page to answer")
    parser.add_argument("--judged", type=int, default=0, help="judgements that are there before")
    parser.add_argument("--managers", type=int, default=0, help="who load the manager's page, a second apart")
    parser.add_argument("--kill", action="store_true", help="SIGKILL to the server half-way, then start it again")
    options = parser.parse_args()
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        store = str(Path(folder) / "annotation.db")
        items = int(options.annotators * options.seconds) + options.judged // 3
        fill(store, options.annotators, items, options.judged, max(5, options.managers))
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        server = serve(store, port)
        time.sleep(1)
        pages = {str(n): watched(port, n, 3) for n in (1, 5)} if options.judged else {}
        inside = threading.Barrier(options.annotators + options.managers + 1)
        crowd = [Annotator(port, f"person {n}", options.think, inside) for n in range(options.annotators)]
        crowd += [Manager(port, f"manager {n}", (1.0, 1.0), inside) for n in range(options.managers)]
        for one in crowd:
            one.start()
        inside.wait()
        until = time.time() + options.seconds
        for one in crowd:
            one.until = until
        if options.kill:
            time.sleep(options.seconds / 2)
            server.kill()
            server.wait()
            server = serve(store, port)
        for one in crowd:
            one.join()
        server.kill()
        server.wait()
        found = judged(store)
    sent = {name: order for one in crowd for name, order in one.sent.items()}
    found = {name: order for name, order in found.items() if not name.startswith("before ")}
    lost = [name for name, order in sent.items() if found.get(name) != order]
    failed = [problem for one in crowd for problem in one.failed]
    times = {kind: sorted(t for one in crowd for t in one.seconds[kind]) for kind in KINDS}
    row = {
        "annotators": options.annotators,
        "seconds": options.seconds,
        "killed": options.kill,
        "judged before": options.judged,
        "managers": options.managers,
        "load average": load,
        "manager's page alone, seconds, by how many at once": pages,
        "acknowledged": len(sent),
        "in the store": len(found),
        "lost": len(lost),
        "failed requests": len(failed),
        "first failure": failed[0] if failed else None,
        "ms": {
            kind: {
                f"p{p}": round(1000 * seconds[min(len(seconds) - 1, len(seconds) * p // 100)], 1) for p in (50, 95, 99)
            }
            for kind, seconds in times.items()
            if seconds
        },
        "requests per second": round(sum(map(len, times.values())) / options.seconds, 1),
    }
    print(json.dumps(row))
    return 1 if lost or (failed and not options.kill) else 0


def judged(path: str) -> dict[str, list[list[int]]]:
    """What is in the store, by the name of the sending; raises if an annotator has judged an item twice."""
    store = open_store(path)
    with store.read() as connection:
        project = projects.find(connection, "load")
        rows = list(projects.rows(connection, project, history=True))
    store.close()
    assert len({(row["item"], row["annotator"]) for row in rows}) == len(rows), "an item was judged twice"
    return {row["sent"]: row["ranking"] for row in rows}


if __name__ == "__main__":
    sys.exit(main())
