"""What one rank holds of a learner's weights: all of them (`REPLICATED`), or a shard of each.

A sharded tensor has the shape of the full one (torch's DTensor), so that most of the optimiser and of checkpoints need
not know of it. Rounding by flat position and norms over all shards need this interface.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from posttrain.models.rounding import l2_norm
from posttrain.training.checkpoint import load_tensors, save_tensors
from posttrain.training.sharded_files import folder_of, read_shards, room_for_shards

Named = Iterable[tuple[str, Tensor]]


class Shards(Protocol):
    """The weights of a learner as one of its ranks holds them. All ranks call the same methods in the same order."""

    def row_pass(self) -> contextlib.AbstractContextManager[None]:
        """Around the passes of one packed row; at its end, the parameters that were unsharded for them are freed."""
        ...

    def device(self, weight: Tensor) -> torch.device:
        """Where passes read a weight; shards of it may be in the host's memory."""
        ...

    def sharded(self, weight: nn.Parameter) -> nn.Parameter:
        """The parameter that took the place of this one when its network was sharded; itself if it is replicated."""
        ...

    def local(self, tensor: Tensor) -> Tensor:
        """The local shard of a tensor, a range of its rows, as a plain tensor in the same memory."""
        ...

    def offset(self, tensor: Tensor) -> int:
        """The offset of the local shard in the flat tensor."""
        ...

    def gradient(self, weight: Tensor) -> Tensor:
        """The gradient of `local(weight)` of the last pass; of a shard, summed over ranks in float32 or wider."""
        ...

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The global norm of these gradients."""
        ...

    def local_step(self, adam: torch.optim.Optimizer) -> contextlib.AbstractContextManager[None]:
        """Around a step of `adam`: while the block runs, it holds the local shards, as plain tensors."""
        ...

    def shard_like(self, found: Tensor, like: Tensor) -> Tensor:
        """A full tensor, which all ranks have, sharded as `like` is; what is sharded already is left as it is."""
        ...

    def save(self, path: Path, tensors: Mapping[str, Tensor], *, writes: bool) -> None:
        """Write tensors to a safetensors file, which rank 0 `writes`; all ranks take part.

        Sharded tensors above `sharded_files.APART_BYTES` in all are written to the folder `folder_of(path)` instead,
        by each rank its shards.
        """
        ...

    def load(self, path: Path, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Read what `save` has written there on any number of ranks.

        In full, or sharded as that of `like` is whose name a tensor's begins with: NAME, or NAME/KEY.

        Raises:
            CheckpointError: it cannot be read.
        """
        ...

    def full_tensors(self, named: Named, folder: Path | None = None) -> list[tuple[str, Tensor]]:
        """The full tensors, on rank 0 alone; all ranks take part, one tensor at a time.

        They are mapped from unnamed files on the disk of `folder`, or of temporary files, and need not stay in memory.
        """
        ...

    def unsharded(self, network: Any, folder: Path) -> contextlib.AbstractContextManager[None]:
        """While the block runs, the parameters of `network` on rank 0 are those of `full_tensors`."""
        ...


class Replicated:
    """All weights, on each rank. Conforms to `Shards`; nothing is copied."""

    def row_pass(self) -> contextlib.AbstractContextManager[None]:
        """See `Shards`."""
        return contextlib.nullcontext()

    def device(self, weight: Tensor) -> torch.device:
        """See `Shards`."""
        return weight.device

    def sharded(self, weight: nn.Parameter) -> nn.Parameter:
        """See `Shards`."""
        return weight

    def local(self, tensor: Tensor) -> Tensor:
        """See `Shards`."""
        return tensor

    def offset(self, tensor: Tensor) -> int:
        """See `Shards`."""
        return 0

    def gradient(self, weight: Tensor) -> Tensor:
        """See `Shards`; of this rank alone, in the format of the weight."""
        assert weight.grad is not None
        return weight.grad

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """See `Shards`."""
        return torch.linalg.vector_norm(torch.stack([l2_norm(g) for g in gradients]))

    def local_step(self, adam: torch.optim.Optimizer) -> contextlib.AbstractContextManager[None]:
        """See `Shards`."""
        return contextlib.nullcontext()

    def shard_like(self, found: Tensor, like: Tensor) -> Tensor:
        """See `Shards`."""
        return found

    def save(self, path: Path, tensors: Mapping[str, Tensor], *, writes: bool) -> None:
        """See `Shards`."""
        if writes:
            save_tensors(path, tensors)

    def load(self, path: Path, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """See `Shards`."""
        if not (apart := folder_of(path)).is_dir():
            return load_tensors(path)
        read_shards(apart, room := room_for_shards(apart, like))
        return room

    def full_tensors(self, named: Named, folder: Path | None = None) -> list[tuple[str, Tensor]]:
        """See `Shards`; the tensors themselves, on every rank."""
        return list(named)

    def unsharded(self, network: Any, folder: Path) -> contextlib.AbstractContextManager[None]:
        """See `Shards`."""
        return contextlib.nullcontext()


REPLICATED = Replicated()
