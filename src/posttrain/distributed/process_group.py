"""The ranks of a learner over torch.distributed: gloo on CPUs, NCCL on GPUs."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from posttrain.errors import ProcessLost, TrainingError, first_line
from posttrain.training.ranks import Ranks

T = TypeVar("T")
TCPStore: Any = getattr(dist, "TCPStore")  # noqa: B009  torch exports it without saying so
BUCKET = 2**24  # numbers that are added up in one call


@contextlib.contextmanager
def peers(*, waiting: bool = True) -> Iterator[None]:
    """Around a collective call, of which all that is not `waiting` is work of this rank's own.

    Raises:
        ProcessLost: it failed, since another rank is gone or has not come to it in time.
    """
    began = time.monotonic()
    try:
        yield
    except RuntimeError as error:
        raise ProcessLost(f"a trainer lost its connection to the others: {first_line(error)}") from error
    finally:
        WAITED[0] += time.monotonic() - began if waiting else 0.0


WAITED = [0.0]  # seconds in collective calls since the process began: a slow rank waits less than the others do


class ProcessGroup(Ranks):
    """This process as one of the ranks; a process has one.

    All ranks meet at `store`, such as a `TCPStore`. The `backend` is gloo or nccl; a call waits `timeout_s` for the
    others before it raises.
    """

    def __init__(self, store: Any, rank: int, size: int, *, backend: str = "gloo", timeout_s: float = 1800.0) -> None:
        self.rank, self.size, self._timeout = rank, size, timedelta(seconds=timeout_s)
        self._grids: dict[int, DeviceMesh] = {}
        self._on_cpus: Any = None
        self.device = "cuda" if backend == "nccl" else "cpu"  # of tensors in collective calls
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=self._timeout)

    def passes(self, rows: int) -> Iterator[tuple[int, float]]:
        """See `Ranks`."""
        return ((number, 1.0) for number in range(self.rank, rows, self.size))

    @peers()
    def merged(self, found: Mapping[int, T]) -> dict[int, T]:
        """See `Ranks`. Each rank's part is pickled by its own process; nothing else can write to the group."""
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, dict(found))
        return dict(sorted((number, value) for part in parts for number, value in part.items()))

    def agree(self, error: BaseException | None) -> None:
        """See `Ranks`."""
        failed = self.merged({} if error is None else {self.rank: repr(error)})
        if failed and error is None:
            rank, why = next(iter(failed.items()))
            raise TrainingError(f"rank {rank} of {self.size} failed: {why}")

    @peers()
    def add_up(self, parameters: Sequence[Tensor]) -> list[Tensor | None]:
        """See `Ranks`."""
        if not parameters:
            return []
        got = [parameter.grad is not None for parameter in parameters]
        here = torch.tensor(got, dtype=torch.uint8, device=self.device)
        dist.all_reduce(here, dist.ReduceOp.MAX)
        found: list[Tensor | None] = [
            None if not anywhere else torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for parameter, anywhere in zip(parameters, here.tolist(), strict=True)
        ]
        for bucket in _buckets([gradient for gradient in found if gradient is not None]):
            flat = torch.cat([gradient.flatten() for gradient in bucket]).to(self.device)
            dist.all_reduce(flat)
            for gradient, total in zip(bucket, flat.split([gradient.numel() for gradient in bucket]), strict=True):
                gradient.copy_(total.view_as(gradient))
        return found

    def grid(self, columns: int) -> DeviceMesh:
        """The ranks as a mesh of `columns` neighbours in each row (`shard`) and of the rows (`replicate`).

        All ranks call it; one row is a mesh of one dimension.
        """
        if columns not in self._grids:
            world = dist.group.WORLD
            assert world is not None
            if columns == self.size:
                self._grids[columns] = DeviceMesh.from_group(world, self.device)
            else:
                ranks = torch.arange(self.size).view(-1, columns)
                groups: list[Any] = [
                    dist.new_subgroups_by_enumeration(each.tolist(), timeout=self._timeout)[0]
                    for each in (ranks.T, ranks)
                ]
                names = ("replicate", "shard")
                self._grids[columns] = DeviceMesh.from_group(groups, self.device, ranks, mesh_dim_names=names)
        return self._grids[columns]

    def on_cpus(self) -> Any:
        """A group of all ranks for checkpoints, over gloo, so that no other call is in its way. All ranks call it."""
        if self._on_cpus is None:
            self._on_cpus = dist.new_group(backend="gloo", timeout=self._timeout)
        return self._on_cpus

    def leave(self) -> None:
        """Leave the group; all ranks do so together."""
        dist.destroy_process_group()


def _buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one number format with `BUCKET` numbers in all, or one that has more."""
    bucket: list[Tensor] = []
    for gradient in gradients:
        full = sum(each.numel() for each in bucket) + gradient.numel() > BUCKET
        if bucket and (full or gradient.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(gradient)
    if bucket:
        yield bucket
