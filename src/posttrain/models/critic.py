"""Critics: value heads on the policy's trunk, or separate value models.

Shape letters: M learned tokens of a packed row, D hidden width.
"""

import copy

import torch
from torch import Tensor, nn

from posttrain.models.language_model import LanguageModel, Packed
from posttrain.models.rounding import wide_dtype


class Critic:
    """A value function, V = w . h + b in float32 or wider; it begins as 0.

    The states h are those of the policy's trunk, which the value loss trains too, or with `own` of a separate network,
    initialised from the policy; with an adapter if the policy has one.

    Attributes:
        body: the model that it computes with: the policy's, or its own.
    """

    def __init__(self, model: LanguageModel, *, own: bool = False) -> None:
        self.body, self._own = copy.deepcopy(model) if own else model, own
        wide = wide_dtype(model.dtype)
        self._weight = nn.Parameter(torch.zeros(1, model.head.shape[1], dtype=wide, device=model.device))
        self._bias = nn.Parameter(torch.zeros(1, dtype=wide, device=model.device))

    def values(self, row: Packed, states: Tensor | None = None) -> Tensor:
        """One number for each learned token of a row, [M], wide.

        `states` [M, D] are the policy's, from which those tokens are predicted, if available.
        """
        return self._read(self.body.learned_states(row) if states is None or self._own else states)

    def values_alone(self, row: Packed) -> Tensor:
        """The same, with gradients for the critic's own parameters only: the policy's trunk gets none."""
        with torch.set_grad_enabled(self._own and torch.is_grad_enabled()):
            states = self.body.learned_states(row)
        return self._read(states)

    def _read(self, states: Tensor) -> Tensor:
        return nn.functional.linear(states.to(self._weight.dtype), self._weight, self._bias)[:, 0]

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The critic's own parameters, by name: those that its optimiser holds.

        An output embedding of its own is among them only where it is the input's too.
        """
        head = [("head.weight", self._weight), ("head.bias", self._bias)]
        if not self._own:
            return head
        unused = () if self.body.embedding is self.body.head else (self.body.head,)
        return head + [(f"network.{name}", p) for name, p in self.body.trainable() if all(p is not u for u in unused)]
