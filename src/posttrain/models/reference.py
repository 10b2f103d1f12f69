"""The reference policy.

Shape letters: M learned tokens of a packed row, D hidden width, V vocabulary.
"""

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import NamedTuple, final

import torch
from torch import Tensor

from posttrain.models.language_model import LanguageModel, Packed


class Predictions(NamedTuple):
    """Whole distributions over the vocabulary, before they are computed: `states @ head.T` are their logits."""

    states: Tensor  # [M, D]
    head: Tensor  # [V, D]


class Reference:
    """A frozen policy; subclasses differ in how its weights are held."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model

    @property
    def body(self) -> LanguageModel:
        """The model that it computes with; the policy's own where it copies no network."""
        return self._model

    def _as_it_was(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    @torch.no_grad()
    def logprobs(self, row: Packed, temperature: float) -> Tensor:
        """Logprobs of a row's learned tokens, [M]."""
        with self._as_it_was(), self._model.dropping(None):
            return self._model.logprobs(row, temperature).logprobs

    def kept(self) -> dict[str, Tensor]:
        """The weights that are the reference's own, by name: what `renew` changes, and a checkpoint has to keep."""
        return {}

    @torch.no_grad()
    def renew(self, weights: Mapping[str, Tensor]) -> None:
        """Become the policy with these weights, by the names of `kept`."""
        for name, mine in self.kept().items():
            mine.copy_(weights[name])

    @torch.no_grad()
    def predictions(self, row: Packed) -> Predictions:
        """The predicted distributions of a row's learned tokens, over the whole vocabulary."""
        with self._as_it_was(), self._model.dropping(None):
            return Predictions(self._model.learned_states(row), self._model.head)


@final
class FrozenCopy(Reference):
    """A second copy of the policy's current weights."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__(copy.deepcopy(model))
        self._own = {name for name, _ in self._model.trainable()}
        self._model.network.requires_grad_(False)

    def kept(self) -> dict[str, Tensor]:
        """All trained weights of the policy."""
        # looked up each time: sharding puts other parameters in their place
        return {name: p.data for name, p in self._model.network.named_parameters() if name in self._own}


@final
class AdapterOff(Reference):
    """The base under the policy's own adapter: nothing is copied."""

    def __init__(self, model: LanguageModel) -> None:
        if model.adapter is None:
            raise ValueError("AdapterOff needs a model with an adapter; use FrozenCopy for a fully trained one")
        super().__init__(model)

    def _as_it_was(self) -> contextlib.AbstractContextManager[None]:
        return self._model.adapter.disable_adapter()


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
        weights = dict(self._model.trainable())
        now = {name: p.data for name, p in weights.items()}
        try:
            for name, p in weights.items():
                p.data = self._kept[name].to(p.device)  # sharded ranks load on the CPU
            yield
        finally:
            for name, p in weights.items():
                p.data = now[name]


@final
class FrozenModel(Reference):
    """Another model than the policy, such as a teacher."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__(model)
        model.network.requires_grad_(False)


def reference_for(model: LanguageModel, *, renewed: bool = False) -> FrozenCopy | AdapterOff | FrozenAdapter:
    """The cheapest reference for this model's current policy; make it before the first update.

    One that is to be `renewed` cannot be the base under an adapter: that stays as it is.
    """
    if model.adapter is None:
        return FrozenCopy(model)
    return AdapterOff(model) if model.fresh_adapter and not renewed else FrozenAdapter(model)
