"""What one rank holds of a learner's weights: all of them (`REPLICATED`), or a shard of each.

A sharded tensor has the shape of the full one (torch's DTensor), so that most of the optimiser and of checkpoints need
not know of it. Rounding by flat position and norms over all shards need this interface.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.models.rounding import l2_norm
from posttrain.training.checkpoint import load_tensors, save_tensors
from posttrain.training.sharded_files import folder_of, read_shards, room_for_shards

Named = Iterable[tuple[str, Tensor]]


class Shards:
    """The weights of a learner as one of its ranks holds them. All ranks call the same methods in the same order.

    In this class each rank holds all of them, and nothing is copied; in a subclass a shard of each.
    """

    def row_pass(self) -> contextlib.AbstractContextManager[None]:
        """Around the passes of one packed row; at its end, the parameters that were unsharded for them are freed."""
        return contextlib.nullcontext()

    def device(self, weight: Tensor) -> torch.device:
        """Where passes read a weight; shards of it may be in the host's memory."""
        return weight.device

    def sharded(self, weight: nn.Parameter) -> nn.Parameter:
        """The parameter that took the place of this one when its network was sharded; itself if it is replicated."""
        return weight

    def local(self, tensor: Tensor) -> Tensor:
        """The local shard of a tensor, a range of its rows, as a plain tensor in the same memory."""
        return tensor

    def offset(self, tensor: Tensor) -> int:
        """The offset of the local shard in the flat tensor."""
        return 0

    def gradient(self, weight: Tensor) -> Tensor:
        """The gradient of `local(weight)` of the last pass.

        Of a shard it is summed over ranks, in float32 or wider; of a replica it is this rank's, in the weight's format.
        """
        assert weight.grad is not None
        return weight.grad

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The global norm of these gradients."""
        return torch.linalg.vector_norm(torch.stack([l2_norm(g) for g in gradients]))

    def local_step(self, adam: torch.optim.Optimizer) -> contextlib.AbstractContextManager[None]:
        """Around a step of `adam`: while the block runs, it holds the local shards, as plain tensors."""
        return contextlib.nullcontext()

    def shard_like(self, found: Tensor, like: Tensor) -> Tensor:
        """A full tensor, which all ranks have, sharded as `like` is; what is sharded already is left as it is."""
        return found

    def save(self, path: Path, tensors: Mapping[str, Tensor], *, writes: bool) -> None:
        """Write tensors to a safetensors file, which rank 0 `writes`; all ranks take part.

        Sharded tensors above `sharded_files.APART_BYTES` in all are written to the folder `folder_of(path)` instead,
        by each rank its shards.
        """
        if writes:
            save_tensors(path, tensors)

    def load(self, path: Path, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Read what `save` has written there on any number of ranks.

        In full, or sharded as that of `like` is whose name a tensor's begins with: NAME, or NAME/KEY.

        Raises:
            CheckpointError: it cannot be read.
        """
        if not (apart := folder_of(path)).is_dir():
            return load_tensors(path)
        read_shards(apart, room := room_for_shards(apart, like))
        return room

    def full_tensors(self, named: Named, folder: Path | None = None) -> list[tuple[str, Tensor]]:
        """The full tensors; all ranks take part, one tensor at a time.

        Of shards rank 0 alone gets them, mapped from unnamed files on the disk of `folder`, or of temporary files, and
        they need not stay in memory. Of replicas they are the tensors themselves, on every rank.
        """
        return list(named)

    def unsharded(self, network: Any, folder: Path) -> contextlib.AbstractContextManager[None]:
        """While the block runs, the parameters of `network` on rank 0 are those of `full_tensors`."""
        return contextlib.nullcontext()


REPLICATED = Shards()
