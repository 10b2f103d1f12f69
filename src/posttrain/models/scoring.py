"""Attention arithmetic: scores, weights, and closed-form gradients.

Shape letters: R rows, H query heads, K key heads, L queries, T keys, E head width.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from posttrain.models.rounding import wide_dtype


class Scoring(NamedTuple):
    """Attention weights of one layer from queries and keys.

        w_t = exp z_t / (exp a + sum_u exp z_u),   z_t = c tanh(s q k_t / c)

    The sum is over the keys that a query may see. Without a cap z_t = s q k_t; without sinks exp a is 0.
    """

    scale: float  # s
    window: int | None = None  # how many tokens a query sees, itself included; None: all before it
    cap: float | None = None  # c: Gemma 2 (Gemma Team 2024, arXiv 2408.00118)
    sinks: Tensor | None = None  # a, one learned number per query head [H]: gpt-oss (OpenAI 2025, arXiv 2508.10925)

    @property
    def plain(self) -> bool:
        """Whether torch's fused kernels compute it."""
        return self.cap is None and self.sinks is None


MATERIALIZE = 2**22  # scores; fewer are faster as plain products on a CPU (4-12x), more would cost memory


def _fused(q: Tensor, k: Tensor, scoring: Scoring) -> bool:
    return scoring.plain and (q.is_cuda or q.shape[:3].numel() * k.shape[2] > MATERIALIZE)


def _grouped(x: Tensor, key_heads: int) -> Tensor:
    """Query heads [R, H, L, E] of one key head side by side: [R, K, H/K L, E]."""
    rows, heads, length, width = x.shape
    return x.reshape(rows, key_heads, heads // key_heads * length, width)


class Weights(NamedTuple):
    """Attention weights, and further terms of the gradient."""

    weights: Tensor  # [..., T]
    slope: Tensor | None  # d z / d (s q k) where scores are capped, [..., T]: 1 - (z / c)^2
    unspent: Tensor | None  # what the sinks take of each query's weight, [..., 1], wide


def weights_of(scores: Tensor, bias: Tensor, cap: float | None, sinks: Tensor | None) -> Weights:
    """Weights of scaled scores [..., T] plus a bias of 0 and -inf; sinks [..., 1]. The softmax's sums are wide."""
    wide = wide_dtype(scores.dtype)
    slope = unspent = None
    z = scores
    if cap is not None:
        share = torch.tanh(scores.to(wide) / cap)
        slope, z = (1 - share.square()).to(scores.dtype), share * cap
    z = z + bias.to(z.dtype)
    if sinks is not None:
        column = sinks.to(wide).expand(*z.shape[:-1], 1)
        z = torch.cat([z.to(wide), column], dim=-1)
    weights = torch.softmax(z, dim=-1, dtype=wide)
    if sinks is not None:
        weights, unspent = weights.split([scores.shape[-1], 1], dim=-1)
    return Weights(weights.to(scores.dtype), slope, unspent)


def _weights(grouped: Tensor, k: Tensor, bias: Tensor, scoring: Scoring) -> Weights:
    """As `weights_of`, of grouped and scaled queries: all of it [R, K, H/K L, T or 1]."""
    rows, key_heads, queries, _ = grouped.shape
    scores = torch.matmul(grouped, k.transpose(2, 3)).view(rows, -1, bias.shape[2], k.shape[2])
    sinks = None if scoring.sinks is None else scoring.sinks[:, None, None]
    found = weights_of(scores, bias, scoring.cap, sinks)
    parts: list[Any] = [part if part is None else part.reshape(rows, key_heads, queries, -1) for part in found]
    return Weights(*parts)


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scoring: Scoring) -> Tensor:
    """The sum of values by their weights: q [R, H, L, E], k and v [R, K, T, E], bias broadcast to [R, 1, L, T]."""
    if _fused(q, k, scoring):
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        return scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype), scale=scoring.scale)
    grouped = _grouped(q * scoring.scale, k.shape[1])
    return torch.matmul(_weights(grouped, k, bias, scoring).weights, v).view(q.shape)


def attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scoring: Scoring
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of q, k, v and the sinks for `grad` of the output of `attention`.

    With P the weights, S the scores, O = P V, and p the weight that a query's sink takes:  dV = P^T dO,  dP = dO V^T,
    dS = P (dP - sum_t P dP) (1 - (S / c)^2),  dQ = scale dS K,  dK = scale dS^T Q,  da = -sum p sum_t P dP.
    """
    if _fused(q, k, scoring):
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        with torch.enable_grad():
            out = attention(q, k, v, bias, scoring)
        grad_q, grad_k, grad_v = torch.autograd.grad(out, (q, k, v), grad)
        return grad_q, grad_k, grad_v, None
    grouped, grad = _grouped(q * scoring.scale, k.shape[1]), _grouped(grad, k.shape[1])
    weights, slope, unspent = _weights(grouped, k, bias, scoring)
    grad_v = torch.matmul(weights.transpose(2, 3), grad)
    grad_weights = torch.matmul(grad, v.transpose(2, 3))
    # torch takes the sum over t in float32 for bfloat16 too
    grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
    if slope is not None:
        grad_scores = grad_scores.mul_(slope)
    grad_sinks = None
    if unspent is not None:
        drawn = (weights.to(unspent.dtype) * grad_weights.to(unspent.dtype)).sum(-1, keepdim=True) * unspent
        grad_sinks = -drawn.view(q.shape[:3]).sum((0, 2))
    return (
        torch.matmul(grad_scores, k).mul_(scoring.scale).view(q.shape),
        torch.matmul(grad_scores.transpose(2, 3), grouped),
        grad_v,
        grad_sinks,
    )
