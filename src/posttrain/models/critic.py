"""Critics: value heads on the policy's trunk, or separate value models.

Shape letters: M learned tokens of a packed row, D hidden width.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from posttrain.models.language_model import LanguageModel, Packed
from posttrain.models.rounding import wide_dtype


class _Head(nn.Module):
    """V = w . h + b, in float32 or wider; it begins as 0."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        wide = wide_dtype(model.dtype)
        self.weight = nn.Parameter(torch.zeros(1, model.head.shape[1], dtype=wide, device=model.device))
        self.bias = nn.Parameter(torch.zeros(1, dtype=wide, device=model.device))

    def forward(self, states: Tensor) -> Tensor:
        """[M, D] -> [M]."""
        return nn.functional.linear(states.to(self.weight.dtype), self.weight, self.bias)[:, 0]


class Critic(ABC):
    """A value function.

    Attributes:
        body: the model that it computes with: the policy's, or its own.
    """

    def __init__(self, body: LanguageModel) -> None:
        self.body, self._head = body, _Head(body)

    @abstractmethod
    def values(self, row: Packed, states: Tensor | None = None) -> Tensor:
        """One number for each learned token of a row, [M], wide.

        `states` [M, D] are the policy's, from which those tokens are predicted, if available.
        """

    @abstractmethod
    def values_alone(self, row: Packed) -> Tensor:
        """The same, with gradients for the critic's own parameters only."""

    @abstractmethod
    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The critic's own parameters, by name: those that its optimiser holds."""


class TrunkCritic(Critic):
    """A value head on the policy's trunk, which the value loss trains too: no second network."""

    def values(self, row: Packed, states: Tensor | None = None) -> Tensor:
        """The head's, on the policy's states; those are computed if they are not given."""
        return self._head(self.body.learned_states(row) if states is None else states)

    def values_alone(self, row: Packed) -> Tensor:
        """The trunk is read without a gradient."""
        with torch.no_grad():
            states = self.body.learned_states(row)
        return self._head(states)

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The head."""
        return list(self._head.named_parameters(prefix="head"))


class OwnCritic(Critic):
    """A separate network, initialised from the policy; with an adapter if the policy has one."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__(copy.deepcopy(model))

    def values(self, row: Packed, states: Tensor | None = None) -> Tensor:
        """The head's, on states of the critic's own."""
        return self._head(self.body.learned_states(row))

    def values_alone(self, row: Packed) -> Tensor:
        """All of it is the critic's own."""
        return self.values(row)

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Head and network; its output embedding only where that is the input's too."""
        unused = () if self.body.network.get_input_embeddings().weight is self.body.head else (self.body.head,)
        network = [(f"network.{name}", p) for name, p in self.body.trainable() if all(p is not u for u in unused)]
        return [*self._head.named_parameters(prefix="head"), *network]


CRITICS: Mapping[str, Callable[[LanguageModel], Critic]] = MappingProxyType({"trunk": TrunkCritic, "own": OwnCritic})
"""By the name that a configuration gives."""
