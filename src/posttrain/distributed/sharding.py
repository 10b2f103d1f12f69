"""Sharding of weights, gradients, master weights and Adam's moments over the ranks of a learner, by FSDP2.

With fewer shards than ranks there are replicas of the sharded model (HSDP): neighbouring ranks hold the shards of one,
and gradients are summed over the shards' owners in each replica, then over the replicas.

Each decoder layer is unsharded for its passes and freed after them; embedding, head and final norm stay unsharded for
all passes of one packed row. Every parameter is sharded by rows. Parameters of an adapter, and of heads outside the
network, are replicated: there are few.

Models are loaded into the host's memory, and sharded on to a GPU layer by layer, so that it never holds a whole one.
With offloaded shards (FSDP's `CPUOffloadPolicy`) the shards stay there, with gradients, masters and moments, and AdamW
is computed there; a layer is copied to the GPU for its passes.

The ranks compute the same layers in lockstep. So a rank that has no row in the last round computes the row of another,
with a gradient of weight 0; and before each collective call the ranks meet, where one that has failed says so, so that
none waits for it.
"""

import contextlib
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.weak import WeakTensorKeyDictionary

from posttrain.distributed.process_group import AllGather, ProcessGroup, ReduceScatter, as_bytes, peers
from posttrain.errors import TrainingError, UserError
from posttrain.models.fused import decoder_layers
from posttrain.models.host_memory import return_large_blocks
from posttrain.models.language_model import LanguageModel
from posttrain.models.rounding import l2_norm
from posttrain.training.checkpoint import load_tensors, save_tensors
from posttrain.training.optimizer import WIDE
from posttrain.training.ranks import Named, Ranks, Shards
from posttrain.training.sharded_files import APART_BYTES, folder_of, read_shards, room_for_shards, write_shards

T = TypeVar("T")


class PeerFailed(TrainingError):
    """Another rank has failed; all ranks know it."""


def check_torch() -> None:
    """Raise `UserError` if torch is too old for sharded ranks."""
    if not hasattr(FSDPModule, "reset_iter_state"):
        raise UserError(f"`fsdp` needs torch 2.13 or later; this is {torch.__version__}")


class ShardedRanks(Ranks):
    """A process group whose learners are sharded; all ranks construct it.

    One replica has `shards`, which divide the number of ranks; with `offload` they stay in the host's memory while
    no layer needs them.
    """

    loads_on = "cpu"

    def __init__(self, group: ProcessGroup, shards: int, *, offload: bool = False) -> None:
        self._group, self.rank, self.size = group, group.rank, group.size
        self.shards, self.mesh = shards, group.grid(shards)
        self.device, self.on_cpus, self.offload = group.device, group.on_cpus, offload
        self.merged, self.add_up = group.merged, group.add_up

    def passes(self, rows: int) -> Iterator[tuple[int, float]]:
        """See `Ranks`; the same number on all ranks, with dummy passes of the last row."""
        yield from self._group.passes(rows)
        if self.rank >= rows % self.size > 0:
            yield rows - 1, 0.0

    def shard(self, bodies: Iterable[LanguageModel], optimizers: Iterable[Any]) -> Shards:
        """See `Ranks`."""
        shards = _FSDPShards(self, bodies)
        for optimizer in optimizers:
            optimizer.shard(shards)
        return shards

    def agree(self, error: BaseException | None) -> None:
        """See `Ranks`."""
        if not isinstance(error, PeerFailed):
            self.meet(0, error)

    def meet(self, numbers: int, error: BaseException | None = None) -> None:
        """Before a collective call: raise `PeerFailed` unless all ranks are about to make it, on tensors of this size.

        A rank that has failed comes with its `error`, and only the others raise.
        """
        state = torch.tensor([error is not None, numbers, -numbers], device=self.device)
        with peers():
            dist.all_reduce(state, dist.ReduceOp.MAX)
        failed, most, least = state.tolist()
        if failed:
            told = self.merged({} if error is None else {self.rank: repr(error)})
            if error is None:
                rank, why = next(iter(told.items()))
                raise PeerFailed(f"rank {rank} of {self.size} failed: {why}")
        elif most != -least:
            raise PeerFailed(f"the ranks compute different layers: of {-least} and of {most} numbers")


