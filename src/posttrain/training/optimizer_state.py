"""A torch optimiser's state as named tensors and JSON, and back, bit for bit. Nothing is pickled."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from posttrain.errors import CheckpointError


def optimizer_state(optimizer: Optimizer, parameters: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The optimiser's tensors, named `PARAMETER/exp_avg` and so on, and everything else as JSON.

    Args:
        optimizer: AdamW, or any other whose state per parameter is tensors and plain numbers.
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
    optimizer: Optimizer, parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor], json: Mapping[str, Any]
) -> None:
    """Put back what `optimizer_state` gave: settings of each group and state of each parameter.

    Raises:
        CheckpointError: the optimiser's parameters have other names, groups or shapes than the saved ones. Nothing
            has been changed then.
    """
    ours, theirs = _names(optimizer, parameters), [group["params"] for group in json["groups"]]
    if ours != theirs:
        raise CheckpointError(f"the optimiser in the checkpoint is not this one: {_difference(ours, theirs)}")
    state: dict[str, dict[str, Any]] = {name: dict(values) for name, values in json["numbers"].items()}
    for full_name, tensor in tensors.items():
        name, _, key = full_name.rpartition("/")
        if name not in parameters:
            raise CheckpointError(f"the checkpoint has optimiser state of '{name}', which is not a parameter here")
        if tensor.dim() and tensor.shape != parameters[name].shape:
            raise CheckpointError(
                f"'{full_name}' in the checkpoint has shape {list(tensor.shape)}, the parameter has "
                f"{list(parameters[name].shape)}"
            )
        state.setdefault(name, {})[key] = tensor.clone()
    order = {name: index for index, name in enumerate(name for members in ours for name in members)}
    groups = [
        {key: tuple(value) if key == "betas" else value for key, value in group.items()}
        | {"params": [order[name] for name in group["params"]]}
        for group in json["groups"]
    ]
    optimizer.load_state_dict({"state": {order[name]: state[name] for name in state}, "param_groups": groups})


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
