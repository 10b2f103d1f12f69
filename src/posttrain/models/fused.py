"""Other forms of a network's own modules: for training RMS norm, gated MLP and gradient checkpointing; packed weights.

The first two are bitwise identical to transformers' own modules, but save fewer activations for the backward pass,
which makes fewer passes over memory: a norm's backward takes a tenth of the time on a CPU. A module is replaced only if
a test run gives the same numbers; unrecognised modules are kept.

Shape letters: N tokens, D hidden width, I width inside the MLP.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from posttrain.errors import UserError
from posttrain.models.dropout import KeyedDropout
from posttrain.models.rounding import wide_dtype

PACKED_ROWS = 64  # what the layout of packed weights is made for; it serves any number


def use_lean_forms(network: nn.Module, *, on: bool = True) -> int:
    """Give each module that has a lean form that form, or with `on=False` its own again; returns how many have one."""
    count = 0
    for module in network.modules():
        module.__dict__.pop("forward", None)
        form = _lean_form(module)
        if on and form is not None and _same(module, form):
            module.forward = MethodType(form, module)
            count += 1
    return count


def _lean_form(module: Any) -> Callable[[Any, Tensor], Tensor] | None:
    if "RMSNorm" in type(module).__name__ and hasattr(module, "variance_epsilon") and module.weight.dim() == 1:
        return _rms_norm
    parts = ("gate_proj", "up_proj", "down_proj", "act_fn")
    gated = all(isinstance(getattr(module, name, None), nn.Module) for name in parts)
    return _gated_mlp if gated else None


def _rms_norm(module: Any, hidden_states: Tensor) -> Tensor:
    return rms_norm(hidden_states, module.weight, module.variance_epsilon)


def _gated_mlp(module: Any, x: Tensor) -> Tensor:
    gate, up, down = module.gate_proj(x), module.up_proj(x), module.down_proj
    # a layer with a hook gives more than its weight says (mixed_adapters.py)
    if torch.is_grad_enabled() and type(down) is nn.Linear and down.bias is None and not down._forward_hooks:
        return swiglu_linear(gate, up, down.weight)
    return down(swiglu(gate, up))


@torch.no_grad()
def _same(module: Any, form: Callable[[Any, Tensor], Tensor]) -> bool:
    """Whether the form gives the module's own numbers on some that are not special."""
    weight = next(module.parameters())
    sample = torch.linspace(-2, 2, 4 * weight.shape[-1], device=weight.device).sin_().to(weight.dtype).view(4, -1)
    return torch.equal(form(module, sample), module(sample))


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Y = w x / sqrt(mean(x^2) + eps), the mean over the last dimension; Zhang & Sennrich 2019, arXiv 1910.07467.

    The quotient is taken in float32 (float64 where the input is), and rounded before it is multiplied by w, as in
    transformers' Llama.
    """
    return _RMSNorm.apply(x, weight, epsilon) if torch.is_grad_enabled() else _normalise(x, epsilon)[0].mul_(weight)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Y = gate sigmoid(gate) up; Shazeer 2020, arXiv 2002.05202."""
    return _SwiGLU.apply(gate, up) if torch.is_grad_enabled() else silu(gate).mul_(up)


def swiglu_linear(gate: Tensor, up: Tensor, weight: Tensor) -> Tensor:
    """Y = swiglu(gate, up) W^T: gate and up [N, I], weight [D, I] -> [N, D]."""
    return _SwiGLULinear.apply(gate, up, weight)


def _normalise(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """X / rms in the format of x, and 1 / rms in the wide one."""
    wide = x.to(wide_dtype(x.dtype), copy=True)
    scale = wide.pow(2).mean(-1, keepdim=True).add_(epsilon).rsqrt_()
    return wide.mul_(scale).to(x.dtype), scale


class _RMSNorm(torch.autograd.Function):
    """Keeps x and one number per token; x / rms is computed again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        normal, scale = _normalise(x, epsilon)
        ctx.save_for_backward(x, weight, scale)
        return normal.mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight, scale = ctx.saved_tensors
        grad = grads[0].to(scale.dtype, copy=True)
        normal = x.to(scale.dtype, copy=True).mul_(scale)
        both = grad * normal
        grad_weight = both.reshape(-1, len(weight)).sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        wide = weight.to(scale.dtype)
        # dL/dx = (g w - n mean(g w n)) / rms
        mean = both.mul_(wide).mean(-1, keepdim=True)
        return grad.mul_(wide).addcmul_(normal, mean, value=-1).mul_(scale).to(x.dtype), grad_weight, None


class _SwiGLU(torch.autograd.Function):
    """Keeps gate and up; the activation is computed again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        grad = grads[0]
        grad_gate = torch.ops.aten.silu_backward(grad * up, gate)
        return grad_gate, silu(gate).mul_(grad)


class _SwiGLULinear(torch.autograd.Function):
    """Keeps gate and up: what goes into the product is computed again, a third of what an MLP would keep."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up, weight)
        return linear(silu(gate).mul_(up), weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        gate, up, weight = ctx.saved_tensors
        grad, active = grads[0], silu(gate)
        grad_weight = None
        if ctx.needs_input_grad[2]:
            grad_weight = grad.reshape(-1, len(weight)).T @ (active * up).reshape(-1, weight.shape[1])
        inner = grad @ weight
        grad_gate = torch.ops.aten.silu_backward(inner * up, gate)
        return grad_gate, active.mul_(inner), grad_weight


@contextlib.contextmanager
def packed_weights(network: nn.Module) -> Iterator[int]:
    """While the block runs, each bfloat16 `nn.Linear` on a CPU multiplies by a packed copy; yields how many do.

    On a CPU torch multiplies bfloat16 with oneDNN, which reorders a weight into tiles at every call. For the few rows
    of a decoding step that costs as much as the product. Packed once, a weight serves a whole rollout, with bitwise
    identical results. Weights must not change inside the block. The copies take 2 bytes per weight, and packing 135
    million of them 0.1 s. Elsewhere than on a CPU, and where `packing_supported()` is False, nothing happens.
    """
    packed = [
        module
        for module in network.modules()
        if type(module) is nn.Linear
        if module.weight.device.type == "cpu" and module.weight.dtype == torch.bfloat16 and packing_supported()
    ]
    try:
        for module in packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(module.weight.detach(), PACKED_ROWS)
            module.__dict__["forward"] = partial(_product, weight, module.bias)
        yield len(packed)
    finally:
        for module in packed:
            module.__dict__.pop("forward", None)


def _product(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def packing_supported() -> bool:
    """Whether oneDNN multiplies bfloat16 on this processor: AVX-512 or AMX on x86. With AVX2 alone it does not."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def decoder_layers(network: nn.Module) -> list[nn.Module]:
    """The layers of a network that transformers marks as fit for checkpointing; empty where it marks none."""
    return [module for module in network.modules() if isinstance(module, GradientCheckpointingLayer)]


def checkpoint_layers(network: nn.Module) -> int:
    """Checkpoint every decoder layer of `network`, and of copies of it; returns how many there are.

    Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (https://arxiv.org/abs/1604.06174), with one
    segment per layer: of L layers L inputs are kept, and the activations of one layer at a time. It costs a second
    forward pass of the layers. Values and gradients are the same to the last bit; an adapter's dropout drops again what
    it dropped. Call it after adapters are added. Passes without a gradient are as before.
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
