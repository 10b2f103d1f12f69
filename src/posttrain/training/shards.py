"""What one rank holds of a learner's weights: all of them (`WHOLE`), or a shard of each.

Shards are tensors with the shape of the whole, so that the optimiser and checkpoints need not know of them; only what
is computed from places or lengths asks here.
"""

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

Named = Iterable[tuple[str, Tensor]]


class Shards(Protocol):
    """The weights of a learner as one of its ranks holds them. All ranks call the same methods in the same order."""

    def turn(self) -> contextlib.AbstractContextManager[None]:
        """Around the passes of one packed row; at its end, weights that were gathered for them are freed."""
        ...

    def current(self, weight: nn.Parameter) -> nn.Parameter:
        """The parameter that took the place of this one when weights were divided."""
        ...

    def local(self, tensor: Tensor) -> Tensor:
        """What this rank has of a tensor, as a plain tensor in the same memory: some of its rows."""
        ...

    def start(self, tensor: Tensor) -> int:
        """The place of the first number of `local` in the flat tensor."""
        ...

    def gradient(self, weight: Tensor) -> Tensor:
        """The gradient of the last backward pass, summed over the ranks, of `local(weight)`; in float32 or wider."""
        ...

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The length of all gradients together."""
        ...

    def stepping(self, adam: torch.optim.Optimizer) -> contextlib.AbstractContextManager[None]:
        """Around an update: while the block runs, `adam` has plain tensors, `local` of what it holds."""
        ...

    def placed(self, whole: Tensor, like: Tensor) -> Tensor:
        """A tensor that all ranks have, held as `like` is."""
        ...

    def gathered(self, named: Named, folder: Path | None = None) -> list[tuple[str, Tensor]]:
        """The whole tensors, on rank 0 alone, where one at a time is in memory.

        They are in files without a name on the disk of `folder`, or where temporary files are, until they are freed.
        """
        ...

    def assembled(self, network: Any, folder: Path) -> contextlib.AbstractContextManager[None]:
        """While the block runs, the parameters of `network` are whole tensors on rank 0, as by `gathered`."""
        ...


class Whole:
    """All weights. Conforms to `Shards`; nothing is copied."""

    def turn(self) -> contextlib.AbstractContextManager[None]:
        """See `Shards`."""
        return contextlib.nullcontext()

    def current(self, weight: nn.Parameter) -> nn.Parameter:
        """See `Shards`."""
        return weight

    def local(self, tensor: Tensor) -> Tensor:
        """See `Shards`."""
        return tensor

    def start(self, tensor: Tensor) -> int:
        """See `Shards`."""
        return 0

    def gradient(self, weight: Tensor) -> Tensor:
        """See `Shards`; of this rank alone, in the format of the weight."""
        assert weight.grad is not None
        return weight.grad

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """See `Shards`."""
        return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))

    def stepping(self, adam: torch.optim.Optimizer) -> contextlib.AbstractContextManager[None]:
        """See `Shards`."""
        return contextlib.nullcontext()

    def placed(self, whole: Tensor, like: Tensor) -> Tensor:
        """See `Shards`."""
        return whole

    def gathered(self, named: Named, folder: Path | None = None) -> list[tuple[str, Tensor]]:
        """See `Shards`; the tensors themselves, on every rank."""
        return list(named)

    def assembled(self, network: Any, folder: Path) -> contextlib.AbstractContextManager[None]:
        """See `Shards`."""
        return contextlib.nullcontext()


WHOLE = Whole()
