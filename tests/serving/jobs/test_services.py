"""Order of jobs, and their processes, with a stand-in for posttrain."""

import json
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.runs.processes import PROGRAM, born
from posttrain.serving.access import JobLimits, Keys
from posttrain.serving.jobs import processes
from posttrain.serving.jobs import services as module
from posttrain.serving.jobs.processes import environment, go, launch
from posttrain.serving.jobs.services import MOST_DEATHS, JobServices, after
from posttrain.serving.jobs.specification import Offered
from posttrain.serving.jobs.table import EXPORT, FAILED, QUEUED, RUNNING, SUCCEEDED, Job, Table

STUB = Path(__file__).with_name("stub.py")


# Order


class Order:
    """A table in which jobs begin and end, without processes."""

    def __init__(self, root):
        self.table, self.clock = Table(Path(root), JobLimits(queued_per_key=1000)), 0.0

    def submit(self, *owners):
        return [self.table.create(owner, lambda folder: {"command": "sft", "model": "tiny"}) for owner in owners]

    def begin(self, job):
        self.clock += 1.0
        return self.table.change(job, state=RUNNING, started=self.clock)

    def end(self, job):
        self.table.change(job, state=SUCCEEDED)

    def next(self):
        """The job that runs next, begun."""
        return self.begin(self.table.next())


@pytest.fixture
def order(tmp_path):
    return Order(tmp_path)


def test_an_owners_jobs_run_in_the_order_in_which_they_came(order):
    jobs = order.submit("a", "a", "a")
    assert [order.next().id for _ in jobs] == [job.id for job in jobs]


def test_who_runs_fewer_jobs_is_next_and_then_who_has_waited_longer(order):
    order.begin(order.submit("a")[0])
    order.submit("a", "b")
    assert order.next().owner == "b"
    done = [order.begin(job) for job in order.submit("c", "d", "c", "d")[:2]]
    for job in done:
        order.end(job)
    assert [order.next().owner for _ in range(3)] == ["c", "d", "a"]


def test_nothing_waits(order):
    assert order.table.next() is None
    (job,) = order.submit("a")
    assert order.table.next([job.id]) is None and order.table.next() == job


@settings(max_examples=10)
@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=15), st.integers(1, 3), st.integers(0, 2**32))
def test_who_has_nothing_running_waits_for_one_start_of_each_other_owner_at_most(owners, at_once, seed):
    """In whatever order jobs end."""
    chance, passed, running, starts = random.Random(seed), dict.fromkeys(owners, 0), [], []
    with tempfile.TemporaryDirectory() as root:
        order = Order(root)
        waiting = {job.id: job.owner for job in order.submit(*owners)}
        numbers = list(waiting)
        while waiting:
            if len(running) == at_once:
                order.end(running.pop(chance.randrange(at_once)))
            chosen = order.next()
            idle = {*waiting.values()} - {one.owner for one in running} - {chosen.owner}
            passed = {owner: passed[owner] + 1 if owner in idle else 0 for owner in passed}
            assert max(passed.values()) < len({*owners})
            del waiting[chosen.id]
            running.append(chosen)
            starts.append(numbers.index(chosen.id))
    for owner in {*owners}:  # and an owner's jobs keep their order
        mine = [number for number in starts if owners[number] == owner]
        assert mine == sorted(mine)


def test_one_who_floods_the_queue_delays_another_by_one_job_also_where_it_deletes_its_jobs(order):
    order.submit(*["flood"] * 10)
    for job in [order.next(), order.next()]:
        order.end(job)
        order.table.delete(job)
    order.submit("late", "late")
    owners = []
    for _ in range(4):
        job = order.next()
        owners.append(job.owner)
        order.end(job)
        order.table.delete(job)
    assert owners == ["late", "flood", "late", "flood"]
    with sqlite3.connect(order.table.root / "jobs.sqlite") as db:
        kept = db.execute("SELECT owner, count(*) FROM jobs WHERE state = 'deleted' GROUP BY owner").fetchall()
    assert kept == [("flood", 1), ("late", 1)]


