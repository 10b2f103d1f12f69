"""Who may ask, and how much: keys of clients, and limits of what a client may ask for and a server does at once.

The file of keys has their SHA-256 only: secrets are 256 random bits, so guessing is hopeless.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from posttrain.errors import UserError
from posttrain.serving.files import read_json, write_json

OVERHEAD = 4096  # bytes that a request counts besides its body: a file, and what is known of it in memory
PREFIX = "tml-"  # without which the SDK refuses a key
_NAME = re.compile(r"[\w.@-]{1,64}")


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
