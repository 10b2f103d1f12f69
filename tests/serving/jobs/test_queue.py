"""Order of jobs, and their processes, with a stand-in for posttrain."""

import json
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.recipes.jobs.serve import LINES
from posttrain.serving.jobs import store as module
from posttrain.serving.jobs import supervisor
from posttrain.serving.jobs.processes import GONE, ORPHANED, RUNS, Processes
from posttrain.serving.jobs.queue import MOST_ATTEMPTS, Queue, ended_as, next_job
from posttrain.serving.jobs.record import Job
from posttrain.serving.jobs.specification import Offered
from posttrain.serving.jobs.store import Store
from posttrain.serving.limits import JobLimits

STUB = Path(__file__).with_name("stub.py")


def lines(script, mode):
    """With a stand-in for posttrain."""
    return replace(LINES, program=(sys.executable, str(script), mode))


def job(number, owner, **about):
    return Job(f"{number:032x}", number, owner, "sft", "tiny", 0.0, **about)


# Order


def test_an_owners_jobs_run_in_the_order_in_which_they_came():
    assert next_job([job(2, "a"), job(1, "a"), job(3, "a")], [], {}).number == 1


def test_who_runs_fewer_jobs_is_next_and_then_who_has_waited_longer():
    waiting = [job(1, "a"), job(2, "b"), job(3, "c")]
    assert next_job(waiting, [job(8, "a")], {}).owner == "b"
    assert next_job(waiting, [], {"a": 3.0, "b": 2.0, "c": 1.0}).owner == "c"
    assert next_job(waiting, [job(8, "c"), job(9, "b")], {"a": 9.0, "b": 2.0, "c": 1.0}).owner == "a"


def test_nothing_waits():
    assert next_job([], [job(1, "a")], {}) is None


@settings(max_examples=50)
@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=30), st.integers(1, 3), st.integers(0, 2**32))
def test_who_has_nothing_running_waits_for_one_start_of_each_other_owner_at_most(owners, at_once, seed):
    """In whatever order jobs end."""
    chance, passed = random.Random(seed), dict.fromkeys(owners, 0)
    waiting, running, last, starts = [job(n, owner) for n, owner in enumerate(owners)], [], {}, []
    while waiting:
        if len(running) == at_once:
            running.pop(chance.randrange(at_once))
        chosen = next_job(waiting, running, last)
        idle = {one.owner for one in waiting} - {one.owner for one in running} - {chosen.owner}
        passed = {owner: passed[owner] + 1 if owner in idle else 0 for owner in passed}
        assert max(passed.values()) < len({*owners})
        waiting.remove(chosen)
        running.append(chosen)
        starts.append(chosen.number)
        last[chosen.owner] = float(len(starts))
    for owner in {*owners}:  # and an owner's jobs keep their order
        mine = [number for number in starts if owners[number] == owner]
        assert mine == sorted(mine)


def test_one_who_floods_the_queue_delays_another_by_one_job():
    waiting, last, order = [*(job(n, "flood") for n in range(100)), job(100, "late")], {"flood": 5.0}, []
    for turn in range(3):
        chosen = next_job(waiting, [], last)
        waiting.remove(chosen)
        last[chosen.owner] = 10.0 + turn
        order.append(chosen.owner)
    assert order == ["late", "flood", "flood"]


# How a job ended


@pytest.mark.parametrize(
    ("ended", "state", "why"),
    [
        ((0, "", "", 1, True), "succeeded", ""),
        ((0, "cancelled", "", 1, True), "succeeded", ""),  # it was done before it was told
        ((0, "", "the logprobs differ", 1, False), "failed", "the logprobs differ"),
        ((143, "cancelled", "stopped by SIGTERM", 1, True), "cancelled", ""),
        ((-9, "cancelled", "", 1, False), "cancelled", ""),
        ((143, "time", "stopped by SIGTERM", 1.5, True), "failed", "it trained for 1.5 hours, which is the limit"),
        ((143, "log", "", 1, True), "failed", "its log grew too large"),
        ((2, "", "--lr must be", 1, False), "failed", "--lr must be"),
        ((1, "", "", 1, False), "failed", "exit code 1"),
        ((-9, "", "old words", 1, False), "failed", "its process was ended by SIGKILL"),
    ],
)
def test_how_a_job_ended(ended, state, why):
    assert ended_as(*ended) == (state, why)