def test_jobs_are_changed_by_several_threads_at_once(order):
    """Each change is whole: a job begins once, whoever asks."""
    from concurrent.futures import ThreadPoolExecutor

    (job,) = order.submit("a")
    with ThreadPoolExecutor(8) as pool:
        begun = list(pool.map(lambda _: order.table.change(job, QUEUED, state=RUNNING), range(32)))
        made = list(pool.map(lambda n: order.submit(f"owner {n}")[0].number, range(32)))
    assert len([one for one in begun if one]) == 1 and len({*made}) == 32


# How a job ended


CANCELLED_BY = {"cancelled": True, "reason": "cancelled"}
ENDED = f"{MOST_DEATHS} times without a new checkpoint, perhaps for want of memory"
DIED = {"saved": 4, "deaths": MOST_DEATHS - 1}


@pytest.mark.parametrize(
    ("about", "code", "said", "state", "why"),
    [
        ({}, 0, "", "succeeded", ""),
        (CANCELLED_BY, 0, "", "succeeded", ""),  # it was done before it was told
        (CANCELLED_BY, 143, "stopped by SIGTERM", "cancelled", ""),
        (CANCELLED_BY, -9, "", "cancelled", ""),
        (CANCELLED_BY, None, "", "cancelled", ""),
        ({"cancelled": True}, None, "", "cancelled", ""),
        ({"reason": "time"}, 143, "stopped", "failed", "it trained for 1.5 hours, which is the limit"),
        ({"reason": "log"}, 143, "", "failed", "its log grew too large"),
        ({}, 2, "--lr must be", "failed", "--lr must be"),
        (DIED, 1, "the loss is not finite", "failed", "the loss is not finite"),
        (DIED, 1, "", "failed", "exit code 1"),
        (
            DIED,
            -9,
            "old words",
            "failed",
            f"its process was ended by SIGKILL {ENDED}",
        ),
        (
            DIED,
            None,
            "old words",
            "failed",
            f"its process was ended {ENDED}",
        ),
    ],
)
def test_how_training_ended(about, code, said, state, why):
    job = Job("0", "a", "sft", "tiny", 0.0, state=RUNNING, **about)
    found = after(job, code, 4, said, 1.5, exported=False)
    assert found == {"stage": EXPORT, "outcome": state, "why": why, "deaths": 0}
    without = after(job, code, -1, said, 1.5, exported=False) if not about.get("deaths") else None
    if without and state != SUCCEEDED:
        assert without == {"state": state, "why": why}
    elif without:
        assert without == {"state": FAILED, "why": "its model could not be exported"}


@pytest.mark.parametrize("code", [-9, 1, 143, None])
def test_a_process_that_died_is_begun_again_until_it_has_died_without_a_new_checkpoint(code):
    job = Job("0", "a", "sft", "tiny", 0.0, state=RUNNING, saved=4)
    assert after(job, code, 4, "", 1.0, exported=False) == {"deaths": 1}
    last = Job("0", "a", "sft", "tiny", 0.0, state=RUNNING, saved=4, deaths=MOST_DEATHS - 1)
    assert after(last, code, 5, "", 1.0, exported=False) == {"deaths": 0}
    assert after(last, code, 4, "", 1.0, exported=False)["outcome"] == FAILED


@pytest.mark.parametrize(
    ("about", "code", "exported", "found"),
    [
        ({}, 0, True, {"state": "succeeded"}),
        ({"outcome": "cancelled"}, 0, True, {"state": "cancelled"}),
        ({}, -9, False, {"deaths": 1}),
        ({}, None, False, {"deaths": 1}),
        ({}, 2, False, {"state": "failed", "why": "the logprobs differ"}),
        ({"deaths": MOST_DEATHS - 1}, -9, False, {"state": "failed", "why": "the logprobs differ"}),
        ({"reason": "time"}, 143, False, {"state": "failed", "why": "the logprobs differ"}),
        ({"outcome": "cancelled"}, 2, False, {"state": "cancelled"}),
    ],
)
def test_how_an_export_ended(about, code, exported, found):
    job = Job("0", "a", "sft", "tiny", 0.0, state=RUNNING, stage=EXPORT, saved=4, **{"outcome": "succeeded"} | about)
    assert after(job, code, 4, "the logprobs differ", 1.0, exported=exported) == found


