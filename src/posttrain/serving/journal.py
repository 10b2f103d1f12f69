"""Accepted requests of one model, and their results, on disk.

    requests/000000012   a line of JSON (its kind), then the body; written before the client is told that it is accepted
    results/000000012    a line of JSON (its media type), then the body
    requests/000000012.failed   a request that was told as failed since its result could not be written

A server that was killed computes again what its saved state does not contain: `runs.py`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from posttrain.serving.files import write_whole

KEPT = 64  # results of older requests, for clients that have not fetched them yet
_FAILED = ".failed"


@dataclass(frozen=True)
class Entry:
    """A request or a result: what it is, and its bytes."""

    kind: str
    body: bytes


@dataclass(frozen=True)
class Journal:
    """The requests and results in a model's folder, by their seq_id."""

    folder: Path

    def create(self) -> None:
        """Make the folders."""
        for name in ("requests", "results"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    def accept(self, seq: int, request: Entry) -> None:
        """Keep a request."""
        _write(self._path("requests", seq), request)

    def finish(self, seq: int, result: Entry) -> None:
        """Keep a result."""
        _write(self._path("results", seq), result)

    def fail(self, seq: int) -> None:
        """Keep that a request failed: it is not done again. That needs no space, since the disk may be full."""
        path = self._path("requests", seq)
        path.rename(path.with_suffix(_FAILED))

    def failed(self) -> list[int]:
        """The seq_ids of the requests that failed so, in order."""
        return sorted(int(path.stem) for path in (self.folder / "requests").glob(f"*{_FAILED}"))

    def request(self, seq: int) -> Entry:
        """The request that was accepted as `seq`."""
        return _read(self._path("requests", seq))

    def kind(self, seq: int) -> str:
        """The kind of that request; its body is not read."""
        with self._path("requests", seq).open("rb") as file:
            return json.loads(file.readline())["kind"]

    def result(self, seq: int) -> Entry | None:
        """The result of a request; None if there is none, or it is too old."""
        try:
            return _read(self._path("results", seq))
        except FileNotFoundError:
            return None

    def accepted(self) -> list[int]:
        """The seq_ids of the requests that are kept, in order."""
        return sorted(_numbers(self.folder / "requests"))

    def finished(self) -> list[int]:
        """The seq_ids of the results that are kept, in order."""
        return sorted(_numbers(self.folder / "results"))

    def prune(self, saved: int) -> None:
        """Forget what the state saved after request `saved` contains."""
        for seq in self.accepted():
            if seq <= saved:
                self._path("requests", seq).unlink(missing_ok=True)
        for seq in self.finished():
            if seq <= saved - KEPT:
                self._path("results", seq).unlink(missing_ok=True)
        for seq in self.failed():
            if seq <= saved - KEPT:
                self._path("requests", seq).with_suffix(_FAILED).unlink(missing_ok=True)

    def _path(self, part: str, seq: int) -> Path:
        return self.folder / part / f"{seq:09d}"


def _write(path: Path, entry: Entry) -> None:
    write_whole(path, json.dumps({"kind": entry.kind}).encode() + b"\n" + entry.body)


def _read(path: Path) -> Entry:
    head, _, body = path.read_bytes().partition(b"\n")
    return Entry(json.loads(head)["kind"], body)


def _numbers(folder: Path) -> Iterator[int]:
    return (int(path.name) for path in folder.iterdir() if path.name.isdigit())
