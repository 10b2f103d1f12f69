"""Numbers of an algorithm and their gradients, checked: shapes, metrics, finite differences."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

SLOPE_STEP = 1e-6


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference of two tensors of one shape; 0 where there is nothing to compare."""
    return (one - other).abs().max().item() if one.numel() else 0.0


def ill_formed(name: str, numbers: object, shape: torch.Size) -> list[str]:
    """Why these are not finite numbers of that shape, if they are not."""
    if not isinstance(numbers, Tensor):
        return [f"{name} is a {type(numbers).__name__}; expected a tensor"]
    if numbers.shape != shape:
        return [f"{name} has shape {list(numbers.shape)}; expected {list(shape)}"]
    return [] if numbers.isfinite().all() else [f"{name} is not finite"]


def metric_faults(metrics: Mapping[str, object], shape: torch.Size | None) -> list[str]:
    """Metrics that are not finite tensors of that shape (None: of any), or carry a gradient."""
    faults = list[str]()
    for name, numbers in metrics.items():
        of_any = numbers.shape if shape is None and isinstance(numbers, Tensor) else shape or torch.Size(())
        faults += ill_formed(f"metric {name!r}", numbers, of_any)
        if isinstance(numbers, Tensor) and numbers.requires_grad:
            faults.append(f"metric {name!r} carries a gradient; detach it")
    return faults


def steep(name: str, gradient: Tensor, leaf: Tensor, loss_of: Callable[[Tensor], Tensor]) -> list[str]:
    """The first number whose gradient is not the slope of a loss of all of them, by finite differences in float64."""
    for n in range(len(leaf)):
        around = list[float]()
        for by in (SLOPE_STEP, -SLOPE_STEP):
            moved = leaf.detach().clone()
            moved[n] += by
            around.append(loss_of(moved).item())
        slope = (around[0] - around[1]) / (2 * SLOPE_STEP)
        if abs(slope - float(gradient[n])) > 1e-6 + 1e-4 * abs(slope):
            return [
                f"the gradient of {name} is not the slope of the loss: {float(gradient[n]):.6g} and {slope:.6g} at "
                f"{n}; slopes=False leaves this out for a loss that stops gradients"
            ]
    return []