# Processes


class House:
    """A server's parts over a folder; `again` is the next server's, after the first one was killed."""

    def __init__(self, root, mode, **settings):
        self.root, self.mode, self.settings, self.said, self.services = root, mode, settings, [], None
        self.again()

    def again(self):
        if self.services:
            self.services.lock.release()  # as the end of its process does
        limits = JobLimits(**{"hours": 60.0 / 3600, "grace": 20.0} | self.settings)
        offered = Offered({"tiny": "tiny"}, hidden={"/models/secret-place": "tiny"})
        self.services = JobServices(
            self.root / "root",
            Keys(self.root / "keys.json"),
            offered,
            cache=self.root,
            program=(sys.executable, str(STUB), self.mode),
            limits=limits,
            report=self.said.append,
        )
        self.table = self.services.table

    def submit(self, owner="alice"):
        return self.table.create(owner, lambda folder: {"command": "sft", "model": "tiny"})

    def folder(self, job):
        return self.table.folder(job)

    def now(self, job):
        return self.table.get(job.owner, job.id)

    def starts(self, job):
        file = self.folder(job) / "starts"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def until(self, job, done, seconds=30):
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, (self.now(job), (self.folder(job) / "log.txt").read_text())
            self.services.tick()
            time.sleep(0.02)

    def ended(self, job):
        self.until(job, lambda: self.now(job).state not in ("queued", "running"))
        return self.now(job)

    def ready(self, job, starts=1):
        """Until the stand-in's start of this number has set itself up."""
        ready = self.folder(job) / "ready"
        self.until(job, lambda: len(self.starts(job)) == starts and ready.exists())
        ready.unlink()


@pytest.fixture
def house(tmp_path):
    houses = []

    def build(mode, **settings):
        houses.append(House(tmp_path, mode, **settings))
        return houses[-1]

    yield build
    for each in houses:
        for job in each.table.all():
            while not processes.clear(each.folder(job)):
                time.sleep(0.02)
        for child in each.services._children.values():
            child.wait()
        each.services.lock.release()


def alive(pid):
    return bool(born(pid))


def test_a_job_trains_and_its_model_is_exported(house):
    home = house("quick")
    job = home.submit()
    done = home.ended(job)
    assert (done.state, done.why, done.attempts) == ("succeeded", "", 1) and done.ended >= done.started > 0
    assert home.starts(job)[0][1:] == ["new", "--config", "job.toml", "--output", "run"]
    assert (home.folder(job) / "export/model.safetensors").read_bytes() == b"weights"
    assert (home.folder(job) / "export/README.md").read_text() == "from tiny"  # no path of the server's
    assert [line.split(": ")[1].split()[0] for line in home.said] == ["sft", "succeeded"]


def test_a_job_that_fails_says_why_without_control_characters(house):
    home = house("fails")
    job = home.submit()
    done = home.ended(job)
    assert (done.state, done.why) == ("failed", r"no such \x1b[31mthing")
    assert not (home.folder(job) / "export").exists()


@pytest.mark.parametrize("mode", ["breaks", "breaks twice"])
def test_of_a_job_that_fails_later_the_checkpoint_is_exported(house, mode):
    home = house(mode)
    job = home.submit()
    done = home.ended(job)
    assert (done.state, done.why) == ("failed", r"no such \x1b[31mthing")
    assert (home.folder(job) / "export/model.safetensors").exists() == (mode == "breaks")


def test_one_runs_at_a_time(house):
    home = house("waits")
    first, second = home.submit(), home.submit()
    home.ready(first)
    home.services.tick()
    assert [home.now(each).state for each in (first, second)] == ["running", "queued"]
    home.services.cancel(home.now(first))
    home.ready(second)
    assert [home.now(each).state for each in (first, second)] == ["cancelled", "running"]


