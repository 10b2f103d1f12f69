"""Checkpoint contents: model folder and optimizer state.

Every random choice is a function of the seed and the step (data/order.py), so there is no random state to keep.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.models.reference import Reference
from posttrain.training.checkpoint import Json
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.optimizer_state import optimizer_state, restore_optimizer
from posttrain.training.shards import REPLICATED, Shards

OPTIMIZER, ABOUT, MASTERS = "optimizer.safetensors", "optimizer.json", "masters.safetensors"
REFERENCE = "reference.safetensors"


@dataclass(frozen=True)
class Trained:
    """The trained state of a run, as saved in a checkpoint.

    The folder is a model folder with the weights that the sampler used, so it can be loaded, evaluated and served
    directly. For resuming it also has the float32 master weights, those of the critic, if there is one, and the weights
    of a reference that is updated during training.

    Attributes:
        save_model: writes the model folder.
        optimizer: of what is trained.
        critic: the critic's optimiser.
        reference: a reference that is updated during training; None for a frozen one.
        network: what `save_model` writes; on sharded ranks it is unsharded meanwhile.
        shards: of all weights.
    """

    save_model: Callable[[Path], None]
    optimizer: MasterAdamW
    critic: MasterAdamW | None = None
    reference: Reference | None = None
    network: Any = None
    shards: Shards = REPLICATED

    def save(self, folder: Path, *, writes: bool = True) -> None:
        """Fill a checkpoint's folder; sharded ranks all call it, and rank 0 `writes`."""
        with self.shards.unsharded(self.network, folder):
            if writes:
                self.save_model(folder)
        if self.reference is not None and (weights := self.reference.kept()):
            self.shards.save(folder / REFERENCE, weights, writes=writes)
        for name, part in self._parts():
            masters = part.named_masters()
            self.shards.save(folder / (name + MASTERS), masters, writes=writes)
            tensors, about = optimizer_state(part.adam, masters)
            self.shards.save(folder / (name + OPTIMIZER), tensors, writes=writes)
            if writes:
                (folder / (name + ABOUT)).write_text(json.dumps(about), encoding="utf-8")

    def restore(self, folder: Path) -> None:
        """Restore weights and optimisers from a checkpoint.

        Raises:
            CheckpointError: the checkpoint belongs to another model or optimiser.
        """
        for name, part in self._parts():
            masters = part.named_masters()
            about: dict[str, Json] = json.loads((folder / (name + ABOUT)).read_text(encoding="utf-8"))
            tensors = self.shards.load(folder / (name + OPTIMIZER), masters)  # first: it may not be there
            part.load_masters(self.shards.load(folder / (name + MASTERS), masters))
            restore_optimizer(part.adam, masters, tensors, about, self.shards)
        if self.reference is not None:
            own = self.reference.kept()
            saved = self.shards.load(folder / REFERENCE, own)
            self.reference.renew({name: self.shards.shard_like(saved[name], mine) for name, mine in own.items()})

    def _parts(self) -> list[tuple[str, MasterAdamW]]:
        """Each optimiser with what its files' names begin with."""
        return [("", self.optimizer)] if self.critic is None else [("", self.optimizer), ("critic-", self.critic)]
