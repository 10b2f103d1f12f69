"""What the ranks of one learner tell each other, and hold of its weights. A learner in one process is `ALONE`.

The ranks see the same batches. Each computes every `size`-th packed row; results are merged by the number of the row,
in one order, so that sums and means are those of one process, and gradients are added up before they are measured. Each
holds all weights (`REPLICATED`), or a shard of each.

A sharded tensor has the shape of the full one (torch's DTensor), so that most of the optimiser and of checkpoints need
not know of it. Rounding by flat position and norms over all shards need the interface `Shards`.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from posttrain.models.language_model import LanguageModel
from posttrain.models.rounding import l2_norm
from posttrain.training.checkpoint import load_tensors, save_tensors
from posttrain.training.sharded_files import folder_of, read_shards, room_for_shards

R = TypeVar("R")
T = TypeVar("T")
Named = Iterable[tuple[str, Tensor]]


class Shards:
    """The weights of a learner as a rank holds them: here all, in a subclass a shard of each.

    All ranks call the same methods in the same order.
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
        """The gradient of `local(weight)` of the last pass: of shards the wide sum over ranks, of replicas the own."""
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

        Of shards above `sharded_files.APART_BYTES` in all each rank writes its own, to the folder `folder_of(path)`.
        """
        if writes:
            save_tensors(path, tensors)

    def load(self, path: Path, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Read what `save` has written there on any number of ranks.

        In full, or sharded as that of `like` is whose name a tensor's begins with: NAME, or NAME/KEY.
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


class Ranks:
    """The ranks of a learner as one sees them, which is here the only one; methods as those of `Shards`."""

    rank: int = 0
    size: int = 1
    loads_on: str = "auto"  # where models are loaded: `cpu` if it is `shard` that puts them where they compute

    def passes(self, rows: int) -> Iterator[tuple[int, float]]:
        """Which of `rows` rows this rank computes, and the weights of their gradients: 0 in dummy passes."""
        return ((number, 1.0) for number in range(rows))

    def shard(self, bodies: Iterable[LanguageModel], optimizers: Iterable[Any]) -> Shards:
        """Shard the weights of these models and what their optimisers hold, unless these ranks hold replicas."""
        return REPLICATED

    def merged(self, found: Mapping[int, T]) -> dict[int, T]:
        """What all ranks have found, by number, in ascending order of the numbers."""
        return dict(found)

    def agree(self, error: BaseException | None) -> None:
        """Tell the other ranks whether this one has failed; raises `TrainingError` where only another one has."""

    def add_up(self, parameters: Sequence[Tensor]) -> list[Tensor | None]:
        """Of each parameter the sum of its gradients over the ranks, the same bits on all; None where none has one."""
        return [parameter.grad for parameter in parameters]


ALONE = Ranks()


def over(
    rows: Sequence[R], compute: Callable[[R, float], T], ranks: Ranks, shards: Shards = REPLICATED
) -> dict[int, T]:
    """What `compute` finds of each packed row and the weight of its gradient, on whichever rank, by number."""
    found: dict[int, T] = {}

    def compute_mine() -> None:
        for number, weight in ranks.passes(len(rows)):
            with shards.row_pass():
                value = compute(rows[number], weight)
            if weight:
                found[number] = value

    together(compute_mine, ranks)
    return ranks.merged(found)


def together(work: Callable[[], None], ranks: Ranks) -> None:
    """Do what this rank has to, and raise on all ranks where it fails on one: none waits for a rank that has failed."""
    try:
        work()
    except BaseException as failure:
        ranks.agree(failure)
        raise
    ranks.agree(None)