def test_owners_take_turns(house):
    home = house("quick")
    jobs = [home.submit(owner) for owner in ("alice", "alice", "alice", "bob")]
    for job in jobs:
        home.ended(job)
    assert sorted(range(4), key=lambda n: home.now(jobs[n]).started) == [0, 3, 1, 2]


def test_a_job_that_is_cancelled_ends_by_itself_and_what_it_saved_is_exported(house):
    home = house("waits")
    job = home.submit()
    home.ready(job)
    home.services.cancel(home.now(job))
    done = home.ended(job)
    assert (done.state, done.cancelled) == ("cancelled", True)
    assert (home.folder(job) / "export/model.safetensors").exists()


def test_a_job_that_waits_is_cancelled_at_once(house):
    home = house("quick")
    job = home.submit()
    home.services.cancel(job)
    home.services.tick()
    assert home.now(job).state == "cancelled" and not home.starts(job)


def test_a_job_that_does_not_end_is_killed_with_all_its_processes(house):
    home = house("stubborn", grace=0.3)
    job = home.submit()
    home.ready(job)
    child = int((home.folder(job) / "child").read_text())
    assert alive(child)
    home.services.cancel(home.now(job))
    assert home.ended(job).state == "cancelled"
    assert not (home.folder(job) / "ready").exists()
    assert not alive(child)


def test_processes_that_training_left_behind_are_ended(house):
    home = house("quick")
    stub = STUB.read_text().replace('mode == "stubborn":\n        child', "True:\n        child")
    script = home.root / "leaves.py"
    script.write_text(stub)
    home.services.program = (sys.executable, str(script), "quick")
    job = home.submit()
    assert home.ended(job).state == "succeeded"
    assert not alive(int((home.folder(job) / "child").read_text()))


def test_a_job_has_a_time_limit(house):
    home = house("waits", hours=3.0 / 3600)  # which Python takes to start, at most
    job = home.submit()
    done = home.ended(job)
    assert done.state == "failed" and "which is the limit" in done.why
    assert (home.folder(job) / "export/model.safetensors").exists()


def test_a_log_has_a_limit(house, monkeypatch):
    monkeypatch.setattr(module, "LOG_LIMIT", 100_000)
    home = house("prints")
    job = home.submit()
    done = home.ended(job)
    assert (done.state, done.why) == ("failed", "its log grew too large")


def test_a_log_that_is_full_does_not_end_the_export(house, monkeypatch):
    home = house("exports slowly")
    job = home.submit()
    home.until(job, lambda: (home.folder(job) / "export/config.json").exists())
    monkeypatch.setattr(module, "LOG_LIMIT", -1)
    home.services.tick()
    assert home.now(job).stage == EXPORT and not home.now(job).reason


def test_a_job_whose_process_cannot_be_started_is_started_later(house, monkeypatch):
    home = house("quick")
    job, started = home.submit(), []

    def fails(*args):
        started.append(args)
        raise OSError(12, "Cannot allocate memory")

    now = [time.time() - 1000]
    with monkeypatch.context() as patch:
        patch.setattr(module, "launch", fails)
        patch.setattr(module.time, "time", lambda: now[0])
        for _ in range(7):
            home.services.tick()
            home.services.tick()  # at once: it waits
            now[0] += 10.0
    assert len(started) == 7 and home.now(job) == job
    assert home.ended(job).state == "succeeded" and home.now(job).attempts == 1


def test_a_job_whose_process_can_never_be_started_fails_and_holds_up_no_other(house, monkeypatch):
    home = house("quick")
    job, other = home.submit(), home.submit("bob")
    begin, now = module.launch, [time.time()]

    def start(words, folder, *args):
        if folder == home.folder(job):
            raise OSError(28, "No space left on device")
        return begin(words, folder, *args)

    monkeypatch.setattr(module, "launch", start)
    monkeypatch.setattr(module.time, "time", lambda: now[0])
    assert home.ended(other).state == "succeeded" and home.now(job) == job
    for _ in range(100):
        home.services.tick()
        if home.now(job).state == "failed":
            break
        now[0] += 10.0
    assert home.now(job).why == "its process could not be started: OSError: [Errno 28] No space left on device"
    assert 600 <= now[0] - home.now(job).created < 640


