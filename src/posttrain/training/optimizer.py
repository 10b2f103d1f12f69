"""AdamW over float32 master weights.

A bfloat16 weight near 1 cannot hold a change smaller than 0.004, so an update of 1e-6 would be lost. The masters hold
it; the model's own weights are their rounding (`narrow_`). Where the model computes in float32, its weights are the
masters and nothing is copied.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, nn

from posttrain.errors import CheckpointError, TrainingError, UserError
from posttrain.models.blockwise import LEAST
from posttrain.models.host_memory import HEAP, keep_freed_memory
from posttrain.models.rounding import add_, narrow_
from posttrain.options.groups import Optimisation
from posttrain.training.adam import BlockwiseAdamW
from posttrain.training.host_sums import HostSums
from posttrain.training.ranks import REPLICATED, Ranks, Shards

WIDE = (torch.float32, torch.float64)
OPTIMIZERS: Mapping[str, int] = MappingProxyType({"adamw": 32, "adamw-8bit": 8})
"""Bits of each of Adam's moments, by the name of the optimiser."""


def nothing_to_quantize(optim: str) -> str:
    """The error message if no trained matrix is large enough for 8 bits."""
    return (
        f'`optim="{optim}"` would change nothing: it keeps moments of trained matrices with {LEAST:,} numbers or more '
        "in 8 bits, the input embedding's left out, and there are none; leave it out"
    )


