"""The child process of a stage: signals are passed on to it, and one that outlived its pipeline is ended."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from posttrain.errors import UserError
from posttrain.runs.interrupt import StopRequest
from posttrain.runs.processes import PROGRAM, born
from posttrain.runs.progress import announce

TICK_S = 0.2  # how late a signal is passed on
PATIENCE_S = 300.0  # for a process that finishes its step and saves


class Ended(NamedTuple):
    """How a stage's process ended."""

    code: int  # below 0 the signal that killed it
    cause: str  # the signal that it was asked to stop by, such as SIGINT; "" if it was not


def ran(words: Sequence[str], out: Path, stop: StopRequest, begun: Callable[[Mapping[str, Any]], object]) -> Ended:
    """Run a command to its end, what it answers into a file; `begun` is told which process it is.

    It has a session of its own: a terminal's Ctrl-C would reach it once from the terminal and once from here.
    """
    with out.open("wb") as file:
        process = subprocess.Popen([*PROGRAM, *words], stdin=subprocess.DEVNULL, stdout=file, start_new_session=True)
    begun({"pid": process.pid, "born": born(process.pid)})
    passed = False
    while True:
        try:
            if stop.requested and not passed:
                passed = True
                process.send_signal(signal.Signals[stop.cause])
            code = process.wait(TICK_S)
        except subprocess.TimeoutExpired:
            continue
        except KeyboardInterrupt:  # a second Ctrl-C: what it does now is not waited for
            process.send_signal(signal.SIGINT)
            continue
        by_code = next((one.name for one in (signal.SIGINT, signal.SIGTERM) if code == 128 + one), "")
        return Ended(code, stop.cause or by_code if code else "")


def end_left(row: Mapping[str, Any], stage: str) -> None:
    """End the process of a stage whose pipeline was killed, and wait for what it saves."""
    pid, whose = row.get("pid", 0), row.get("born")
    if not whose or born(pid) != whose:
        return
    announce(f"stage '{stage}' is still running, as process {pid} of a pipeline that was killed: it saves and ends")
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + PATIENCE_S
    while born(pid) == whose:
        if time.monotonic() > until:
            raise UserError(f"process {pid} of stage '{stage}' does not end; type: kill -9 {pid}, then resume again")
        time.sleep(TICK_S)
