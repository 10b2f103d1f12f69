"""Named checkpoints, `tinker://MODEL/weights/NAME` and `.../sampler_weights/NAME`; and who samples from which weights.

Each is a folder of the model's, written whole or not at all, with checksums, and never unpickled
(`training/checkpoint.py`). A model's folder is named after its id. Sampling sessions outlive the server, a file each.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from posttrain.errors import CheckpointError, UserError
from posttrain.serving.base import Adapter, Weights
from posttrain.serving.files import by_age, checked_name, read_json, write_json
from posttrain.training import checkpoint
from posttrain.training.checkpoint import Checkpoint, load_tensors
from posttrain.training.local_learner import MASTERS

Kind = Literal["weights", "sampler_weights"]
KINDS: tuple[Kind, ...] = ("weights", "sampler_weights")

UNNAMED = "unnamed"  # in a model's folder: weights that were saved for one sampling session
STEP = "step-000000"  # the folder of each in its own: they are not numbered
_ADDRESS = re.compile(r"tinker://([^/]*)/(weights|sampler_weights)/([^/]*)", re.DOTALL)
_MODEL = re.compile(r"[0-9a-f]{32}:train:[0-9]{1,9}")


@dataclass(frozen=True)
class Address:
    """Where a checkpoint is."""

    model_id: str
    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"tinker://{self.model_id}/{self.kind}/{self.name}"

    @classmethod
    def of(cls, text: str) -> "Address":
        """Read an address; raises `UserError` for what is none."""
        if (found := _ADDRESS.fullmatch(text)) is None:
            raise UserError(
                f"a checkpoint is tinker://MODEL/weights/NAME or .../sampler_weights/NAME; got '{text[:200]}'"
            )
        if not _MODEL.fullmatch(found[1]):
            raise UserError(f"there is no model '{found[1][:80]}'")
        kind: Any = found[2]
        return cls(found[1], kind, checked_name(found[3]))

    def folder(self, models: Path) -> Path:
        """Its folder among those of all models."""
        return models / folder_name(self.model_id) / self.kind / self.name


def folder_name(model_id: str) -> str:
    """The name of a model's folder."""
    return model_id.replace(":", ".")


def save(
    root: Path, write: Callable[[Path], None], about: dict[str, Any], *, ttl_seconds: int | None, overwrite: bool
) -> None:
    """Save a checkpoint, unless the same request has saved it before.

    A server that is killed after a save and before it has kept the result does the request again. Requests are told
    apart by `about["request"]`. Raises `UserError` if there is one of another request; `OSError`, as on a full disk, is
    no mistake of the client's.
    """
    if not overwrite and (found := read(root)) is not None:
        if "request" in about and found.state.get("request") == about["request"]:
            return
        raise UserError(f"there is a checkpoint '{root.name}' already; give another name, or overwrite it")
    if ttl_seconds is not None and ttl_seconds <= 0:
        raise UserError(f"ttl_seconds must be above 0; got {ttl_seconds}")
    expires = None if ttl_seconds is None else time.time() + ttl_seconds
    try:
        checkpoint.save(root, 0, write, {**about, "expires": expires, "time": time.time()}, keep_last=1)
    except CheckpointError as error:
        raise OSError(str(error)) from error


def read(root: Path) -> Checkpoint | None:
    """The checkpoint in a folder; None if there is none, or it has expired. Raises `CheckpointError` if damaged."""
    found = checkpoint.latest(root)
    return None if found is None or _expired(found.state) else found


def delete(root: Path) -> None:
    """Delete a checkpoint; raises `UserError` if there is none. What is being saved in its place stays."""
    if not (found := sorted(root.glob(f"{STEP}*"))):  # two while one is being replaced
        raise UserError(f"there is no checkpoint '{root.name}'")
    for folder in found:
        shutil.rmtree(folder)


def names(model: Path) -> list[tuple[Kind, str]]:
    """Kind and name of each of a model's checkpoints; deletes nothing, for the thread that saves may be another."""
    return [(kind, root.name) for kind in KINDS for root in sorted((model / kind).glob("*")) if not _gone(root)]


def tidy(model: Path) -> None:
    """Delete checkpoints that have expired, and what an interrupted save has left. Never while something is saved."""
    for root in (root for kind in KINDS for root in (model / kind).glob("*")):
        if _gone(root):
            shutil.rmtree(root, ignore_errors=True)


def _gone(root: Path) -> bool:
    """Whether a folder has no checkpoint yet or any more, or one that has expired; a damaged one is there."""
    if not (found := sorted(root.glob(f"{STEP}*"))):
        return True
    try:
        return _expired(json.loads((found[0] / "state.json").read_text(encoding="utf-8"))["state"])
    except (OSError, ValueError, KeyError):  # damaged, or replaced at this moment
        return False


def _expired(about: dict[str, Any]) -> bool:
    return (about["expires"] or float("inf")) < time.time()


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
        for path in by_age(folder):
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
            found = os.stat(self._models / folder / STEP)
        except FileNotFoundError:
            return f"{folder}@"
        return f"{folder}@{found.st_ino}.{found.st_mtime_ns}"

    def load(self, saved: str) -> Weights:
        """Weights by the name that `saved` has given them, or what has replaced them; raises if both are gone."""
        found = read(self._models / saved.rpartition("@")[0])
        if found is None:
            raise UserError(
                "the weights of this sampler are gone: those without a name are kept for the latest samplers "
                "of a model alone, and others expire or are deleted; save them under a name"
            )
        return Weights(Adapter(**found.state["adapter"]), load_tensors(found.path / MASTERS))

    def _path(self, sampler_id: str) -> Path:
        return self._folder / f"{sampler_id.replace(':', '.')}.json"
