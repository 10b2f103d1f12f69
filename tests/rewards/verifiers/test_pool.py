import asyncio
import json
import os
import threading
import time

import pytest

from posttrain.rewards import MathVerifier
from posttrain.rewards.verifiers import math, workers
from posttrain.rewards.verifiers.workers import (
    TIME_LIMITS,
    TIMED_OUT,
    Worker,
    Workers,
    WorkerTimeout,
    together,
    workers_for,
)
from tests.rewards.episodes import episode, scores

HERE = __name__


def work(question):
    """What the worker processes of these tests run."""
    if question is None:
        return None
    what, argument = question
    if what == "sleep":
        time.sleep(argument)
    return os.getpid() if what == "pid" else argument


@pytest.fixture(autouse=True)
def forgotten():
    yield
    TIME_LIMITS.keep_in(None)


def test_no_more_processes_work_than_there_are_places(monkeypatch):
    busy, most, lock = [0], [0], threading.Lock()

    def ask(self, question, timeout_s):
        with lock:
            busy[0] += 1
            most[0] = max(most[0], busy[0])
        time.sleep(0.02)
        with lock:
            busy[0] -= 1
        return question

    monkeypatch.setattr(Worker, "ask", ask)
    two, answers = Workers("a:b", 2), {}
    threads = [threading.Thread(target=lambda i=i: answers.update({i: two.ask(i, 5)})) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {i: i for i in range(12)} and most[0] == 2


def test_a_process_is_used_again():
    two = Workers(f"{HERE}:work", 2)
    assert two.ask(("pid", 1), 5) == two.ask(("pid", 2), 5) != os.getpid()


def test_a_question_that_took_too_long_is_not_asked_again_also_after_the_run_was_resumed(tmp_path, monkeypatch):
    asked = []

    def ask(self, question, timeout_s):
        asked.append(question)
        if question == "slow":
            raise WorkerTimeout("no answer")
        return question

    monkeypatch.setattr(Worker, "ask", ask)
    kept = tmp_path / "timeouts.jsonl"
    kept.write_text('{"timed_out": "0')  # a line that was being written when the run was killed
    TIME_LIMITS.keep_in(kept)
    for _ in range(2):
        with pytest.raises(WorkerTimeout):
            Workers("a:b", 1).ask("slow", 5)
        assert Workers("a:b", 1).ask("quick", 5) == "quick"
    assert asked == ["slow", "quick", "quick"]
    TIME_LIMITS.keep_in(None)
    TIME_LIMITS.keep_in(kept)  # resumed, in another process
    with pytest.raises(WorkerTimeout, match="asked before"):
        Workers("a:b", 1).ask("slow", 5)
    assert asked == ["slow", "quick", "quick"] and len(kept.read_text().splitlines()) == 2
    assert Workers("a:b", 1).ask("other", 5) == "other"
    with pytest.raises(WorkerTimeout):
        Workers("a:b", 1).ask("slow", 6)  # another limit is another question
    assert asked[-2:] == ["other", "slow"]
    assert set(json.loads(kept.read_text().splitlines()[-1])) == {"timed_out"}


def test_the_same_question_is_kept_once(tmp_path):
    TIME_LIMITS.keep_in(tmp_path / "timeouts.jsonl")
    for _ in range(3):
        TIME_LIMITS.add("a")
    assert (tmp_path / "timeouts.jsonl").read_text() == '{"timed_out": "a"}\n'


def test_together_keeps_the_order_and_raises_the_first_error(monkeypatch):
    monkeypatch.setattr(workers, "size", lambda: 3)

    def slower_at_first(i):
        time.sleep(0.02 * (4 - i % 4))
        return i * i

    assert asyncio.run(together(slower_at_first, range(9))) == [i * i for i in range(9)]
    assert asyncio.run(together(slower_at_first, [])) == []

    def fails(i):
        if i == 0:
            time.sleep(0.05)
        if i < 3:
            raise ValueError(str(i))
        return i

    with pytest.raises(ValueError, match="0"):
        asyncio.run(together(fails, range(5)))


def test_sixty_towers_of_powers_are_refused_without_being_asked_about(monkeypatch):
    monkeypatch.setattr(math, "workers_for", lambda target: pytest.fail("asked"))
    episodes = [episode(r"\boxed{9^{9^{9^9}}}", "5", id=str(i)) for i in range(60)]
    got = scores(MathVerifier(), episodes)
    assert all(one.unparsed and one.explanation.startswith("too large") for one in got)


def test_a_batch_of_hangs_is_unparsed_and_the_run_goes_on(monkeypatch):
    def ask(self, question, timeout_s):
        raise WorkerTimeout("no answer")

    monkeypatch.setattr(Worker, "ask", ask)
    episodes = [episode(rf"\boxed{{x+{i}}}", "y", id=str(i)) for i in range(8)]
    got = scores(MathVerifier(), episodes)
    assert all(one.unparsed and one.value == 0 and one.explanation.startswith(TIMED_OUT) for one in got)


def test_one_set_of_workers_per_target():
    assert workers_for("a:b") is workers_for("a:b") is not workers_for("a:c")