def test_a_process_that_is_not_in_the_table_does_nothing(house, monkeypatch):
    """Such as where the disk is full, or the server is killed in between."""
    home = house("waits")
    job = home.submit()
    full = sqlite3.OperationalError("database or disk is full")
    with monkeypatch.context() as patch:
        patch.setattr(home.table, "change", lambda *args, **more: (_ for _ in ()).throw(full))
        home.services.tick()
    assert home.now(job) == job and not home.starts(job)
    child = launch([sys.executable, str(STUB), "quick", "sft"], home.folder(job), home.root)
    child.stdin.close()  # as the end of the server does
    assert child.wait(10) == 1 and not home.starts(job)
    child = launch([sys.executable, str(STUB), "quick", "sft"], home.folder(job), home.root)
    go(child, begins=True)
    assert child.wait(30) == 0 and int(home.starts(job)[0][0]) == child.pid


def test_a_job_has_nothing_of_the_servers_environment(house, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret-1")
    monkeypatch.setenv("OPENAI_API_KEY", "secret-2")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    home = house("quick")
    job = home.submit()
    home.ended(job)
    found = json.loads((home.folder(job) / "environment.json").read_text())
    assert "secret" not in " ".join(found.values()) and found["OMP_NUM_THREADS"] == "1"
    assert found["HOME"] == str(home.folder(job)) and found["HF_HUB_OFFLINE"] == "1"
    assert not found.keys() & {"HF_TOKEN", "OPENAI_API_KEY", "USER", "LOGNAME"}


def test_modules_are_not_looked_for_in_a_jobs_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["src", "", "/lib"]))
    assert environment(tmp_path, tmp_path)["PYTHONPATH"] == os.pathsep.join([str(tmp_path / "src"), "/lib"])
    assert "-P" in PROGRAM


def test_a_job_has_no_open_file_of_the_servers(house, tmp_path):
    secret = os.open(tmp_path / "secret", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(secret, True)
    home = house("waits")
    job = home.submit()
    home.ready(job)
    open_files = [os.readlink(path) for path in Path(f"/proc/{home.starts(job)[0][0]}/fd").iterdir()]
    os.close(secret)
    assert not [path for path in open_files if path.endswith(("secret", ".sqlite", "root/lock"))]


# When a server is killed


def test_a_job_goes_on_when_the_server_is_killed_and_the_next_one_finds_it(house):
    home = house("waits")
    job = home.submit()
    home.ready(job)
    home.again()
    for _ in range(3):
        home.services.tick()
    assert home.now(job).state == "running" and alive(home.now(job).pid)
    assert os.getsid(int(home.starts(job)[0][0])) != os.getsid(0)  # the terminal's Ctrl-C does not reach it
    assert len(home.starts(job)) == 1
    home.services.cancel(home.now(job))
    assert home.ended(job).state == "cancelled" and len(home.starts(job)) == 1


def test_a_job_that_ended_while_there_was_no_server_is_ended_by_the_next_one(house):
    home = house("quick")
    job = home.submit()
    home.services.tick()
    pid = home.now(job).pid
    end = time.monotonic() + 20
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    home.again()
    assert home.now(job).state == "running"
    done = home.ended(job)
    assert done.state == "succeeded" and (home.folder(job) / "export/model.safetensors").exists()
    assert [start[1] for start in home.starts(job)] == ["new", "resumed"]  # a run that is done has nothing to do


def kill_all(home, job):
    """Kill a job's process, as its server, which does not see it, is."""
    home.again()
    pid = home.now(job).pid
    os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 10
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.01)
    (home.folder(job) / "alone").unlink()