class MasterAdamW:
    """AdamW (Loshchilov & Hutter, arXiv 1711.05101) on float32 copies of the trainable parameters.

    Usage: `with optimizer.collecting():` call `loss.backward()` for each micro-batch; then `step(lr)` once.

    With `moment_bits=8` both moments of large matrices are kept in 8 bits, but those of the `embedding`.

    With `offload` masters, gradient sums and moments of weights on a GPU are in the host's memory, where AdamW computes
    (ZeRO-Offload, Ren et al. 2021, arXiv 2101.06840): 16 bytes less on the GPU for each parameter, 12 where the weights
    are float32, and their own masters there. Its rounding is that of the host's AdamW, and otherwise nothing changes.

    Masters are made by `allocate`, or when they are first used, so that a sharded rank makes those of its shards alone.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float = 1.0,
        moment_bits: int = 32,
        embedding: Tensor | None = None,
        offload: bool = False,
    ) -> None:
        keep_freed_memory()
        named = [(name, p) for name, p in parameters if p.requires_grad]
        if not named:
            raise ValueError("no parameter requires a gradient; nothing would be trained")
        self.names = [name for name, _ in named]
        self._weights = [p for _, p in named]
        self._shards: Shards = REPLICATED
        self._changed: list[int] = []  # weights of which this rank holds a shard
        self._sums: list[Any] = [None] * len(named)  # where gradients are added up; kept, for new memory costs time
        self.max_grad_norm, self._weight_decay = max_grad_norm, weight_decay
        self._betas, self._eps = betas, eps
        self._moment_bits, self._wide = moment_bits, embedding if moment_bits == 8 else None
        self._offload, self._host = offload, HostSums()

    @cached_property
    def masters(self) -> list[nn.Parameter]:
        """The weights in float32 or wider, in the order of `names`; of a sharded rank its shards."""
        return [_master_of(p, offload=self._offload) for p in self._weights]

    @cached_property
    def adam(self) -> torch.optim.Optimizer:
        """The optimiser of the masters."""
        groups = [
            {"params": [m for m in self.masters if m.dim() >= 2], "weight_decay": self._weight_decay},
            {"params": [m for m in self.masters if m.dim() < 2], "weight_decay": 0.0},  # norms and biases do not decay
        ]
        groups = [g for g in groups if g["params"]]
        if self._moment_bits == 8:
            full = [m for m, p in zip(self.masters, self._weights, strict=True) if p is self._wide]
            return BlockwiseAdamW(groups, full=full, betas=self._betas, eps=self._eps)
        return torch.optim.AdamW(groups, lr=0.0, betas=self._betas, eps=self._eps, fused=True)

    @property
    def device(self) -> torch.device:
        """Where the passes compute the gradients."""
        return self._shards.device(self._weights[0])

    def shard(self, shards: Shards) -> None:
        """Hold shards of weights, masters, gradients and moments, from before the first step on.

        Weights that are not sharded go where passes read them.
        """
        whole, self._shards = self._weights, shards
        self._weights = [shards.sharded(weight) for weight in whole]
        changed = [number for number, weight in enumerate(whole) if weight is not self._weights[number]]
        if changed and self._moment_bits == 8:
            raise UserError(
                "moments in 8 bits cannot be sharded, since their blocks do not end where shards do; leave out `optim`"
            )
        assert not changed or "masters" not in vars(self), "the master weights exist already and are not sharded"
        self._changed = changed
        for number, weight in enumerate(self._weights):
            if number not in changed:
                weight.data = weight.data.to(shards.device(weight))
        for made in ("masters", "adam"):  # where the weights were
            vars(self).pop(made, None)

    def allocate(self) -> None:
        """Make masters and optimiser now, not amid the memory that comes and goes in a step.

        Of sharded ranks call it when all networks are sharded, and no full weight is left.
        """
        _ = self.adam
        for number in self._changed:
            # once, next to each other: between them, memory of unsharded layers comes and goes
            self._sums[number] = torch.empty_like(self.masters[number])

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """While the block runs, every gradient is added to its master's in float32 as soon as there is one.

        A weight's own gradient is freed at once, so only one layer's gradients exist at a time, in memory that the
        next layer reuses.
        """
        handles = [
            weight.register_post_accumulate_grad_hook(partial(self._take, number))
            for number, (master, weight) in enumerate(zip(self.masters, self._weights, strict=True))
            if master is not weight or self._sums[number] is not None
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._host.wait()
            for master in self.masters:
                if master.grad is not None and master.grad.is_sparse:  # of an embedding that is no head
                    master.grad = master.grad.to_dense()

    @torch.no_grad()
    def _take(self, number: int, weight: Tensor) -> None:
        master = self.masters[number]
        if master is weight and weight.grad is self._sums[number]:
            return  # FSDP has added to it in place
        part = self._shards.gradient(weight)
        weight.grad = None
        first = master.grad is None
        if first and self._sums[number] is None:
            self._sums[number] = torch.empty_like(master)
        master.grad = self._sums[number]
        kept = self._shards.local(self._sums[number])
        if kept.device != part.device:
            self._host.add(kept, part, first=first)
            return
        part = part.to(master.dtype) if part.is_sparse else part
        if not first:
            add_(kept, part)
        elif part.is_sparse:
            kept.zero_().add_(part)
        else:
            kept.copy_(part)

    def add_up(self, ranks: Ranks) -> None:
        """Add the collected gradients of all ranks, once before a step; those of shards are summed in each pass."""
        whole = [m for m in self.masters if self._shards.local(m) is m]
        for master, gradient in zip(whole, ranks.add_up(whole), strict=True):
            master.grad = gradient

    @torch.no_grad()
    def grad_norm(self) -> float:
        """Length of the whole collected gradient; nan or inf where one of its numbers is."""
        grads = [m.grad for m in self.masters if m.grad is not None]
        return self._shards.norm(grads).item() if grads else 0.0

    def finite_norm(self) -> float:
        """The same; raises `TrainingError` where it is not finite, and discards the gradient."""
        norm = self.grad_norm()
        if not math.isfinite(norm):
            self.discard()
            raise TrainingError(f"the gradient's norm is {norm}; the weights are unchanged")
        return norm

    def step(self, lr: float, *, norm: float | None = None) -> float:
        """Clip to `max_grad_norm`, update the masters, write them to the model; returns the length before clipping.

        `norm` is what `finite_norm` has returned, if it is known; where that raises, no weight has changed.
        """
        norm = self.finite_norm() if norm is None else norm
        if norm > self.max_grad_norm:
            for master in self.masters:
                if master.grad is not None:
                    master.grad *= self.max_grad_norm / norm
        for group in self.adam.param_groups:
            group["lr"] = lr
        with self._shards.local_step(self.adam):
            self.adam.step()
        self.discard()
        self.publish()
        HEAP.settle()
        return norm

    def discard(self) -> None:
        """Discard the accumulated gradients."""
        for master, weight in zip(self.masters, self._weights, strict=True):
            master.grad = weight.grad = None

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the model's own weights, which is where engines read them.

        Weights that are their own masters have been written by torch's fused AdamW, which does not count that as a
        write; an engine with a copy of the weights goes by torch's count, and would sample from old ones.
        """
        for master, weight in zip(self.masters, self._weights, strict=True):
            mine, exact = self._shards.local(weight), self._shards.local(master)
            if master is weight:
                torch.autograd.graph.increment_version(mine)
            else:
                narrow = narrow_ if mine.device == exact.device else self._host.narrow
                narrow(mine, exact, self._shards.offset(weight))

    def named_masters(self) -> dict[str, nn.Parameter]:
        """The float32 weights by name: what a checkpoint keeps."""
        return dict(zip(self.names, self.masters, strict=True))

    @torch.no_grad()
    def load_masters(self, tensors: Mapping[str, Tensor]) -> None:
        """Put a checkpoint's float32 weights in place and round them into the model.

        Nothing has been changed when it raises: names and shapes are compared first.
        """
        here, there = ({name: list(t.shape) for name, t in part.items()} for part in (self.named_masters(), tensors))
        if here != there:
            name = min(n for n in here.keys() | there.keys() if here.get(n) != there.get(n))
            raise CheckpointError(
                f"the weights in the checkpoint are not those trained here: '{name}' is "
                f"{there.get(name, 'missing')} there and {here.get(name, 'missing')} here"
            )
        for name, master in zip(self.names, self.masters, strict=True):
            master.copy_(self._shards.shard_like(tensors[name], master))
        self.publish()


def optimizer_for(
    options: Optimisation, parameters: Iterable[tuple[str, nn.Parameter]], *, embedding: Tensor, small: bool = False
) -> MasterAdamW:
    """The optimiser that the options name; `embedding` is the input embedding, trained or not.

    Raises `UserError` where no parameter is large enough for 8 bits, unless they may be `small`.
    """
    made = MasterAdamW(
        parameters,
        weight_decay=options.weight_decay,
        max_grad_norm=options.max_grad_norm,
        moment_bits=OPTIMIZERS[options.optim],
        embedding=embedding,
        offload=options.offload_optimizer,
    )
    eight = OPTIMIZERS[options.optim] == 8
    if eight and not small and not any(map(cast(Any, made.adam).quantizes, made.masters)):
        raise UserError(nothing_to_quantize(options.optim))
    return made


def _master_of(weight: nn.Parameter, *, offload: bool) -> nn.Parameter:
    """The weight in float32 or wider, and with `offload` in the host's memory: itself where it is."""
    if weight.dtype in WIDE and (weight.device.type == "cpu" or not offload):
        return weight
    found = weight.detach().cpu().contiguous() if offload else weight.detach()
    return nn.Parameter(found if found.dtype in WIDE else found.float())
