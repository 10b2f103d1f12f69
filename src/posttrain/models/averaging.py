"""The mean of several models' weights, as model soups (Wortsman et al. 2022, https://arxiv.org/abs/2203.05482)."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from posttrain.errors import ModelError
from posttrain.models.load import weight_files


@torch.no_grad()
def averaged(folders: Sequence[Path], shares: Sequence[float]) -> dict[str, Tensor]:
    """The weights of a model between others of its shape, by name: sum_i share_i w_i, in the format of the first.

    Each sum is taken in float32 (float64 where the weights are), in the order of the folders, and rounded once. Raises
    `ModelError` where names or shapes differ, or a tensor that is not of floating point is not the same in all.
    """
    with ExitStack() as stack:
        models = [_opened(folder, stack) for folder in folders]
        for folder, model in zip(folders, models, strict=True):
            if other := sorted(model.keys() ^ models[0].keys()):
                whose = folder if other[0] in model else folders[0]
                raise ModelError(
                    f"'{folders[0]}' and '{folder}' are not of one shape: {other[0]} is in {whose} alone; average "
                    "models that were trained from one"
                )
        return {
            name: _mean(name, folders, [model[name].get_tensor(name) for model in models], shares) for name in models[0]
        }


def _mean(name: str, folders: Sequence[Path], tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    first = tensors[0]
    for folder, tensor in zip(folders, tensors, strict=True):
        if tensor.shape != first.shape:
            raise ModelError(
                f"'{folders[0]}' and '{folder}' are not of one shape: {name} is {[*first.shape]} and {[*tensor.shape]}"
            )
        if not first.is_floating_point() and not torch.equal(tensor, first):
            raise ModelError(f"{name} of '{folder}' is {tensor.dtype}, and not that of '{folders[0]}'; it has no mean")
    if not first.is_floating_point():
        return first
    wide = torch.promote_types(first.dtype, torch.float32)
    total = torch.zeros_like(first, dtype=wide)
    for tensor, share in zip(tensors, shares, strict=True):
        total += share * tensor.to(wide)
    return total.to(first.dtype)


def _opened(folder: Path, stack: ExitStack) -> Mapping[str, Any]:
    """The open file of each weight in a folder."""
    if not (files := weight_files(folder, str(folder))):
        raise ModelError(f"'{folder}' has no weights as safetensors; type: posttrain export hf, or train it first")
    opened = [stack.enter_context(safe_open(file, framework="pt")) for file in files]
    return {name: file for file in opened for name in file.keys()}  # noqa: SIM118