class _FSDPShards(Shards):
    """Weights that are sharded by rows. Conforms to `training.ranks.Shards`, which says what each method does.

    All ranks construct it together. The networks of `bodies` are sharded in place; two may have one network.
    """

    def __init__(self, ranks: ShardedRanks, bodies: Iterable[LanguageModel]) -> None:
        return_large_blocks()
        self._ranks, self._shard = ranks, ranks.rank % ranks.shards
        self._replica = ranks.mesh.get_group(ranks.mesh.ndim - 1)  # the ranks that hold the shards of one
        self._sharded: Any = WeakTensorKeyDictionary()  # by the parameter that it replaced
        self._sums: dict[int, ReduceScatter] = {}  # by the identity of a sharded parameter
        self._used: set[Any] = set()
        self._device = torch.empty(0, device=ranks.device).device  # with its number
        roots: dict[int, _Root] = {}
        for body in bodies:
            if (key := id(body.network)) not in roots:
                roots[key] = self._fully_sharded(body)
            body.trunk, body.computes_on = partial(self._read, roots[key]), self._device

    def _fully_sharded(self, body: LanguageModel) -> "_Root":
        network: Any = body.network
        kept = set() if body.adapter is None else {p for p in network.parameters() if p.requires_grad}
        root = _Root(network, kept)
        formats = {p.dtype for p in network.parameters() if p not in kept}
        if len(formats) > 1:
            raise UserError(f"the weights of '{body.name}' are in {len(formats)} number formats and cannot be sharded")
        # gradients are summed over ranks in float32, as they are over micro-batches
        policy = MixedPrecisionPolicy(
            reduce_dtype=None if formats == {torch.float64} else torch.float32, cast_forward_inputs=False
        )
        pinned = self._ranks.device == "cuda"
        offload = CPUOffloadPolicy(pin_memory=pinned) if self._ranks.offload else OffloadPolicy()
        more: dict[str, Any] = {"mp_policy": policy, "offload_policy": offload, "ignored_params": kept}
        for module in (*decoder_layers(network), root):
            places = _places(module)
            part: Any = fully_shard(module, mesh=self._ranks.mesh, **more)
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
            part.set_custom_all_gather(AllGather(self._ranks.meet))
            part.set_custom_reduce_scatter(sums := ReduceScatter(self._ranks.meet, rounded=formats.isdisjoint(WIDE)))
            for owner, name, old in places:
                if old not in kept and not isinstance(old, DTensor):
                    self._sharded[old] = new = owner.get_parameter(name)
                    self._sums[id(new)] = sums
        return root

    def _read(self, root: "_Root", **inputs: Any) -> Tensor:
        self._used.add(root)
        return root(**inputs)

    @contextlib.contextmanager
    def row_pass(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            for root in self._used:
                root.discard()
            raise
        finally:
            for root in self._used:
                root.reset_iter_state()  # reshards, and clears what a failed pass has left
            self._used.clear()
            for sums in self._sums.values():
                sums.last = None

    def device(self, weight: Tensor) -> torch.device:
        return self._device

    def sharded(self, weight: nn.Parameter) -> nn.Parameter:
        return self._sharded.get(weight, weight)

    def local(self, tensor: Tensor) -> Tensor:
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def offset(self, tensor: Tensor) -> int:
        if not isinstance(tensor, DTensor):
            return 0
        return min(self._shard * self._rows(tensor), len(tensor)) * math.prod(tensor.shape[1:])

    def gradient(self, weight: Tensor) -> Tensor:
        assert weight.grad is not None
        if not isinstance(weight, DTensor):
            return weight.grad
        return self._sums[id(weight)].exact(self.local(weight.grad), self._rows(weight))

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """See `Shards`; all ranks get the same bits."""
        replicated, sharded = torch.zeros(2, dtype=torch.float64, device=self._ranks.device)
        for gradient in gradients:
            square = l2_norm(self.local(gradient)).square()
            (sharded if isinstance(gradient, DTensor) else replicated).add_(square)
        dist.all_reduce(sharded)  # over all replicas, so that none gets other bits
        return (replicated + sharded / (self._ranks.size // self._ranks.shards)).sqrt()

    @contextlib.contextmanager
    @torch.no_grad()
    def local_step(self, adam: torch.optim.Optimizer) -> Iterator[None]:
        held = [(p, nn.Parameter(self.local(p))) for group in adam.param_groups for p in group["params"]]
        shards = {p: mine for p, mine in held if isinstance(p, DTensor)}
        groups = [group["params"] for group in adam.param_groups]
        for p, mine in shards.items():
            mine.grad = None if p.grad is None else self.local(p.grad)
            adam.state[mine] = {key: self.local(value) for key, value in adam.state.pop(p, {}).items()}
        for group in adam.param_groups:
            group["params"] = [shards.get(p, p) for p in group["params"]]
        try:
            yield
        finally:
            for group, params in zip(adam.param_groups, groups, strict=True):
                group["params"] = params
            for p, mine in shards.items():
                state = adam.state.pop(mine)
                adam.state[p] = {key: _shard(value, p) if value.dim() else value for key, value in state.items()}

    def shard_like(self, found: Tensor, like: Tensor) -> Tensor:
        """See `Shards`; in the memory of the full tensor."""
        if isinstance(found, DTensor) or not isinstance(like, DTensor):
            return found
        rows = self._rows(like)
        return _shard(found[self._shard * rows :][:rows], like)

    def save(self, path: Path, tensors: Mapping[str, Tensor], *, writes: bool) -> None:
        sharded = [tensor.nbytes for tensor in tensors.values() if isinstance(tensor, DTensor)]
        if sum(sharded) > APART_BYTES:
            self._ranks.meet(len(tensors))
            with peers(waiting=False):
                write_shards(folder_of(path), tensors, self._ranks.on_cpus())
            return
        whole = dict(self.full_tensors(tensors.items(), path.parent))
        if writes:
            save_tensors(path, whole)

    def load(self, path: Path, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        apart = folder_of(path)
        if not apart.is_dir():
            return load_tensors(path)
        room = room_for_shards(apart, like)
        self._ranks.meet(len(room))
        with peers(waiting=False):
            read_shards(apart, room, self._ranks.on_cpus())
        return room

    @torch.no_grad()
    def full_tensors(self, named: Named, folder: Path | None = None) -> list[tuple[str, Tensor]]:
        found: list[tuple[str, Tensor]] = []
        for name, tensor in named:
            whole = self._whole(tensor) if isinstance(tensor, DTensor) else tensor
            if whole is not None and not self._ranks.rank:
                found.append((name, _in_a_file(whole, folder) if whole is not tensor else whole))
        return found

    @contextlib.contextmanager
    def unsharded(self, network: Any, folder: Path) -> Iterator[None]:
        places = _places(network)
        shards = {str(id(p)): p for _, _, p in places if isinstance(p, DTensor)}
        found = self.full_tensors(shards.items(), folder)
        whole = {key: nn.Parameter(tensor, shards[key].requires_grad) for key, tensor in found}
        try:
            for module, name, p in places:
                if (key := str(id(p))) in whole:
                    module.register_parameter(name, whole[key])
            yield
        finally:
            for module, name, p in places:
                module.register_parameter(name, p)

    def _rows(self, tensor: Tensor) -> int:
        """Rows of a shard; the last ones may have fewer."""
        return math.ceil(len(tensor) / self._ranks.shards)

    def _whole(self, tensor: DTensor) -> Tensor | None:
        """A full tensor on rank 0, None elsewhere."""
        mine, rows = tensor.to_local(), self._rows(tensor)
        padded = mine.new_zeros((rows, *mine.shape[1:]), device=self._ranks.device)
        padded[: len(mine)] = mine
        self._ranks.meet(padded.numel())
        if self._ranks.rank >= self._ranks.shards:  # of another replica
            return None
        if self._shard:
            dist.gather(as_bytes(padded), group=self._replica, group_dst=0)
            return None
        whole = padded.new_empty((rows * self._ranks.shards, *mine.shape[1:]))
        dist.gather(as_bytes(padded), list(as_bytes(whole).chunk(self._ranks.shards)), group=self._replica, group_dst=0)
        return whole[: len(tensor)]


class _Root(nn.Module):
    """The FSDP root of a network: parameters outside the layers stay unsharded until the passes of the row end."""

    def __init__(self, network: Any, kept: set[nn.Parameter]) -> None:
        super().__init__()
        self.network, self._kept = network, kept
        self._embedding: Tensor | None = None

    def forward(self, **inputs: Any) -> Tensor:
        weight = self.network.get_input_embeddings().weight
        if weight.requires_grad and weight is not self._embedding:
            weight.register_post_accumulate_grad_hook(_make_dense)
            self._embedding = weight
        return self.network.base_model(**inputs).last_hidden_state

    def discard(self) -> None:
        """Drop gradients that have not been reduced."""
        for p in self.parameters():
            if not isinstance(p, DTensor) and p not in self._kept:
                p.grad = None


def _make_dense(weight: Tensor) -> None:
    """The gradient of an embedding that is not the head is sparse (`wrap`), which FSDP does not reduce."""
    if weight.grad is not None and weight.grad.is_sparse:
        weight.grad = weight.grad.to_dense()


def _places(network: nn.Module) -> list[tuple[nn.Module, str, nn.Parameter]]:
    """Parameters with their modules and names; a tied one occurs more than once."""
    return [(module, name, p) for module in network.modules() for name, p in module.named_parameters(recurse=False)]


def _shard(mine: Tensor, like: DTensor) -> DTensor:
    """A local shard as a tensor that is sharded as `like`; in the memory of `mine`."""
    mesh, placements, shape, stride = like.device_mesh, like.placements, like.shape, like.stride()
    if mine.device.type != mesh.device_type:  # in the host's memory; `from_local` would copy it to the GPU
        made: Any = DTensor
        return made(mine, like._spec, requires_grad=False)
    return DTensor.from_local(mine, mesh, placements, run_check=False, shape=shape, stride=stride)


def _in_a_file(tensor: Tensor, folder: Path | None) -> Tensor:
    """A copy that is mapped from an unnamed file, whose pages the system may evict; freed with the tensor."""
    with tempfile.NamedTemporaryFile(prefix=".posttrain-", dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, tensor.nbytes)  # on a full disk an error here, not a crash later
        kept = torch.from_file(file.name, shared=True, size=tensor.numel(), dtype=tensor.dtype)
    return kept.copy_(tensor.view(-1)).view(tensor.shape)