# Processes


class House:
    """A queue over a folder; `again` is the next server's, after the first one was killed."""

    def __init__(self, root, mode, **settings):
        self.root, self.mode, self.settings, self.said = root, mode, settings, []
        self.again()

    def again(self):
        about = {"seconds": 60.0, "grace": 20.0} | self.settings
        processes = Processes(self.root / "cache", **about, lines=lines(STUB, self.mode))
        self.store = Store(self.root / "jobs", JobLimits(), time.time)
        offered = Offered({"tiny": "tiny"}, hidden={"/models/secret-place": "tiny"})
        self.queue = Queue(self.store, processes, offered, 1, 1.0, self.said.append)

    def submit(self, owner="alice"):
        return self.store.create(owner, lambda folder: None, command="sft", model="tiny")

    def folder(self, job):
        return self.store.folder(job)

    def now(self, job):
        return self.store.get(job.owner, job.id)

    def starts(self, job):
        file = self.folder(job) / "starts"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def until(self, job, done, seconds=30):
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, (self.now(job), (self.folder(job) / "log.txt").read_text())
            self.queue.tick()
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
        for job in each.store.all():
            each.queue.processes.cancel(each.folder(job))
            for _ in range(300):
                if each.queue.processes.look(each.folder(job)) == GONE:
                    break
                each.queue.processes.kill_orphan(each.folder(job))
                time.sleep(0.02)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


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
    home.queue.tick()
    assert [home.now(each).state for each in (first, second)] == ["running", "queued"]
    home.queue.cancel(home.now(first))
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
    home.queue.cancel(home.now(job))
    done = home.ended(job)
    assert (done.state, done.cancelled) == ("cancelled", True)
    assert json.loads((home.folder(job) / "exit.json").read_text()) == {
        "code": 143,
        "why": "cancelled",
        "said": "",
        "exported": True,
    }


def test_a_job_that_waits_is_cancelled_at_once(house):
    home = house("quick")
    job = home.submit()
    home.queue.cancel(job)
    home.queue.tick()
    assert home.now(job).state == "cancelled" and not home.starts(job)


def test_a_job_that_does_not_end_is_killed_with_all_its_processes(house):
    home = house("stubborn", grace=0.3)
    job = home.submit()
    home.ready(job)
    child = int((home.folder(job) / "child").read_text())
    assert alive(child)
    home.queue.cancel(home.now(job))
    assert home.ended(job).state == "cancelled"
    assert json.loads((home.folder(job) / "trained.json").read_text())["code"] == -signal.SIGKILL
    assert not alive(child)


def test_processes_that_training_left_behind_are_ended(house):
    home = house("quick")
    stub = STUB.read_text().replace('mode == "stubborn":\n        child', "True:\n        child")
    script = home.root / "leaves.py"
    script.write_text(stub)
    home.queue.processes.lines = lines(script, "quick")
    job = home.submit()
    assert home.ended(job).state == "succeeded"
    assert not alive(int((home.folder(job) / "child").read_text()))


def test_a_job_has_a_time_limit(house):
    home = house("waits", seconds=3.0)  # which Python takes to start, at most
    job = home.submit()
    done = home.ended(job)
    assert done.state == "failed" and "which is the limit" in done.why
    assert (home.folder(job) / "export/model.safetensors").exists()


