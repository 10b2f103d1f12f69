"""Sampling sessions: which weights each samples from. They outlive the server."""

import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock

from posttrain.errors import UserError
from posttrain.serving import checkpoints
from posttrain.serving.base import Adapter
from posttrain.serving.decoder import Weights
from posttrain.serving.files import read_json, write_json
from posttrain.training.checkpoint import load_tensors
from posttrain.training.local_learner import MASTERS

UNNAMED = "unnamed"  # in a model's folder: weights that were saved for one sampling session


@dataclass(frozen=True)
class Sampler:
    """A sampling session.

    Attributes:
        sampler_id: its id.
        owner: whose it is.
        base_model: name of the base.
        model_path: address of the weights; "" for the base, and for weights without a name.
        folder: of the weights, below the folder of all models; "" for the base.
    """

    sampler_id: str
    owner: str
    base_model: str
    model_path: str = ""
    folder: str = ""


class Samplers:
    """All sampling sessions, a file each; of each owner the latest `most`."""

    def __init__(self, folder: Path, models: Path, most: int) -> None:
        self._folder, self._models, self._most, self._lock = folder, models, most, Lock()
        self._by_owner: dict[str, dict[str, Sampler]] = {}  # the oldest first
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime):
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
        """Weights by the name that `saved` has given them; those that have replaced them, if they are gone.

        Raises:
            UserError: they are gone.
            CheckpointError: they are damaged.
        """
        found = checkpoints.read(self._models / saved.rpartition("@")[0])
        if found is None:
            raise UserError(
                "the weights of this sampler are gone: those without a name are kept for the latest samplers "
                "of a model alone, and others expire or are deleted; save them under a name"
            )
        return Weights(Adapter.of(found.about["adapter"]), load_tensors(found.folder / MASTERS))

    def prune(self, model: Path, kept: int) -> None:
        """Delete a model's oldest weights without a name."""
        found = sorted((model / UNNAMED).iterdir(), key=lambda path: int(path.name))
        for path in found[:-kept]:
            shutil.rmtree(path)

    def _path(self, sampler_id: str) -> Path:
        return self._folder / f"{sampler_id.replace(':', '.')}.json"
