"""What a checkpoint of a training run holds: the policy as a model folder, and the optimiser bit for bit.

Every random choice is a function of the seed and the step (data/order.py), so there is no random state to keep.
"""

import json
from collections.abc import Callable
from pathlib import Path

from posttrain.training.checkpoint import Json, load_tensors, save_tensors
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.optimizer_state import optimizer_state, restore_optimizer

OPTIMIZER, ABOUT, MASTERS = "optimizer.safetensors", "optimizer.json", "masters.safetensors"


def writer(save_policy: Callable[[Path], None], optimizer: MasterAdamW) -> Callable[[Path], None]:
    """A function that fills a checkpoint's folder.

    The folder is a model folder as the sampler saw it, so it can be loaded, evaluated and served as it is. The float32
    masters, of which its weights are the rounding, stand beside it for resuming.
    """

    def write(folder: Path) -> None:
        masters = optimizer.named_masters()
        save_policy(folder)
        save_tensors(folder / MASTERS, masters)
        tensors, about = optimizer_state(optimizer.adam, masters)
        save_tensors(folder / OPTIMIZER, tensors)
        (folder / ABOUT).write_text(json.dumps(about), encoding="utf-8")

    return write


def restore(folder: Path, optimizer: MasterAdamW) -> None:
    """Put weights and optimiser back as they were when the checkpoint was written.

    Raises:
        CheckpointError: the checkpoint belongs to another model or optimiser.
    """
    optimizer.load_masters(load_tensors(folder / MASTERS))
    about: dict[str, Json] = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    restore_optimizer(optimizer.adam, optimizer.named_masters(), load_tensors(folder / OPTIMIZER), about)
