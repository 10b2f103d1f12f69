"""What a checkpoint of a training run holds: the policy as a model folder, and the optimiser bit for bit.

Every random choice is a function of the seed and the step (data/order.py), so there is no random state to keep.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from posttrain.errors import UserError
from posttrain.training.checkpoint import Checkpoint, Json, latest, load_tensors, save_tensors
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.optimizer_state import optimizer_state, restore_optimizer

OPTIMIZER, ABOUT, MASTERS = "optimizer.safetensors", "optimizer.json", "masters.safetensors"
REFERENCE = "reference.safetensors"


def writer(
    save_policy: Callable[[Path], None],
    optimizer: MasterAdamW,
    critic: MasterAdamW | None = None,
    reference: Mapping[str, Tensor] | None = None,
) -> Callable[[Path], None]:
    """A function that fills a checkpoint's folder.

    The folder is a model folder as the sampler saw it, so it can be loaded, evaluated and served as it is. The float32
    masters of what is trained stand beside it for resuming, and the critic's where there is one;
    so do the weights of a `reference` that has been renewed.
    """

    def write(folder: Path) -> None:
        save_policy(folder)
        if reference:
            save_tensors(folder / REFERENCE, reference)
        for name, part in _parts(optimizer, critic):
            masters = part.named_masters()
            save_tensors(folder / (name + MASTERS), masters)
            tensors, about = optimizer_state(part.adam, masters)
            save_tensors(folder / (name + OPTIMIZER), tensors)
            (folder / (name + ABOUT)).write_text(json.dumps(about), encoding="utf-8")

    return write


def restore(folder: Path, optimizer: MasterAdamW, critic: MasterAdamW | None = None) -> None:
    """Put weights and optimisers back as they were when the checkpoint was written.

    Raises:
        CheckpointError: the checkpoint belongs to another model or optimiser.
    """
    for name, part in _parts(optimizer, critic):
        part.load_masters(load_tensors(folder / (name + MASTERS)))
        about: dict[str, Json] = json.loads((folder / (name + ABOUT)).read_text(encoding="utf-8"))
        restore_optimizer(part.adam, part.named_masters(), load_tensors(folder / (name + OPTIMIZER)), about)


def _parts(optimizer: MasterAdamW, critic: MasterAdamW | None) -> list[tuple[str, MasterAdamW]]:
    """Each optimiser with what its files' names begin with."""
    return [("", optimizer)] if critic is None else [("", optimizer), ("critic-", critic)]


def restore_latest(checkpoints: Path, optimizer: MasterAdamW, critic: MasterAdamW | None = None) -> Checkpoint:
    """Put weights and optimisers back as they were at the newest checkpoint that is whole, and return it.

    Its `skipped` names newer ones that are damaged, which the user should be told.

    Raises:
        UserError: there is no checkpoint yet.
        CheckpointError: every one is damaged, or belongs to another model or optimiser.
    """
    found = latest(checkpoints)
    if found is None:
        raise UserError(f"there is no checkpoint in {checkpoints} yet, so nothing to resume; start a new run")
    restore(found.path, optimizer, critic)
    skipped = tuple(f"damaged and passed over: {line}; going on from step {found.step}" for line in found.skipped)
    return replace(found, skipped=skipped)
