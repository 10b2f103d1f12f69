"""The ranks of a learner over torch.distributed, gloo on CPUs and NCCL on GPUs; and the collective calls of FSDP."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """Around a collective call; raises `ProcessLost` if a rank is gone or late. What is not `waiting` is own work."""
    began = time.monotonic()
    try:
        yield
    except RuntimeError as error:
        raise ProcessLost(f"a trainer lost its connection to the others: {first_line(error)}") from error
    finally:
        WAITED[0] += time.monotonic() - began if waiting else 0.0


WAITED = [0.0]  # seconds in collective calls since the process began: a slow rank waits less than the others do


class ProcessGroup(Ranks):
    """This process as one of the ranks, which meet at `store`; a call waits `timeout_s` for the others, or raises."""

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


class _Meeting:
    """A collective call of FSDP; before it the ranks `meet`, with the number of elements that each sends."""

    def __init__(self, meet: Callable[[int], None]) -> None:
        self._meet = meet

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class AllGather(_Meeting):
    """Conforms to FSDP's `AllGather`."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> None:
        """Gather the shards of all ranks."""
        self._meet(input_tensor.numel())
        dist.all_gather_single(as_bytes(output_tensor), as_bytes(input_tensor), group=group)


class ReduceScatter(_Meeting):
    """Conforms to FSDP's `ReduceScatter`; keeps the last sum until it is taken, if FSDP has it `rounded`."""

    last: Tensor | None = None
    _taken = 0  # of its numbers

    def __init__(self, meet: Callable[[int], None], *, rounded: bool) -> None:
        super().__init__(meet)
        self._rounded = rounded

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for what is sent, and then for the sum; FSDP makes no call for the sum of a single rank."""
        found = super().allocate(size, dtype=dtype, device=device)
        if self._rounded:
            self.last, self._taken = found, 0
        return found

    def exact(self, rounded: Tensor, rows: int) -> Tensor:
        """The gradient of a shard before FSDP has rounded it to the format of its weight.

        FSDP gives the gradients of a sum one after another, in the order in which they are in it, each padded to as
        many `rows` as the largest shard has.
        """
        if not self._rounded:
            return rounded
        wide, start = self.last, self._taken
        assert wide is not None
        self._taken += rows * math.prod(rounded.shape[1:])
        if self._taken == wide.numel():
            self.last = None  # all of it is taken: the sums of all layers are as large as the gradient
        copied = rounded.device != wide.device  # to the host's memory
        assert copied or rounded.storage_offset() == start, "FSDP has another layout of gradients"
        assert self._taken <= wide.numel(), "FSDP has given a gradient twice"
        return wide[start : start + rounded.numel()].view(rounded.shape)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Sum over the ranks; each gets its shard."""
        self._meet(input_tensor.numel())
        dist.reduce_scatter_single(output_tensor, input_tensor, op, group=group)


def as_bytes(tensor: Tensor) -> Tensor:
    """The same memory; gloo does not know every number format."""
    return tensor.view(-1).view(torch.uint8)
