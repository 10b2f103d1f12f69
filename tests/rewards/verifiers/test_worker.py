import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import posttrain
from posttrain.rewards.verifiers.workers import Worker, WorkerError, Workers, WorkerTimeout

HERE = __name__


def work(question):
    """What the worker process of these tests runs."""
    if question is None:
        print("this must not end up among the answers")
        return None
    what, argument = question
    if what == "hang":
        time.sleep(1000)
    if what == "spin":
        return (9**9**8) % 7  # inside compiled code, where no signal handler of Python's would run
    if what == "exit":
        os._exit(argument)
    if what == "raise":
        raise KeyError(argument)
    if what == "print":
        print(argument)
    if what == "pid":
        return os.getpid()
    if what == "memory":
        try:
            return len(bytearray(argument))
        except MemoryError:
            return "out of memory"
    return argument


def broken(question):
    raise ImportError("no such library")


@pytest.fixture
def worker():
    return Worker(f"{HERE}:work")


def test_answers_come_back_and_the_process_stays_warm(worker):
    assert worker.ask(("echo", {"a": [1, "b"]}), 5) == {"a": [1, "b"]}
    assert worker.ask(("print", "noise\n{}\n"), 5) == "noise\n{}\n"
    assert worker.ask(("pid", 0), 5) == worker.ask(("pid", 0), 5) != os.getpid()


@pytest.mark.parametrize("how", ["hang", "spin"])
def test_a_hang_is_killed_in_time_and_the_next_question_is_answered(worker, how):
    pid = worker.ask(("pid", 0), 5)
    start = time.monotonic()
    with pytest.raises(WorkerTimeout):
        worker.ask((how, 0), 0.3)
    assert time.monotonic() - start < 60  # a busy machine; the hang would never end
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert worker.ask(("pid", 0), 5) != pid


def test_a_process_that_dies_by_itself_is_an_error_and_not_a_time_out(worker):
    with pytest.raises(WorkerError, match="exit status 3"):
        worker.ask(("exit", 3), 5)
    assert worker.ask(("echo", 1), 5) == 1


def test_an_exception_is_told_and_the_process_lives_on(worker):
    pid = worker.ask(("pid", 0), 5)
    with pytest.raises(WorkerError, match="KeyError: 'x'"):
        worker.ask(("raise", "x"), 5)
    assert worker.ask(("pid", 0), 5) == pid


def test_threads_take_turns():
    worker = Workers(f"{HERE}:work", 1)
    answers: dict[int, int] = {}
    pids: set[int] = set()

    def ask(i):
        answers[i] = worker.ask(("echo", i), 5)
        pids.add(worker.ask(("pid", 0), 5))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {i: i for i in range(20)} and len(pids) == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems do not hold to an address-space limit")
def test_memory_is_bounded(worker):
    assert worker.ask(("memory", 1000), 5) == 1000
    assert worker.ask(("memory", 8 << 30), 5) == "out of memory"


@pytest.mark.parametrize(
    "target, said", [(f"{HERE}:broken", "no such library"), (f"{HERE}:nothing", "nothing"), ("no.such:x", "no")]
)
def test_a_worker_that_cannot_start_says_why(target, said):
    with pytest.raises(WorkerError, match=said):
        Worker(target).ask(("echo", 1), 5)


def test_the_process_ends_with_the_program_that_started_it():
    program = f"""
from posttrain.rewards.verifiers.workers import Worker
worker = Worker({f"{HERE}:work"!r})
print(worker.ask(("pid", 0), 5), flush=True)
"""
    env = {**os.environ, "PYTHONPATH": str(Path(posttrain.__file__).parents[1])}
    pid = int(subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, timeout=60).stdout)
    for _ in range(300):
        if not os.path.exists(f"/proc/{pid}"):
            return
        time.sleep(0.1)
    pytest.fail(f"process {pid} outlived the program that started it")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_gets_a_process_of_its_own_and_leaves_the_first_alone(worker):
    pid = worker.ask(("pid", 0), 5)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, str(worker.ask(("pid", 0), 5)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(read, 100)) != pid
    assert worker.ask(("pid", 0), 5) == pid