def test_a_log_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "LOG_LIMIT", 100_000)
    for name in ("alone", "starts"):
        (tmp_path / name).unlink(missing_ok=True)
    here, lock = Path.cwd(), os.open(tmp_path / "lock", os.O_CREAT)
    try:
        os.chdir(tmp_path)
        words = [sys.executable, str(STUB), "prints", "sft"]
        assert supervisor._run(tmp_path, words, lock, 60, 20) == {"code": 143, "why": "log"}
    finally:
        os.chdir(here)
        os.close(lock)


def test_a_log_that_is_full_does_not_end_the_export(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "LOG_LIMIT", 1000)
    (tmp_path / supervisor.LOG).write_bytes(b"." * 1001)
    lock = os.open(tmp_path / "lock", os.O_CREAT)
    try:
        words = [sys.executable, "-c", "import time; time.sleep(0.5)"]
        assert supervisor._run(tmp_path, words, lock, 60, 1, cancels=False) == {"code": 0, "why": ""}
    finally:
        os.close(lock)


def test_a_job_whose_process_cannot_be_started_is_started_later(house, monkeypatch):
    home = house("quick")
    job, started = home.submit(), []

    def start(*args, **more):
        started.append(args)
        raise OSError(12, "Cannot allocate memory")

    now = [time.time() - 1000]
    with monkeypatch.context() as patch:
        patch.setattr(home.queue.processes, "start", start)
        patch.setattr("posttrain.serving.jobs.queue.time.time", lambda: now[0])
        for _ in range(7):
            home.queue.tick()
            home.queue.tick()  # at once: it waits
            now[0] += 10.0
    assert len(started) == 7 and home.now(job) == job
    assert home.ended(job).state == "succeeded" and home.now(job).attempts == 1


def test_a_job_whose_process_can_never_be_started_fails_and_holds_up_no_other(house, monkeypatch):
    home = house("quick")
    job, other = home.submit(), home.submit("bob")
    begin, now, written = home.queue.processes.start, [time.time()], []

    def start(folder, *args, **more):
        if folder == home.folder(job):
            raise OSError(28, "No space left on device")
        return begin(folder, *args, **more)

    def write_json(path, content):
        written.append(path)
        if len(written) > 1:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(home.queue.processes, "start", start)
    monkeypatch.setattr("posttrain.serving.jobs.queue.time.time", lambda: now[0])
    assert home.ended(other).state == "succeeded" and home.now(job) == job
    now[0] += 10.0
    with monkeypatch.context() as patch:  # the disk is full, too
        patch.setattr(module, "write_json", write_json)
        home.queue.tick()
    assert len(written) == 2 and home.now(job) == job
    for _ in range(100):
        home.queue.tick()
        if home.now(job).state == "failed":
            break
        now[0] += 10.0
    assert home.now(job).why == "its process could not be started: OSError: [Errno 28] No space left on device"
    assert 600 <= now[0] - home.now(job).created < 640


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


def test_modules_are_not_looked_for_in_a_jobs_folder(house, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["src", "", "/lib"]))
    processes = house("quick").queue.processes
    assert processes.environment(tmp_path)["PYTHONPATH"] == os.pathsep.join([str(tmp_path / "src"), "/lib"])
    assert "-P" in LINES.program


