"""Real signals, sent to a real process that says what it sees."""

import doctest
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import posttrain
from posttrain.runs import interrupt

HERE = {**os.environ, "PYTHONPATH": str(Path(posttrain.__file__).parents[1])}  # the source that is under test

LOOP = """
import os, signal, sys, time
from posttrain.runs.interrupt import stop_requests

print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
try:
    with stop_requests() as stop:
        print("ready", flush=True)
        while not stop.requested:
            time.sleep(0.01)
        print("asked", stop.cause, flush=True)
        if "go on" in sys.argv:
            time.sleep(10)
        if "raise" in sys.argv:
            raise RuntimeError("inside")
except KeyboardInterrupt:
    print("interrupted")
except RuntimeError:
    print("raised")
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""


def start(script: str, *words: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", script, *words], stdout=subprocess.PIPE, text=True, env=HERE)
    read_until(process, "ready")
    return process


def read_until(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(word):
            return
    pytest.fail(f"the process ended without saying {word!r}")


def rest(process: subprocess.Popen[str]) -> list[str]:
    """What it says until it ends. `communicate` with a time limit would lose what has been read ahead."""
    assert process.stdout is not None
    said = process.stdout.read().splitlines()
    process.wait(timeout=300)
    return said


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("words", "end"), [((), []), (("raise",), ["raised"])])
def test_first_signal_lets_the_step_end_and_the_handlers_come_back(sent, words, end):
    process = start(LOOP, *words)
    process.send_signal(sent)
    assert rest(process) == [f"asked {sent.name}", *end, "True True"]
    assert process.returncode == 0


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_after_a_request_interrupts_at_once(first):
    process = start(LOOP, "go on")
    process.send_signal(first)
    read_until(process, "asked")
    process.send_signal(signal.SIGINT)
    assert rest(process) == ["interrupted", "True True"]


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_sigterm_after_a_request_asks_for_nothing_more(first):
    with interrupt.stop_requests() as stop:
        signal.raise_signal(first)
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            pytest.fail("only Ctrl-C interrupts")
        assert (stop.requested, stop.cause) == (True, first.name)


@pytest.mark.parametrize("within", [True, False])
def test_work_that_may_be_cancelled_is_ended_by_a_request_within_or_before_it(within):
    done = []
    with interrupt.stop_requests() as stop, pytest.raises(interrupt.Stopped, match="SIGTERM"):
        if not within:
            signal.raise_signal(signal.SIGTERM)
        with stop.cancellable():
            done.append("begun")
            signal.raise_signal(signal.SIGTERM)
            done.append("ended")
    assert done == (["begun"] if within else [])


def test_after_work_that_may_be_cancelled_a_request_waits_again():
    with interrupt.stop_requests() as stop:
        with stop.cancellable():
            pass
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested


def test_a_signal_that_was_ignored_stays_ignored():
    script = """
import signal
from posttrain.runs.interrupt import stop_requests
signal.signal(signal.SIGINT, signal.SIG_IGN)
with stop_requests() as stop:
    print("ready", flush=True)
    signal.raise_signal(signal.SIGINT)
    print(stop.requested)
    signal.raise_signal(signal.SIGTERM)
    print(stop.requested, signal.getsignal(signal.SIGINT) is signal.SIG_IGN)
"""
    assert rest(start(script)) == ["False", "True True"]


def test_forked_worker_ends_by_sigterm_and_outlives_ctrl_c():
    script = """
import os, signal, time
from posttrain.runs.interrupt import stop_requests
with stop_requests() as stop:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"1")
        time.sleep(0.2)
        os.write(writing, b"2")
        for _ in range(50):
            time.sleep(0.1)
        os._exit(0)
    os.close(writing)
    os.read(reading, 1)
    os.kill(child, signal.SIGINT)
    lived_on = os.read(reading, 1) == b"2"
    if lived_on:
        os.kill(child, signal.SIGTERM)
    print("ready", flush=True)
    print(lived_on, os.WTERMSIG(os.waitpid(child, 0)[1]), stop.requested)
"""
    assert rest(start(script)) == [f"True {int(signal.SIGTERM)} False"]


def test_in_another_thread_nothing_is_changed():
    seen = []

    def work() -> None:
        before = signal.getsignal(signal.SIGTERM)
        with interrupt.stop_requests() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGTERM) is before))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, True)]


def test_docstring_examples_run():
    results = doctest.testmod(interrupt)
    assert results.attempted and not results.failed
