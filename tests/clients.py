"""Clients of one base model, each with an adapter: as a network of its own by peft, and as one of mixed adapters."""

from dataclasses import replace
from typing import NamedTuple

import torch

from posttrain.models.language_model import LanguageModel, with_shared_weights
from posttrain.models.lora import Lora, add_adapter
from posttrain.models.mixed_adapters import LowRank, MixedAdapters

# Adapters that differ in rank, in scale and in the layers that they are on.
KINDS = (
    Lora(4, 32.0),
    Lora(4, 32.0, targets=("self_attn.q_proj", "self_attn.v_proj")),
    Lora(1, 3.0, targets=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")),
    Lora(3, 8.0),
)


class Client(NamedTuple):
    """An adapter; None and the base for a client without one."""

    alone: LanguageModel
    adapter: LowRank | None


def mixed(model: LanguageModel) -> LanguageModel:
    """A network over its weights in which each token has an adapter of its own."""
    shared = with_shared_weights(model)
    return replace(shared, mixed=MixedAdapters(shared.network))


def own_network(model: LanguageModel, lora: Lora, seed: int) -> LanguageModel:
    """A network over its weights with an adapter that makes another policy of it."""
    found = add_adapter(with_shared_weights(model), lora, seed=seed)
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, weight in found.trainable():
            weight.copy_(torch.randn(weight.shape, generator=g) / 6)
    return found


def clients(model: LanguageModel, of_all: LanguageModel, kinds=KINDS) -> list[Client]:
    """One for each kind of adapter, and one without. `of_all` is the network in which they are mixed."""
    found = [Client(model, None)]
    for seed, lora in enumerate(kinds, 1):
        alone = own_network(model, lora, seed)
        weights = {name: weight.detach() for name, weight in alone.trainable()}
        found.append(Client(alone, of_all.mixed.adapter(weights, lora.scaled / lora.rank)))
    return found