def test_a_job_has_no_open_file_of_the_servers(house, tmp_path):
    secret = os.open(tmp_path / "secret", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(secret, True)
    home = house("waits")
    job = home.submit()
    home.ready(job)
    open_files = [os.readlink(path) for path in Path(f"/proc/{home.starts(job)[0][0]}/fd").iterdir()]
    os.close(secret)
    assert str(tmp_path / "secret") not in open_files and str(home.folder(job) / "lock") in open_files


# When a server is killed


def test_a_job_goes_on_when_the_server_is_killed_and_the_next_one_finds_it(house):
    home = house("waits")
    job = home.submit()
    home.ready(job)
    home.again()
    for _ in range(3):
        home.queue.tick()
    assert home.now(job).state == "running" and home.queue.processes.look(home.folder(job)) == RUNS
    assert os.getsid(int(home.starts(job)[0][0])) != os.getsid(0)  # the terminal's Ctrl-C does not reach it
    assert len(home.starts(job)) == 1
    home.queue.cancel(home.now(job))
    assert home.ended(job).state == "cancelled" and len(home.starts(job)) == 1


def test_a_job_that_ended_while_there_was_no_server_is_noted_by_the_next_one(house):
    home = house("quick")
    job = home.submit()
    home.queue.tick()
    end = time.monotonic() + 20
    while not (home.folder(job) / "exit.json").exists() and time.monotonic() < end:
        time.sleep(0.02)
    home.again()
    assert home.now(job).state == "running"
    assert home.ended(job).state == "succeeded" and len(home.starts(job)) == 1


def kill_all(home, job):
    """As when the machine loses its power."""
    pids = [home.queue.processes._children[home.folder(job)].pid, int(home.starts(job)[-1][0])]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.01)
    (home.folder(job) / "alone").unlink()


def test_a_job_whose_processes_were_killed_is_resumed_from_its_checkpoint(house):
    home = house("waits")
    job = home.submit()
    home.ready(job)
    kill_all(home, job)
    home.again()
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
    home.again()
    home.ready(job, starts=2)
    assert home.starts(job)[1][1] == "new" and not (home.folder(job) / "run").exists()


def test_training_without_its_supervisor_is_ended_before_the_job_starts_again(house):
    home = house("waits")
    job = home.submit()
    home.ready(job)
    os.kill(home.queue.processes._children[home.folder(job)].pid, signal.SIGKILL)
    trains = int(home.starts(job)[0][0])
    home.until(job, lambda: home.queue.processes.look(home.folder(job)) in (ORPHANED, GONE))
    started = home.queue.processes.start(home.folder(job), "sft", title="t", hidden={})  # behind the queue's back
    assert not started or not alive(trains)
    home.until(job, lambda: not alive(trains))
    (home.folder(job) / "alone").unlink(missing_ok=True)
    home.ready(job, starts=2)
    assert home.now(job).attempts >= 2 - started and home.now(job).state == "running"


def test_no_second_start_of_a_job_meets_the_first(house):
    home = house("waits")
    job = home.submit()
    home.ready(job)
    assert not home.queue.processes.start(home.folder(job), "sft", title="t", hidden={})
    assert not Processes(home.root, 1.0, 1.0, LINES).start(home.folder(job), "sft", title="t", hidden={})
    assert len(home.starts(job)) == 1


def test_the_lock_is_held_before_the_supervisor_has_begun(house):
    home = house("waits")
    job = home.submit()
    home.queue.tick()
    assert home.queue.processes.look(home.folder(job)) == RUNS  # at once: Python takes longer to start
    home.ready(job)


def test_a_job_whose_processes_are_killed_again_and_again_fails(house):
    home = house("waits")
    job = home.submit()
    job = home.store.change(job, attempts=MOST_ATTEMPTS - 1)
    home.ready(job)
    kill_all(home, job)
    done = home.ended(job)
    assert done.state == "failed" and f"ended {MOST_ATTEMPTS} times" in done.why


def test_a_job_that_was_to_end_when_its_processes_were_killed_does_not_train_again(house):
    home = house("waits")
    job = home.submit()
    home.ready(job)
    kill_all(home, job)
    home.again()
    home.queue.cancel(home.now(job))
    assert home.ended(job).state == "cancelled" and len(home.starts(job)) == 1
    assert json.loads((home.folder(job) / "trained.json").read_text())["code"] == supervisor.STOPPED  # not by a signal
    assert (home.folder(job) / "export/model.safetensors").exists()


def test_what_is_no_process_of_the_job_is_not_killed(house):
    home = house("quick")
    job = home.submit()
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    os.setpgid(child, child)
    try:
        (home.folder(job) / "group.json").write_text(str(child))  # a number that another process has by now
        home.queue.processes.kill_orphan(home.folder(job))
        time.sleep(0.05)
        assert alive(child)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
