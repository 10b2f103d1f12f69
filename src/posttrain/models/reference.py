"""Models beside the policy: references, critics, and copies that are trained.

Shape letters: M learned tokens of a packed row, D hidden width, V vocabulary.
"""

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import final

import torch
from torch import Tensor, nn

from posttrain.models.language_model import LanguageModel, Packed
from posttrain.models.rounding import wide_dtype


class Reference:
    """A frozen policy, such as a teacher; subclasses are of the policy itself, whose `body` they may compute with."""

    def __init__(self, model: LanguageModel) -> None:
        self.body = model

    def _as_it_was(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    @torch.no_grad()
    def logprobs(self, row: Packed, temperature: float) -> Tensor:
        """Logprobs of a row's learned tokens, [M]."""
        with self._as_it_was(), self.body.dropping(None):
            return self.body.logprobs(row, temperature).logprobs

    @torch.no_grad()
    def predictions(self, row: Packed) -> tuple[Tensor, Tensor]:
        """What predicts a row's learned tokens, states [M, D] and head [V, D]: `states @ head.T` are logits."""
        with self._as_it_was(), self.body.dropping(None):
            return self.body.learned_states(row), self.body.head

    def kept(self) -> dict[str, Tensor]:
        """The weights that are the reference's own, by name: what `renew` changes, and a checkpoint has to keep."""
        return {}

    @torch.no_grad()
    def renew(self, weights: Mapping[str, Tensor]) -> None:
        """Become the policy with these weights, by the names of `kept`."""
        for name, mine in self.kept().items():
            mine.copy_(weights[name])


@final
class FrozenCopy(Reference):
    """A second copy of the policy's current weights."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__(copy.deepcopy(model))
        self._own = {name for name, _ in self.body.trainable()}
        self.body.network.requires_grad_(False)

    def kept(self) -> dict[str, Tensor]:
        """All trained weights of the policy."""
        # looked up each time: sharding puts other parameters in their place
        return {name: p.data for name, p in self.body.network.named_parameters() if name in self._own}


@final
class AdapterOff(Reference):
    """The base under the policy's own adapter: nothing is copied."""

    def __init__(self, model: LanguageModel) -> None:
        if model.adapter is None:
            raise ValueError("AdapterOff needs a model with an adapter; use FrozenCopy for a fully trained one")
        super().__init__(model)

    def _as_it_was(self) -> contextlib.AbstractContextManager[None]:
        return self.body.adapter.disable_adapter()


@final
class FrozenAdapter(Reference):
    """The initial policy of continued adapter training: a copy of the adapter's weights only."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__(model)
        self._kept = {name: p.detach().clone() for name, p in model.trainable()}

    def kept(self) -> dict[str, Tensor]:
        """The adapter's weights."""
        return self._kept

    @contextlib.contextmanager
    def _as_it_was(self) -> Iterator[None]:
        weights = dict(self.body.trainable())
        now = {name: p.data for name, p in weights.items()}
        try:
            for name, p in weights.items():
                p.data = self._kept[name].to(p.device)  # sharded ranks load on the CPU
            yield
        finally:
            for name, p in weights.items():
                p.data = now[name]


def reference_for(model: LanguageModel, *, renewed: bool = False) -> FrozenCopy | AdapterOff | FrozenAdapter:
    """The cheapest reference for this model's current policy; make it before the first update.

    One that is to be `renewed` cannot be the base under an adapter: that stays as it is.
    """
    if model.adapter is None:
        return FrozenCopy(model)
    return AdapterOff(model) if model.fresh_adapter and not renewed else FrozenAdapter(model)


@final
class TrainedCopy:
    """A second network, `body`, that begins as the policy is now, and has gradients of its own.

    With an adapter if the policy has one.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.body = copy.deepcopy(model)

    def logprobs(self, row: Packed, temperature: float) -> Tensor:
        """Logprobs of a row's learned tokens, [M]."""
        return self.body.logprobs(row, temperature).logprobs

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """What its optimiser holds, by name."""
        return self.body.trainable()


class Critic:
    """A value function, V = w . h + b in float32 or wider; it begins as 0.

    The states h are those of the policy's trunk, which the value loss trains too, or with `own` of a separate network,
    initialised from the policy; with an adapter if the policy has one. `body` is the model that it computes with.
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
