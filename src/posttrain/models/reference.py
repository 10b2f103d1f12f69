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


def reference_for(model: LanguageModel) -> FrozenCopy | AdapterOff:
    """The reference that costs least for this model; to be made before the first update."""
    return FrozenCopy(model) if model.adapter is None else AdapterOff(model)
