"""The reference policy: what the trained one is kept close to."""

import copy
from typing import final

import torch
from torch import Tensor

from posttrain.models.language_model import LanguageModel, Packed


@final
class FrozenCopy:
    """The policy as it is now, kept in a second copy of its weights."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = copy.deepcopy(model)
        self._model.network.requires_grad_(False)

    @torch.no_grad()
    def logprobs(self, row: Packed, temperature: float) -> Tensor:
        """Logprobs of a row's learned tokens, [N]."""
        return self._model.logprobs(row, temperature).logprobs


@final
class AdapterOff:
    """The base under the policy's own adapter: no second copy of anything."""

    def __init__(self, model: LanguageModel) -> None:
        if model.adapter is None:
            raise ValueError("AdapterOff needs a model with an adapter; use FrozenCopy for a fully trained one")
        self._model = model

    @torch.no_grad()
    def logprobs(self, row: Packed, temperature: float) -> Tensor:
        """Logprobs of a row's learned tokens, [N]."""
        with self._model.adapter.disable_adapter():
            return self._model.logprobs(row, temperature).logprobs


@final
class FrozenAdapter:
    """The policy as it is now under an adapter that had been trained before: a copy of the adapter's weights alone."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._kept = {name: p.detach().clone() for name, p in model.trainable()}

    @torch.no_grad()
    def logprobs(self, row: Packed, temperature: float) -> Tensor:
        """Logprobs of a row's learned tokens, [N]."""
        weights = dict(self._model.trainable())
        now = {name: p.data for name, p in weights.items()}
        try:
            for name, p in weights.items():
                p.data = self._kept[name]
            return self._model.logprobs(row, temperature).logprobs
        finally:
            for name, p in weights.items():
                p.data = now[name]


def reference_for(model: LanguageModel) -> FrozenCopy | AdapterOff | FrozenAdapter:
    """The reference that costs least for this model: the policy as it is now; to be made before the first update."""
    if model.adapter is None:
        return FrozenCopy(model)
    return AdapterOff(model) if model.fresh_adapter else FrozenAdapter(model)
