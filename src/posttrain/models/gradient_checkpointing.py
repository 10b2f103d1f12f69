"""Gradient checkpointing per decoder layer.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (https://arxiv.org/abs/1604.06174), with one segment
per layer: of L layers L inputs are kept, and the activations of one layer at a time. It costs a second forward pass of
the layers. Values and gradients are the same to the last bit; an adapter's dropout drops again what it dropped.
"""

import contextlib
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from posttrain.errors import UserError
from posttrain.models.dropout import KeyedDropout


def decoder_layers(network: nn.Module) -> list[nn.Module]:
    """The layers of a network that transformers marks as fit for checkpointing; empty where it marks none."""
    return [module for module in network.modules() if isinstance(module, GradientCheckpointingLayer)]


def checkpoint_layers(network: nn.Module) -> int:
    """Checkpoint every decoder layer of `network`, and of copies of it; returns how many there are.

    Call it after adapters are added. Passes without a gradient (sampling, a reference's logprobs) are as before.

    Raises:
        UserError: the architecture has no layers that transformers marks as fit for it.
    """
    layers = decoder_layers(network)
    if not layers:
        raise UserError(
            f"{type(network).__name__} has no layers that can be checkpointed; leave out `gradient_checkpointing`, and "
            "lower `microbatch_tokens` if memory is short"
        )
    for layer in layers:
        layer.forward = MethodType(_checkpointed, layer)
    return len(layers)


def _checkpointed(layer: Any, *args: Any, **kwargs: Any) -> Any:
    forward = partial(type(layer).forward, layer)
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    dropout = next((module.dropout for module in layer.modules() if isinstance(module, KeyedDropout)), None)
    same = contextlib.nullcontext() if dropout is None else dropout.as_now()  # another row may be read meanwhile
    # Not the reentrant form: that one gives no gradient to weights where the input needs none, as above a frozen
    # embedding, and none through keyword arguments.
    return checkpoint(
        forward, *args, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), same), **kwargs
    )