def test_a_job_whose_processes_were_killed_is_resumed_from_its_checkpoint(house):
    home = house("waits")
    job = home.submit()
    home.ready(job)
    kill_all(home, job)
    home.ready(job, starts=2)
    assert [start[1:] for start in home.starts(job)][1] == ["resumed", "--resume", "run"]
    assert home.now(job).attempts == 2


def test_a_job_that_had_no_checkpoint_begins_anew(house):
    home = house("silent")
    job = home.submit()
    home.ready(job)
    (home.folder(job) / "run").mkdir()
    (home.folder(job) / "run/config.toml").write_text("torn")
    kill_all(home, job)
    home.ready(job, starts=2)
    assert home.starts(job)[1][1] == "new" and not (home.folder(job) / "run").exists()


def test_no_second_start_of_a_job_meets_the_first(house):
    home = house("waits")
    job = home.submit()
    home.services.tick()
    home.again()  # Python takes longer to start
    home.services.tick()
    home.ready(job)
    assert len(home.starts(job)) == 1 and home.now(job).attempts == 1


def test_processes_of_a_start_that_nobody_knows_of_are_ended_before_the_next(house):
    """They are found by their environment, wherever they have got to: this one has left its group and session."""
    home = house("waits")
    job = home.submit()
    child = launch(["setsid", sys.executable, str(STUB), "stubborn", "sft"], home.folder(job), home.root)
    go(child, begins=True)
    end = time.monotonic() + 20
    while not (home.folder(job) / "ready").exists() and time.monotonic() < end:
        time.sleep(0.02)
    (home.folder(job) / "ready").unlink()
    child.wait()  # setsid is gone
    left = [int(home.starts(job)[0][0]), int((home.folder(job) / "child").read_text())]
    assert all(map(alive, left))
    (home.folder(job) / "alone").unlink()
    home.table.change(job, state=RUNNING)
    home.ready(job, starts=2)
    assert not any(map(alive, left))


def test_an_export_that_is_killed_is_begun_again(house):
    for again in (False, True):
        home = house("exports slowly")
        job = home.submit()
        exports = home.folder(job) / "exports"
        home.until(job, (home.folder(job) / "export/config.json").exists)  # the first export's last word
        if again:
            home.again()
        os.kill(int(exports.read_text()), signal.SIGKILL)
        done = home.ended(job)
        assert (done.state, done.why, done.attempts) == ("succeeded", "", 1)
        assert len(exports.read_text().splitlines()) == 2
        assert (home.folder(job) / "export/model.safetensors").read_bytes() == b"weights"
        assert not (home.folder(job) / "export/config.json").exists()
        home.services.lock.release()


def test_training_that_dies_by_itself_is_resumed(house):
    home = house("dies")
    job = home.submit()
    done = home.ended(job)
    assert (done.state, done.attempts) == ("succeeded", 3)
    assert [start[1] for start in home.starts(job)] == ["new", "resumed", "resumed"]


def test_a_job_whose_processes_are_killed_again_and_again_fails(house):
    home = house("waits")
    job = home.submit()
    home.ready(job)
    job = home.table.change(job, deaths=MOST_DEATHS - 1, saved=1)
    kill_all(home, job)
    done = home.ended(job)
    assert done.state == "failed" and f"ended {MOST_DEATHS} times" in done.why


def test_a_job_that_was_to_end_when_its_processes_were_killed_does_not_train_again(house):
    home = house("waits")
    job = home.submit()
    home.ready(job)
    kill_all(home, job)
    home.services.cancel(home.now(job))
    assert home.ended(job).state == "cancelled" and len(home.starts(job)) == 1
    assert (home.folder(job) / "export/model.safetensors").exists()


def test_what_is_no_process_of_the_job_is_not_killed(house):
    home = house("waits")
    job = home.submit()
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    try:  # a number that another process has by now
        home.table.change(job, state=RUNNING, pid=child, born="earlier", cancelled=True, reason="cancelled", told=1.0)
        home.services.tick()
        time.sleep(0.05)
        assert alive(child) and home.now(job).state == "cancelled"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
