"""LoRA configuration, and the modules it names."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from posttrain.errors import UserError, unknown

SCALE = 2.0  # of a fresh adapter's update, unless alpha says otherwise


@dataclass(frozen=True, slots=True)
class Lora:
    """A fresh adapter: W x + s B A x, with s = alpha / rank, or alpha / sqrt(rank) where `rslora`.

    Attributes:
        rank: of A and B.
        alpha: None for what makes s = 2.
        dropout: probability with which an input of A is zeroed in an update.
        targets: names of linear layers, such as q_proj; none for every linear layer but the head.
        rslora: Kalajdzievski 2023, arXiv 2312.03732.
        dora: learn the length of each row of W + s B A as well (Liu et al. 2024, arXiv 2402.09353).
        modules_to_save: names of modules that are trained whole and saved with the adapter.
    """

    rank: int
    alpha: float | None = None
    dropout: float = 0.0
    targets: tuple[str, ...] = ()
    rslora: bool = False
    dora: bool = False
    modules_to_save: tuple[str, ...] = ()

    @property
    def scaled(self) -> float:
        """Alpha, given or not."""
        root = math.sqrt(self.rank) if self.rslora else self.rank
        return SCALE * root if self.alpha is None else self.alpha


def resolve(network: Any, lora: Lora, name: str) -> tuple[list[str], list[str]]:
    """The targets as they were typed, and the whole names of the modules that are trained whole.

    Raises:
        UserError: a name is no linear layer's or no module's, the head is a target, or a module is both.
    """
    modules = {path: module for path, module in network.named_modules() if path}
    head = network.get_output_embeddings()
    linear = {path: module for path, module in modules.items() if is_linear(module) and module is not head}
    trained: list[str] = []
    for typed in lora.modules_to_save:
        found = _named(typed, modules)
        if not any(True for path in found for _ in modules[path].parameters()):
            raise unknown(f"module of '{name}' in `lora_modules_to_save`", typed, _names(modules, with_weights=True))
        trained += [path for path in found if path not in trained]
    for typed in lora.targets:
        if head is not None and any(modules[path] is head for path in _named(typed, modules)):
            raise UserError(
                f"`lora_targets` cannot be the head '{typed}', whose forward is fused with the loss; train it in full: "
                f'`lora_modules_to_save="{typed}"`'
            )
        found = _named(typed, linear)
        if not found:
            raise unknown(f"linear layer of '{name}' in `lora_targets`", typed, _names(linear))
        if set(found) <= set(inside(network, trained)):
            raise UserError(f"'{typed}' is trained in full by `lora_modules_to_save`; leave it out of `lora_targets`")
    return list(lora.targets), trained


def inside(network: nn.Module, paths: Iterable[str]) -> list[str]:
    """The paths of these modules and of all that is in them."""
    roots = tuple(paths)
    return [path for path, _ in network.named_modules() if any(f"{path}.".startswith(f"{root}.") for root in roots)]


def is_linear(module: object) -> bool:
    """Whether a low-rank adapter can be put on it: a linear layer, or GPT-2's, whose weight is transposed."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _named(typed: str, modules: Iterable[str]) -> list[str]:
    """The paths that a name means: the whole path, or its last parts."""
    return [path for path in modules if path == typed or path.endswith(f".{typed}")]


def _names(modules: Mapping[str, Any], *, with_weights: bool = False) -> set[str]:
    """The last parts of paths, without the numbers of layers."""
    some = {path for path, module in modules.items() if not with_weights or any(True for _ in module.parameters())}
    return {path.rpartition(".")[2] for path in some} - {str(number) for number in range(len(modules))}
