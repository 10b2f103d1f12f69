"""Metric means over the micro-batches of an update."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


class Means:
    """Means of per-token or per-pair numbers by name, equally weighted, independent of the micro-batch split."""

    def __init__(self, extremes: Sequence[str] = ()) -> None:
        self._extremes = extremes
        self._values: dict[str, list[Tensor]] = {}

    def add(self, values: Mapping[str, Tensor]) -> None:
        """The numbers of one micro-batch, [N] each; one that has none there is left out."""
        for name, numbers in values.items():
            if numbers.numel():
                self._values.setdefault(name, []).append(numbers.detach())

    def summary(self) -> dict[str, float]:
        """The mean of each by its name; of `extremes`, NAME/mean and NAME/max."""
        found: dict[str, float] = {}
        for name, parts in self._values.items():
            values = torch.cat(parts)
            if name in self._extremes:
                found |= {f"{name}/mean": values.mean().item(), f"{name}/max": values.max().item()}
            else:
                found[name] = values.mean().item()
        return found
