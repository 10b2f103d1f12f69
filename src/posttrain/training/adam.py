"""AdamW with block-wise 8-bit moments, and the state of an optimiser in a checkpoint, without pickle.

Dettmers et al. 2021 (https://arxiv.org/abs/2110.02861). Both moments of a matrix of 4,096 numbers or more are kept as
codes and scales (models/blockwise.py). An update reads a piece of them back in float32, does what AdamW does, and
quantises them again. As in the paper the input embedding, whose gradients are the most uneven, keeps its moments in
float32; so do norms, biases and small matrices. Nothing is drawn at random, so a run is as repeatable as with AdamW.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from posttrain.errors import CheckpointError
from posttrain.models.blockwise import BLOCK, blocks_of, dequantize, quantize, worth_quantizing
from posttrain.models.rounding import block_rows
from posttrain.training.ranks import REPLICATED, Shards

MOMENTS = {"exp_avg": True, "exp_avg_sq": False}  # by torch's names; whether one can be below 0
SCALES = "_scales"


class BlockwiseAdamW(Optimizer):
    """AdamW as torch computes it, with the state of large matrices in 8 bits; that of `full` stays in float32."""

    def __init__(
        self, groups: list[dict[str, Any]], *, betas: tuple[float, float], eps: float, full: Iterable[Tensor] = ()
    ) -> None:
        super().__init__(groups, {"lr": 0.0, "betas": betas, "eps": eps, "weight_decay": 0.0})
        wide = {id(p) for p in full}
        params: list[nn.Parameter] = [p for group in self.param_groups for p in group["params"]]
        self._quantized = {id(p) for p in params if id(p) not in wide and worth_quantizing(p)}

    def quantizes(self, parameter: Tensor) -> bool:
        """Whether this parameter's moments are kept in 8 bits."""
        return id(parameter) in self._quantized

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            params: list[nn.Parameter] = [p for p in group["params"] if p.grad is not None]
            for p in params:
                if p not in self.state:
                    self.state[p] = self._fresh(p)
            _adamw(group, [(p, p.grad, self.state[p]) for p in params if not self.quantizes(p)])
            for p in params:
                if self.quantizes(p):
                    _quantized_adamw(group, p, self.state[p])

    def _fresh(self, p: Tensor) -> dict[str, Tensor]:
        state = {"step": torch.zeros((), dtype=torch.float32, device=p.device)}
        for name, signed in MOMENTS.items():
            if not self.quantizes(p):
                state[name] = torch.zeros_like(p)
                continue
            zero = quantize(torch.zeros(1, device=p.device), signed=signed)[0].item()
            state[name] = torch.full(p.shape, zero, dtype=torch.uint8, device=p.device)
            state[name + SCALES] = torch.zeros(blocks_of(p.numel()), device=p.device)
        return state


def _quantized_adamw(group: dict[str, Any], p: nn.Parameter, state: dict[str, Tensor]) -> None:
    """Update one parameter in chunks of whole blocks, so that only one chunk is held in float32."""
    assert p.grad is not None
    rows = block_rows(BLOCK, p.device)
    pieces = zip(
        *(x.view(-1).split(rows * BLOCK) for x in (p.detach(), p.grad.contiguous(), *(state[n] for n in MOMENTS))),
        *(state[name + SCALES].split(rows) for name in MOMENTS),
        strict=True,
    )
    for weight, grad, *kept in pieces:
        codes, scales = dict(zip(MOMENTS, kept[:2], strict=True)), dict(zip(MOMENTS, kept[2:], strict=True))
        wide = {name: dequantize(codes[name], scales[name], signed=MOMENTS[name]).to(p.dtype) for name in MOMENTS}
        _adamw(group, [(weight, grad, {"step": state["step"].clone(), **wide})])
        for name, signed in MOMENTS.items():
            new_codes, new_scales = quantize(wide[name], signed=signed)
            codes[name].copy_(new_codes)
            scales[name].copy_(new_scales)
    state["step"] += 1


def _adamw(group: dict[str, Any], parts: list[tuple[Tensor, Tensor | None, dict[str, Tensor]]]) -> None:
    """Torch's own update, in place: weights, gradients and the state of each."""
    if not parts:
        return
    adamw(
        [weight for weight, _, _ in parts],
        [grad for _, grad, _ in parts if grad is not None],
        [state["exp_avg"] for _, _, state in parts],
        [state["exp_avg_sq"] for _, _, state in parts],
        [],
        [state["step"] for _, _, state in parts],
        fused=True,
        amsgrad=False,
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )


def optimizer_state(optimizer: Optimizer, parameters: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The optimiser's tensors, as `PARAMETER/exp_avg`, and its groups' settings as JSON; `parameters` are all of it."""
    groups = [
        {**{key: value for key, value in group.items() if key != "params"}, "params": members}
        for group, members in zip(optimizer.param_groups, _names(optimizer, parameters), strict=True)
    ]
    tensors = {
        f"{name}/{key}": value
        for name, parameter in parameters.items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    return tensors, {"groups": groups}


def restore_optimizer(
    optimizer: Optimizer,
    parameters: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    json: Mapping[str, Any],
    shards: Shards = REPLICATED,
) -> None:
    """Put back what `optimizer_state` gave: settings of each group and state of each parameter, sharded as that is.

    The weights themselves are put back first: `load_masters` tells which names or shapes differ. Where groups or bits
    do, nothing has been changed when it raises.
    """
    if _names(optimizer, parameters) != [group["params"] for group in json["groups"]]:
        raise CheckpointError("the optimiser in the checkpoint has the parameters in other groups or another order")
    state: dict[str, dict[str, Tensor]] = {}
    for full_name, tensor in tensors.items():
        name, _, key = full_name.rpartition("/")
        parameter = parameters[name]
        quantized = isinstance(optimizer, BlockwiseAdamW) and optimizer.quantizes(parameter)
        if key.removesuffix(SCALES) in MOMENTS and quantized != (tensor.dtype == torch.uint8 or key.endswith(SCALES)):
            bits = (32, 8) if quantized else (8, 32)
            raise CheckpointError(
                f"'{full_name}' has {bits[0]} bits in the checkpoint and {bits[1]} here; resume with the `optim` "
                "that the run began with"
            )
        placed = shards.shard_like(tensor, parameter) if tensor.dim() else tensor
        sharded = shards.local(tensor) is not tensor  # newly allocated by `Shards.load`: a copy would double the memory
        state.setdefault(name, {})[key] = (placed if sharded else placed.clone()).to(parameter.device)
    # By hand: `load_state_dict` would turn codes of 8 bits into floats.
    for group, saved in zip(optimizer.param_groups, json["groups"], strict=True):
        group |= {key: tuple(value) if key == "betas" else value for key, value in saved.items() if key != "params"}
    optimizer.state.clear()
    for name, values in state.items():
        optimizer.state[parameters[name]] = values


def _names(optimizer: Optimizer, parameters: Mapping[str, Tensor]) -> list[list[str]]:
    """The names of each group's parameters, in the optimiser's order."""
    by_identity = {id(parameter): name for name, parameter in parameters.items()}
    held = [[id(parameter) for parameter in group["params"]] for group in optimizer.param_groups]
    if {i for members in held for i in members} != by_identity.keys():
        raise ValueError("the optimiser's parameters need one name each: give it and this function the same objects")
    return [[by_identity[i] for i in members] for members in held]
