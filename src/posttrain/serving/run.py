"""A client's model: what it is, where it stands, its requests and results on disk; and results that are awaited.

    model.json                  what it is
    requests/000000012          a line of JSON (its kind), then the body; there before it is told that it is accepted
    requests/000000012.failed   a request that was told as failed since its result could not be written
    results/000000012           a line of JSON (its media type), then the body

A server that was killed computes again what its saved state does not contain: `runs.py`.
"""

import asyncio
import json
import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from starlette.exceptions import HTTPException

from posttrain.serving.base import Adapter
from posttrain.serving.files import write_whole
from posttrain.serving.trainer import Trainer

KEPT_BYTES = 256 * 2**20  # of results in memory, the most recent; those of models are on the disk as well
OVERHEAD = 512  # bytes that each counts besides
KEPT = 64  # results of older requests, for clients that have not fetched them yet
FAILED = ".failed"


@dataclass(frozen=True)
class Entry:
    """A request or a result: what it is, and its bytes."""

    kind: str
    body: bytes


@dataclass(frozen=True)
class Record:
    """What a model is, as its folder says."""

    model_id: str
    owner: str
    base_model: str
    adapter: Adapter
    ended: bool = False  # its checkpoints are left
    unloaded: int | None = None  # the seq_id of the request that ended it

    @property
    def client(self) -> str:
        """Whose turn it is: a key's, or where none is needed a session's."""
        return self.owner or self.model_id.split(":")[0]


@dataclass
class Run:
    """A client's model, with the requests and results in its folder. Requests are named by their seq_id."""

    folder: Path
    record: Record
    next: int = 0  # that is scheduled next; all before it are
    executed: int = -1  # the last that has a result; -1: none
    saved: int = -1  # the last that the saved state contains; -1: none
    steps: int = 0  # optimiser steps since the state was saved
    trainer: Trainer | None = None  # its weights, where they are in memory
    # accepted and not begun, and what each counts of its key's backlog
    pending: dict[int, int] = field(default_factory=dict[int, int])
    last: int | None = None  # the request after which it ends
    busy: bool = False  # a request of it is being done
    apart: bool = False  # its last pass with others failed, and nothing has shown since that it was not at fault
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def first(self) -> int | None:
        """The seq_id that is begun next; None if nothing waits, or an earlier one is missing."""
        seq = min(self.pending, default=self.next)
        return seq if seq < self.next else None

    def request_id(self, seq: int) -> str:
        """The id of its request `seq`."""
        return f"{self.record.model_id}:{seq}"

    def accept(self, seq: int, request: Entry) -> None:
        """Keep a request."""
        self._write("requests", seq, request)

    def finish(self, seq: int, result: Entry) -> None:
        """Keep a result."""
        self._write("results", seq, result)

    def fail(self, seq: int) -> None:
        """Keep that a request failed: it is not done again. That needs no space, since the disk may be full."""
        path = self._path("requests", seq)
        path.rename(path.with_suffix(FAILED))

    def request(self, seq: int) -> Entry:
        """The request that was accepted as `seq`."""
        return self._read("requests", seq)

    def kind(self, seq: int) -> str:
        """The kind of that request; its body is not read."""
        with self._path("requests", seq).open("rb") as file:
            return json.loads(file.readline())["kind"]

    def result(self, seq: int) -> Entry | None:
        """The result of a request; None if there is none, or it is too old."""
        try:
            return self._read("results", seq)
        except FileNotFoundError:
            return None

    def numbers(self, part: str, suffix: str = "") -> list[int]:
        """The seq_ids of `requests` or `results` that are kept, in order; by `FAILED` of those without a result."""
        found = (self.folder / part).iterdir()
        return sorted(int(path.stem) for path in found if path.stem.isdigit() and path.suffix == suffix)

    def prune(self, saved: int) -> None:
        """Forget what the state saved after request `saved` contains; results and failures some requests later."""
        old = saved - KEPT
        for part, suffix, last in (("requests", "", saved), ("requests", FAILED, old), ("results", "", old)):
            for seq in self.numbers(part, suffix):
                if seq <= last:
                    self._path(part, seq).with_suffix(suffix).unlink(missing_ok=True)

    def _path(self, part: str, seq: int) -> Path:
        return self.folder / part / f"{seq:09d}"

    def _write(self, part: str, seq: int, entry: Entry) -> None:
        write_whole(self._path(part, seq), json.dumps({"kind": entry.kind}).encode() + b"\n" + entry.body)

    def _read(self, part: str, seq: int) -> Entry:
        head, _, body = self._path(part, seq).read_bytes().partition(b"\n")
        return Entry(json.loads(head)["kind"], body)


class Futures:
    """Results by the id of their request. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._awaited: dict[str, Future[Entry]] = {}
        self._done: OrderedDict[str, Future[Entry]] = OrderedDict()  # the oldest first
        self._bytes = 0

    def open(self, request_id: str) -> bool:
        """Await a result; False if it is awaited, or there, already."""
        with self._lock:
            if self.known(request_id):
                return False
            self._awaited[request_id] = future = Future()
            future.set_running_or_notify_cancel()  # nobody who waits can cancel it
            return True

    def finish(self, request_id: str, result: Entry) -> None:
        """Give a result to those who wait, and forget the oldest beyond what is kept; the first of a request stays."""
        self.open(request_id)
        with self._lock:
            if (future := self._awaited.pop(request_id, None)) is None:
                return
            future.set_result(result)
            self._done[request_id] = future
            self._bytes += len(result.body) + OVERHEAD
            while self._bytes > KEPT_BYTES and len(self._done) > 1:
                _, oldest = self._done.popitem(last=False)
                self._bytes -= len(oldest.result().body) + OVERHEAD

    def known(self, request_id: str) -> bool:
        """Whether a result is awaited or there."""
        return request_id in self._awaited or request_id in self._done

    async def retrieve(self, request_id: str, seconds: float) -> Entry | None:
        """A result; None if it is not there within `seconds`. Raises `HTTPException` for one that nobody awaits."""
        with self._lock:
            future = self._awaited.get(request_id) or self._done.get(request_id)
        if future is None:
            raise HTTPException(410, "this result is not kept any more")
        waiting = asyncio.wrap_future(future)
        await asyncio.wait({waiting}, timeout=seconds)
        return waiting.result() if waiting.done() else None
