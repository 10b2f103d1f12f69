"""Sessions of clients: whose each is; and their sampling sessions: which weights each samples from.

They outlive the server, a file each, so that a client goes on with the next one.
"""

import os
import re
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock

from posttrain.errors import UserError
from posttrain.serving import checkpoints
from posttrain.serving.base import Adapter, Weights
from posttrain.serving.files import read_json, write_json
from posttrain.training.checkpoint import load_tensors
from posttrain.training.local_learner import MASTERS

IDLE_SECONDS = 3600.0  # since a session was last heard of, after which it makes room for others of its key
KEPT_SECONDS = 30 * 86400.0  # after which it is forgotten
UNNAMED = "unnamed"  # in a model's folder: weights that were saved for one sampling session
_ID = re.compile(r"[0-9a-f]{32}")


def _files(folder: Path) -> list[Path]:
    """The files of sessions, the oldest first."""
    folder.mkdir(parents=True, exist_ok=True)
    return sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)


class Sessions:
    """All sessions, a file each, whose time is when the client was last there."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder, self._most, self._lock = folder, most, Lock()
        found = _files(folder)
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
        if not _ID.fullmatch(session_id) or self._owners.get(session_id) != owner:
            raise UserError(f"there is no session '{session_id[:80]}'")
        return session_id


@dataclass(frozen=True)
class Sampler:
    """A sampling session."""

    sampler_id: str  # its id
    owner: str  # whose it is
    base_model: str  # name of the base
    model_path: str = ""  # address of the weights; "" for the base, and for weights without a name
    folder: str = ""  # of the weights, below the folder of all models; "" for the base


class Samplers:
    """All sampling sessions, a file each; of each owner the latest `most`."""

    def __init__(self, folder: Path, models: Path, most: int) -> None:
        self._folder, self._models, self._most, self._lock = folder, models, most, Lock()
        self._by_owner: dict[str, dict[str, Sampler]] = {}  # the oldest first
        for path in _files(folder):
            self._keep(Sampler(**read_json(path)))

    def add(self, sampler: Sampler) -> None:
        """Keep one, and forget the owner's oldest beyond those that are kept."""
        write_json(self._path(sampler.sampler_id), asdict(sampler))
        with self._lock:
            self._keep(sampler)

    def _keep(self, sampler: Sampler) -> None:
        mine = self._by_owner.setdefault(sampler.owner, {})
        mine.pop(sampler.sampler_id, None)
        mine[sampler.sampler_id] = sampler
        while len(mine) > self._most:
            oldest = next(iter(mine))
            self._path(oldest).unlink(missing_ok=True)
            del mine[oldest]

    def get(self, owner: str, sampler_id: str) -> Sampler:
        """The session of this id; raises `UserError` if the owner has none."""
        found = self._by_owner.get(owner, {}).get(sampler_id)
        if found is None:
            raise UserError(f"there is no sampler '{sampler_id[:80]}'")
        return found

    def saved(self, folder: str) -> str:
        """The weights that are in a sampler's folder now, which have another name when they are overwritten."""
        try:
            found = os.stat(self._models / folder / checkpoints.STEP)
        except FileNotFoundError:
            return f"{folder}@"
        return f"{folder}@{found.st_ino}.{found.st_mtime_ns}"

    def load(self, saved: str) -> Weights:
        """Weights by the name that `saved` has given them, or what has replaced them; raises if both are gone."""
        found = checkpoints.read(self._models / saved.rpartition("@")[0])
        if found is None:
            raise UserError(
                "the weights of this sampler are gone: those without a name are kept for the latest samplers "
                "of a model alone, and others expire or are deleted; save them under a name"
            )
        return Weights(Adapter(**found.state["adapter"]), load_tensors(found.path / MASTERS))

    def _path(self, sampler_id: str) -> Path:
        return self._folder / f"{sampler_id.replace(':', '.')}.json"
