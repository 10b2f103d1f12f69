"""A pool of worker processes for one function, and a record of time-outs.

A question that timed out is not asked again: such a verdict depends on the machine's load, and must be
the same when a run is resumed. The run keeps these questions in a file.
"""

import contextvars
import hashlib
import json
import os
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from posttrain.rewards.reward import scoring
from posttrain.rewards.verifiers.worker import Worker, WorkerTimeout
from posttrain.types import Episode, Score

MAX_WORKERS = 4  # each keeps sympy in memory, 100 to 200 MB
T = TypeVar("T")
Q = TypeVar("Q")


class TimeLimits:
    """Questions that timed out, by digest; also in a file, one per line, once it is set."""

    def __init__(self) -> None:
        self._digests: set[str] = set()
        self._path: Path | None = None
        self._lock = threading.Lock()

    def keep_in(self, path: Path | None) -> None:
        """From here on know what `path` has, and add to it; with None know nothing."""
        with self._lock:
            self._path = path
            lines = path.read_text(encoding="utf-8").splitlines() if path and path.is_file() else []
            self._digests = {digest for line in lines if (digest := _digest_in(line))}

    @contextmanager
    def kept_in(self, path: Path) -> Generator[None, None, None]:
        """`keep_in(path)` for as long as a run lasts; after it know nothing."""
        self.keep_in(path)
        try:
            yield
        finally:
            self.keep_in(None)

    def add(self, digest: str) -> None:
        """Keep one more."""
        with self._lock:
            if digest in self._digests:
                return
            self._digests.add(digest)
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as lines:
                    lines.write("\n" * _is_torn(self._path) + json.dumps({"timed_out": digest}) + "\n")

    def learn(self, digests: Iterable[str]) -> None:
        """Keep those that another process knows."""
        for digest in sorted(digests):
            self.add(digest)

    @property
    def known(self) -> frozenset[str]:
        """All of them."""
        with self._lock:
            return frozenset(self._digests)

    def __contains__(self, digest: str) -> bool:
        return digest in self._digests


def _digest_in(line: str) -> str:
    try:
        return str(json.loads(line)["timed_out"])
    except (ValueError, KeyError, TypeError):  # the end of a line that was being written when the run was killed
        return ""


def _is_torn(path: Path) -> bool:
    written = path.read_bytes() if path.is_file() else b""
    return bool(written) and not written.endswith(b"\n")


VERDICTS = "timeouts.jsonl"  # the file of a run in which verdicts are kept that a time limit brought about
TIME_LIMITS = TimeLimits()


class Workers:
    """Up to `size` processes running `function(question) -> answer`; one is started when all others are busy.

    Thread-safe: as many questions are answered at a time as there are processes.
    """

    def __init__(self, target: str, size: int) -> None:
        self.target = target
        self._free: list[Worker] = []
        self._places = threading.Semaphore(size)
        self._lock = threading.Lock()

    def ask(self, question: object, timeout_s: float) -> Any:
        """As `Worker.ask`; a question that has once taken too long is not asked again.

        Raises:
            WorkerTimeout, WorkerError: as `Worker.ask`.
        """
        digest = hashlib.sha256(repr((self.target, question, timeout_s)).encode()).hexdigest()
        if digest in TIME_LIMITS:
            raise WorkerTimeout(f"no answer within {timeout_s:g} s, when it was asked before")
        with self._places:
            with self._lock:
                worker = self._free.pop() if self._free else Worker(self.target)
            try:
                return worker.ask(question, timeout_s)
            except WorkerTimeout:
                TIME_LIMITS.add(digest)
                raise
            finally:
                with self._lock:
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


def score_together(name: str, episodes: Sequence[Episode], score_one: Callable[[Episode], Score]) -> list[Score]:
    """As `score_each`, several episodes at a time."""

    def one(episode: Episode) -> Score:
        with scoring(name, episode):
            return score_one(episode)

    return together(one, episodes)


def together(function: Callable[[Q], T], questions: Sequence[Q]) -> list[T]:
    """`function` of each question, in order, as many at a time as there are worker processes.

    Raises:
        What `function` raises on the first question, in order, on which it does; later ones may not be asked then.
    """
    answers: dict[int, T] = {}
    errors: dict[int, BaseException] = {}
    numbers, lock = iter(range(len(questions))), threading.Lock()

    def work() -> None:
        while not errors:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            try:
                answers[number] = function(questions[number])
            except BaseException as error:
                errors[number] = error

    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True)
        for _ in range(min(size(), len(questions)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return [answers[number] for number in range(len(questions))]
