"""Who may ask, and how much: keys of clients, their sessions, and limits of what they may ask for at once.

The file of keys has their SHA-256 only: secrets are 256 random bits, so guessing is hopeless. Sessions outlive the
server, a file each, so that a client goes on with the next one.
"""

import hashlib
import os
import re
import secrets
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from filelock import FileLock

from posttrain.errors import UserError
from posttrain.serving.files import by_age, read_json, write_json

OVERHEAD = 4096  # bytes that a request counts besides its body: a file, and what is known of it in memory
PREFIX = "tml-"  # without which the SDK refuses a key
_NAME = re.compile(r"[\w.@-]{1,64}")
_SESSION = re.compile(r"[0-9a-f]{32}")
IDLE_SECONDS = 3600.0  # since a session was last heard of, after which it makes room for others of its key
KEPT_SECONDS = 30 * 86400.0  # after which it is forgotten


class Keys:
    """The keys of a server, by their owners' names.

    Where there never was one, every key is taken, and all are one owner. Once there was one, clients need a key, also
    when the last one is removed: the file stays. Without the file, this holds until the process ends.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._needed = path, False

    @classmethod
    def of(cls, store: Path) -> "Keys":
        """The keys of the server in a folder, which is made if it is missing."""
        store.mkdir(parents=True, exist_ok=True, mode=0o700)
        return cls(store / "keys.json")

    @property
    def needed(self) -> bool:
        """Whether clients need a key."""
        self._by_name()
        return self._needed

    def owners(self) -> list[str]:
        """The names of those who have a key."""
        return sorted(self._by_name())

    def add(self, name: str) -> str:
        """Make a key and return it, which is not kept; raises `UserError` if the name has one, or will not do."""
        if not _NAME.fullmatch(name):
            raise UserError(f"a key's name has 1 to 64 letters, digits and _ . @ -; got '{name[:80]}'")
        secret = PREFIX + secrets.token_urlsafe(32)
        with FileLock(f"{self.path}.lock"):  # of one process or thread of all, from reading to writing
            found = self._by_name()
            if name in found:
                raise UserError(f"'{name}' has a key; remove it first")
            write_json(self.path, found | {name: _digest(secret)})
        return secret

    def remove(self, name: str) -> None:
        """End a key; raises `UserError` if there is none of this name."""
        with FileLock(f"{self.path}.lock"):
            found = self._by_name()
            if found.pop(name, None) is None:
                raise UserError(f"'{name}' has no key; those who have one: {', '.join(sorted(found)) or 'nobody'}")
            write_json(self.path, found)

    def owner(self, secret: str) -> str | None:
        """Whose key it is, "" where none is needed; None if it is nobody's."""
        if not secret.startswith(PREFIX):
            return None
        found = self._by_name()
        if not self._needed:
            return ""
        digest = _digest(secret)
        return next((name for name, kept in found.items() if secrets.compare_digest(kept, digest)), None)

    def _by_name(self) -> dict[str, str]:
        found = read_json(self.path)
        # never False again: who removes the last key, or the file, would else open a running server to everybody
        self._needed = self._needed or found is not None
        return dict(found or {})


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class Sessions:
    """All sessions, a file each, whose time is when the client was last there."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder, self._most, self._lock = folder, most, Lock()
        found = by_age(folder)
        self._heard = {path.stem: path.stat().st_mtime for path in found}
        self._owners = {path.stem: str(read_json(path)["owner"]) for path in found}

    def create(self, owner: str) -> str:
        """Begin one and return its id; raises `UserError` if the owner has too many whose clients are there."""
        with self._lock:
            now, mine = time.time(), [each for each, of in self._owners.items() if of == owner]
            surplus = len(mine) - self._most + 1
            for number, old in enumerate(sorted(mine, key=self.heard)):
                if number >= surplus and self.heard(old) > now - KEPT_SECONDS:
                    break
                if self.heard(old) > now - IDLE_SECONDS:
                    raise UserError(f"a key may have {self._most} sessions; end one of your clients")
                (self._folder / f"{old}.json").unlink(missing_ok=True)
                del self._owners[old], self._heard[old]
            session_id = uuid.uuid4().hex
            write_json(self._folder / f"{session_id}.json", {"owner": owner})
            self._owners[session_id], self._heard[session_id] = owner, now
        return session_id

    def hear(self, session_id: str, when: float | None = None) -> None:
        """Note that a client is there, or with 0 that it has ended."""
        with self._lock:
            if session_id in self._owners:
                self._heard[session_id] = at = time.time() if when is None else when
                os.utime(self._folder / f"{session_id}.json", (at, at))

    def heard(self, session_id: str) -> float:
        """When a client was last there, in seconds since 1970; 0 if it has ended, or is forgotten."""
        return self._heard.get(session_id, 0.0)

    def check(self, owner: str, session_id: str) -> str:
        """The id of a session of the owner; raises `UserError` if it is none."""
        if not _SESSION.fullmatch(session_id) or self._owners.get(session_id) != owner:
            raise UserError(f"there is no session '{session_id[:80]}'")
        return session_id


@dataclass(frozen=True)
class BodyLimits:
    """Of the bodies of requests, in bytes."""

    body_bytes: int = 32 * 2**20  # of a request, decompressed
    json_bytes: int = 4 * 2**20  # of a request in JSON
    bodies_per_key: int = 128 * 2**20  # that are received and parsed at a time; those in JSON count several times
    bodies_bytes: int = 512 * 2**20  # of those of all keys
    body_seconds: float = 60.0  # within which a request must have arrived


@dataclass(frozen=True)
class Limits(BodyLimits):
    """Of the server of adapters."""

    models_per_key: int = 16  # in training
    ended_per_key: int = 256  # models that have ended and whose checkpoints are kept
    sessions_per_key: int = 1024  # those that are not heard of for an hour make room
    samplers_per_key: int = 4096  # sampling sessions, of which the latest are kept
    checkpoints_per_model: int = 100  # that have a name
    unnamed_per_model: int = 8  # of the weights that were saved for sampling without a name, those that are kept
    tokens_per_request: int = 2**19  # of a batch, its input or its targets, or of a prompt times its samples
    data_per_request: int = 1024  # sequences of a batch
    samples_per_request: int = 256  # of one prompt
    pending_per_key: int = 4096  # samples that wait
    backlog_per_key: int = 256 * 2**20  # bytes of training requests that are not done; each counts `OVERHEAD` more
    max_rank: int = 256  # of an adapter
    microbatch_tokens: int = 4096  # of one forward and backward pass, unless a sequence is longer
    max_sequences: int = 128  # that are sampled together
    cache_gb: float = 1.0  # of keys and values
    models_in_memory: int = 8  # adapters with their optimisers
    save_every: int = 1  # optimiser steps between saves of a model's state
    batch_gradients: bool = False  # whether gradients of several models may be computed in one pass


@dataclass(frozen=True)
class JobLimits(BodyLimits):
    """Of the server of jobs."""

    json_bytes: int = 32 * 2**20
    queued_per_key: int = 16  # jobs that wait or run
    kept_per_key: int = 1000  # jobs, those that have ended included
    bytes_per_key: int = 20 * 2**30  # on disk, of all jobs of a key; looked at when a job is submitted
    at_once: int = 1  # jobs that run at the same time
    hours: float = 24.0  # that a job may train, from each start of its process
    grace: float = 120.0  # seconds that a job has to save a checkpoint when it is ended
