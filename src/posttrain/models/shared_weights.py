"""Several networks over one set of weights: an adapter on each, and the base in memory once."""

import copy
from dataclasses import replace
from itertools import chain
from typing import Any

from posttrain.models.language_model import LanguageModel


def with_shared_weights(model: LanguageModel) -> LanguageModel:
    """Another network whose weights are the model's own tensors; an adapter on one of the two is not on the other.

    Only the tree of modules is copied. A gradient of one network is none of the other's as long as the shared weights
    are frozen, which `lora.add_adapter` does.

    Raises:
        ValueError: the model has an adapter already.
    """
    if model.adapter is not None:
        raise ValueError(f"'{model.name}' has an adapter, which the other network would share")
    network = model.network
    shared: dict[int, Any] = {id(tensor): tensor for tensor in chain(network.parameters(), network.buffers())}
    return replace(model, network=copy.deepcopy(network, shared))
