"""A process that answers one question at a time and is killed when it takes too long.

Computer algebra can hang inside compiled code, where neither a signal handler nor a thread can stop it; only ending
the process does. The process is started once and kept warm, and started again after it had to be killed. It is a fresh
interpreter, not a fork, so that it inherits no locks, threads or memory of the caller.

Questions go to it pickled, because the caller made them; answers come back as JSON, because the process has handled
what a model wrote, and nothing that it says is unpickled.
"""

import base64
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import IO, Any, cast

START_TIMEOUT_S = 120.0  # to start an interpreter and import sympy, on a busy machine
MEMORY_BYTES = 4 << 30  # address space of the process: an answer must not take the machine's memory
TIMED_OUT = "verifier timed out"  # prefix of the explanation of such a score, to count them
_GRACE_S = 5.0


class WorkerTimeout(Exception):
    """The question took longer than its time limit; the process was killed."""


class WorkerError(Exception):
    """The process could not start, died by itself, or its function raised."""


class Worker:
    """One process running `function(question) -> answer`, where `target` is "package.module:function".

    Thread-safe: questions from several threads take turns.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self.started = 0  # how many processes there have been, the present one included

    def ask(self, question: object, timeout_s: float) -> Any:
        """The function's answer to `question`.

        Raises:
            WorkerTimeout: no answer within `timeout_s` seconds; starting the process is not counted.
            WorkerError: the process could not start or died; or the function raised, with its error as text.
        """
        with self._lock:
            if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
                self._start()
            pickled = base64.b64encode(pickle.dumps((question, timeout_s)))
            return self._exchange(pickled + b"\n", timeout_s)

    def close(self) -> None:
        """End the process, if there is one. The next question starts another."""
        with self._lock:
            if self._process is not None:
                _end(self._process)
            self._process = None

    def _start(self) -> None:
        self._process = None
        source = str(Path(__file__).parents[3])
        paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
        process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve({self.target!r})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(paths),
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            },
        )
        self._process, self._owner = process, os.getpid()
        self.started += 1
        weakref.finalize(self, _end, process)
        try:
            self._exchange(b"", START_TIMEOUT_S)  # its first line says that the function was imported
        except WorkerTimeout:
            raise WorkerError(f"the worker process of {self.target} did not start in {START_TIMEOUT_S:g} s") from None

    def _exchange(self, line: bytes, timeout_s: float) -> Any:
        """Send a line, return what the next line says; the timer's kill ends the wait by closing the pipe."""
        process = cast("subprocess.Popen[bytes]", self._process)
        stdin, stdout = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
        expired, answered, one_of_them = threading.Event(), threading.Event(), threading.Lock()

        def expire() -> None:
            with one_of_them:  # an answer that came in time is not followed by a kill
                if not answered.is_set():
                    expired.set()
                    process.kill()

        timer = threading.Timer(timeout_s, expire)
        timer.daemon = True
        timer.start()
        try:
            stdin.write(line)
            stdin.flush()
            reply = stdout.readline()
        except BrokenPipeError:
            reply = b""
        with one_of_them:
            answered.set()
        timer.cancel()
        if expired.is_set() or not reply.endswith(b"\n"):
            _end(process)
            if expired.is_set():
                raise WorkerTimeout(f"no answer within {timeout_s:g} s")
            raise WorkerError(f"the worker process of {self.target} died (exit status {process.returncode})")
        answer = json.loads(reply)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer["answer"]


def serve(target: str) -> None:
    """The worker process's main loop: a pickled question per line in, a JSON answer per line out."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not end up among the answers

    def reply(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message).encode() + b"\n")
        replies.flush()

    try:
        module, _, name = target.partition(":")
        function: Callable[[Any], Any] = getattr(import_module(module), name)
        function(None)  # imports what it needs, before any time limit runs
    except Exception as error:
        reply({"error": f"{type(error).__name__}: {error}"})
        return
    _limit_memory()
    reply({"answer": "ready"})
    for line in sys.stdin.buffer:
        question, timeout_s = pickle.loads(base64.b64decode(line))
        _alarm(timeout_s + _GRACE_S)
        try:
            reply({"answer": function(question)})
        except Exception as error:
            reply({"error": f"{type(error).__name__}: {error}"[:500]})
        _alarm(0)


def _alarm(seconds: float) -> None:
    """Have the system end this process after `seconds` even if the caller is gone by then; 0 calls it off."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _limit_memory() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    except (ImportError, ValueError, OSError):  # not on every system; the time limit still holds
        return


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill and collect. A fork of the process that started it does nothing here: Popen signals only its own child."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:  # pending output has no reader
                continue
