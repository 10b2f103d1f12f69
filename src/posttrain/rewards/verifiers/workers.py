"""Worker processes that answer one question at a time, each killed when one takes too long; and a record of time-outs.

Computer algebra can hang inside compiled code, where neither a signal handler nor a thread can stop it; only ending
the process does. A process is kept warm, and started again after it had to be killed. It is a fresh interpreter, not a
fork, so that it inherits no locks, threads or memory of the caller, and not of `multiprocessing`, which would run a
user's script again. Questions go to it pickled, because the caller made them; answers come back as JSON, because the
process has handled what a model wrote, and nothing that it says is unpickled.

A question that timed out is not asked again: such a verdict depends on the machine's load, and must be the same when a
run is resumed. The run keeps these questions in a file.
"""

import base64
import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from posttrain.background import few_of, in_thread, in_time
from posttrain.rewards.reward import Verifier
from posttrain.types import Episode, SeatScores

MAX_WORKERS = 4  # each keeps sympy in memory, 100 to 200 MB
START_TIMEOUT_S = 120.0  # to start an interpreter and import sympy, on a busy machine
MEMORY_BYTES = 4 << 30  # address space of the process: an answer must not take the machine's memory
TIMED_OUT = "verifier timed out"  # prefix of the explanation of such a score, to count them
VERDICTS = "timeouts.jsonl"  # the file of a run in which verdicts are kept that a time limit brought about
_GRACE_S = 5.0
T = TypeVar("T")
Q = TypeVar("Q")


class WorkerTimeout(Exception):
    """The question took longer than its time limit; the process was killed."""


class WorkerError(Exception):
    """The process could not start, died by itself, or its function raised."""


class TimeLimits:
    """Questions that timed out, by digest; also in a file, one per line, once it is set."""

    def __init__(self) -> None:
        self.known: frozenset[str] = frozenset()
        self._path: Path | None = None
        self._lock = threading.Lock()

    def keep_in(self, path: Path | None) -> None:
        """From here on know what `path` has, and add to it; with None know nothing."""
        found = set[str]()
        for line in path.read_text(encoding="utf-8").splitlines() if path and path.is_file() else []:
            with suppress(ValueError, KeyError, TypeError):  # a line that was being written when the run was killed
                found.add(str(json.loads(line)["timed_out"]))
        with self._lock:
            self._path, self.known = path, frozenset(found)

    @contextmanager
    def kept_in(self, run: Path) -> Generator[None]:
        """For as long as a run lasts keep them in its folder."""
        self.keep_in(run / VERDICTS)
        try:
            yield
        finally:
            self.keep_in(None)

    def add(self, *digests: str) -> None:
        """Keep more of them."""
        with self._lock:
            new = sorted({*digests} - self.known)
            self.known |= {*new}
            if new and self._path is not None:
                torn = self._path.is_file() and self._path.read_bytes()[-1:] not in (b"", b"\n")
                with self._path.open("a", encoding="utf-8") as lines:
                    lines.write("\n" * torn + "".join(json.dumps({"timed_out": digest}) + "\n" for digest in new))


TIME_LIMITS = TimeLimits()


class Worker:
    """One process running the function "package.module:function", for one thread at a time."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, question: object, timeout_s: float) -> Any:
        """The function's answer; raises `WorkerTimeout` (starting the process is not counted) or `WorkerError`."""
        process = self._process
        if process is None or process.poll() is not None:  # a fork polls as if it had ended
            process = self._start()
        pickled = base64.b64encode(pickle.dumps((question, timeout_s)))
        return self._exchange(process, pickled + b"\n", timeout_s)

    def _start(self) -> "subprocess.Popen[bytes]":
        paths = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve({self.target!r})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **one_thread},
        )
        self._process = process
        weakref.finalize(self, _end, process)
        try:
            self._exchange(process, b"", START_TIMEOUT_S)  # its first line says that the function was imported
        except WorkerTimeout:
            raise WorkerError(f"the worker process of {self.target} did not start in {START_TIMEOUT_S:g} s") from None
        return process

    def _exchange(self, process: "subprocess.Popen[bytes]", line: bytes, timeout_s: float) -> Any:
        """Send a line, return what the next line says."""

        def reply() -> bytes:
            with suppress(BrokenPipeError):
                cast("IO[bytes]", process.stdin).write(line)
                cast("IO[bytes]", process.stdin).flush()
                return cast("IO[bytes]", process.stdout).readline()
            return b""

        try:
            said = in_time(timeout_s, reply)
        except TimeoutError:
            _end(process)  # which ends the wait for its reply, too
            raise WorkerTimeout(f"no answer within {timeout_s:g} s") from None
        if not said.endswith(b"\n"):
            _end(process)
            raise WorkerError(f"the worker process of {self.target} died (exit status {process.returncode})")
        answer = json.loads(said)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer["answer"]


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill and collect. A fork of the process that started it does nothing here: Popen signals only its own child."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(BrokenPipeError):  # pending output has no reader
            cast("IO[bytes]", pipe).close()


class Workers:
    """Up to `size` processes running `function(question) -> answer`; one is started when all others are busy."""

    def __init__(self, target: str, size: int) -> None:
        self.target = target
        self._free: list[Worker] = []
        self._places = threading.Semaphore(size)

    def ask(self, question: object, timeout_s: float) -> Any:
        """As `Worker.ask`; a question that has once taken too long is not asked again."""
        digest = hashlib.sha256(repr((self.target, question, timeout_s)).encode()).hexdigest()
        if digest in TIME_LIMITS.known:
            raise WorkerTimeout(f"no answer within {timeout_s:g} s, when it was asked before")
        with self._places:
            try:
                worker = self._free.pop()  # of a list, which threads share
            except IndexError:
                worker = Worker(self.target)
            try:
                return worker.ask(question, timeout_s)
            except WorkerTimeout:
                TIME_LIMITS.add(digest)
                raise
            finally:
                self._free.append(worker)


def workers_for(target: str) -> Workers:
    """The workers of this process for `target`."""
    return _workers(target, os.getpid())


@cache
def _workers(target: str, process: int) -> Workers:
    return Workers(target, size())


def size() -> int:
    """Number of concurrent processes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MAX_WORKERS, cores))


class InWorkers(Verifier):
    """A verifier that asks worker processes, about as many episodes at a time as there are."""

    async def score_episodes(self, episodes: Sequence[Episode]) -> list[SeatScores]:
        """One score per episode."""
        return await together(self._scored, episodes)


async def together(function: Callable[[Q], T], questions: Sequence[Q]) -> list[T]:
    """`function` of each question, in order, `size` at a time and one more, for when one waits; see `few_of`."""
    return await few_of(size() + 1, lambda question: in_thread(function, question), questions)


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
    with suppress(ImportError, ValueError, OSError):  # not on every system; the time limit still holds
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
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
