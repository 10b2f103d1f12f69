"""Serialisation of optimizer state, bitwise, without pickle."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from posttrain.errors import CheckpointError
from posttrain.models.blockwise import blocks_of
from posttrain.training.blockwise_adam import MOMENTS, SCALES, BlockwiseAdamW
from posttrain.training.shards import REPLICATED, Shards


def optimizer_state(optimizer: Optimizer, parameters: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The optimiser's tensors, named `PARAMETER/exp_avg` and so on, and everything else as JSON.

    Args:
        optimizer: AdamW, in 32 or 8 bits, or any other whose state per parameter is tensors and plain numbers.
        parameters: every parameter that the optimiser holds (the objects themselves, not copies), by name.
    """
    names = _names(optimizer, parameters)
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for name, parameter in parameters.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{name}/{key}"] = value
            else:
                numbers.setdefault(name, {})[key] = value
    groups = [
        {**{key: value for key, value in group.items() if key != "params"}, "params": members}
        for group, members in zip(optimizer.param_groups, names, strict=True)
    ]
    return tensors, {"groups": groups, "numbers": numbers}


def restore_optimizer(
    optimizer: Optimizer,
    parameters: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    json: Mapping[str, Any],
    shards: Shards = REPLICATED,
) -> None:
    """Put back what `optimizer_state` gave: settings of each group and state of each parameter, sharded as that is.

    Raises:
        CheckpointError: the optimiser's parameters have other names, groups, shapes or bits than the saved ones.
            Nothing has been changed then.
    """
    ours, theirs = _names(optimizer, parameters), [group["params"] for group in json["groups"]]
    if ours != theirs:
        raise CheckpointError(f"the optimiser in the checkpoint differs from this one: {_difference(ours, theirs)}")
    state: dict[str, dict[str, Any]] = {name: dict(values) for name, values in json["numbers"].items()}
    for full_name, tensor in tensors.items():
        name, _, key = full_name.rpartition("/")
        if name not in parameters:
            raise CheckpointError(f"the checkpoint has optimiser state of '{name}', which is not a parameter here")
        _check(optimizer, full_name, key, tensor, parameters[name])
        placed = shards.shard_like(tensor, parameters[name]) if tensor.dim() else tensor
        sharded = shards.local(tensor) is not tensor  # newly allocated by `Shards.load`: a copy would double the memory
        state.setdefault(name, {})[key] = placed if sharded else placed.clone()
    # By hand: `load_state_dict` would turn codes of 8 bits into floats.
    for group, saved in zip(optimizer.param_groups, json["groups"], strict=True):
        group |= {key: tuple(value) if key == "betas" else value for key, value in saved.items() if key != "params"}
    optimizer.state.clear()
    for name, values in state.items():
        device = parameters[name].device
        optimizer.state[parameters[name]] = {
            key: value.to(device) if isinstance(value, Tensor) else value for key, value in values.items()
        }


def _check(optimizer: Optimizer, full_name: str, key: str, tensor: Tensor, parameter: Tensor) -> None:
    """Check a tensor against this optimiser's state of this parameter; raises `CheckpointError`."""
    quantized = isinstance(optimizer, BlockwiseAdamW) and optimizer.quantizes(parameter)
    if key.removesuffix(SCALES) in MOMENTS and quantized != (tensor.dtype == torch.uint8 or key.endswith(SCALES)):
        bits = (32, 8) if quantized else (8, 32)
        raise CheckpointError(
            f"'{full_name}' has {bits[0]} bits in the checkpoint and {bits[1]} here; resume with the `optim` "
            "that the run began with"
        )
    expected = [blocks_of(parameter.numel())] if key.endswith(SCALES) else list(parameter.shape)
    if tensor.dim() and list(tensor.shape) != expected:
        raise CheckpointError(
            f"'{full_name}' in the checkpoint has shape {list(tensor.shape)}, the parameter has {expected}"
        )


def _names(optimizer: Optimizer, parameters: Mapping[str, Tensor]) -> list[list[str]]:
    """The names of each group's parameters, in the optimiser's order."""
    by_identity = {id(parameter): name for name, parameter in parameters.items()}
    held = [[id(parameter) for parameter in group["params"]] for group in optimizer.param_groups]
    if {i for members in held for i in members} != by_identity.keys():
        raise ValueError("the optimiser's parameters need one name each: give it and this function the same objects")
    return [[by_identity[i] for i in members] for members in held]


def _difference(ours: list[list[str]], theirs: list[list[str]]) -> str:
    here, there = ({name for members in groups for name in members} for groups in (ours, theirs))
    if here == there:
        return "the same parameters in other groups or another order"
    parts = [
        f"{len(names)} {which} (for example '{min(names)}')"
        for which, names in (("only here", here - there), ("only in the checkpoint", there - here))
        if names
    ]
    return ", ".join(parts)
