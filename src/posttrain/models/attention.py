"""Attention by plan: what may look at what is decided by the caller, not by a mask over padding.

Every Hugging Face decoder that takes its attention from transformers' registry can be run with a plan. A plan for
training (`FamilyAttention`, here) lets many sequences lie side by side in one row without padding, and lets the
completions of one prompt share it. A plan for decoding (`rollouts/kv_cache.py`) reads and writes a preallocated cache.

Shape letters: N tokens of a flat row, H query heads, K key heads, E head width, P tokens of a prefix, R branches of a
family, L tokens of the longest branch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from posttrain import fast_paths
from posttrain.errors import ModelError
from posttrain.models.whole_rows import LONGEST, WholeRow
from posttrain.models.wide import wide_dtype

NAME = "posttrain"
UNSUPPORTED = ("softcap", "s_aux")  # changes to the attention's own arithmetic which no plan applies


class AttentionPlan(Protocol):
    """Decides which keys and values each query sees."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """Attend: query [B, H, N, E], key and value [B, K, N, E] -> [B, H, N, E]."""
        ...


def _attend_by_plan(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    plan: AttentionPlan | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    if plan is None:
        raise ModelError(
            "this model was loaded for posttrain and its attention needs a plan; call it through posttrain.models, "
            "or save it and load the folder with transformers"
        )
    if any(others.get(name) is not None for name in UNSUPPORTED):
        raise ModelError(f"{type(module).__name__} changes attention scores in a way that posttrain does not compute")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    out = plan.attend(module.layer_idx, query, key, value, scale, sliding_window)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, _attend_by_plan)


def use_plans(model: PreTrainedModel) -> None:
    """Make every attention layer of `model` ask its plan. Dropout in attention is not applied."""
    model.set_attn_implementation(NAME)


def _at_once(device: torch.device) -> bool:
    """Whether a device is faster with a whole row than with its parts."""
    return device.type == "cuda"


_Row = Sequence[Sequence[Tensor]]
"""Queries, keys and values of a flat row, each cut into parts: a family's prefix, its branches, the next family's."""


def _alone(row: _Row, at: int, window: int | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values and bias of a part that sees itself alone."""
    q, k, v = (parts[at][None] for parts in row)
    return q, k, v, _causal(q.shape[2], window, q.device)


@dataclass(frozen=True)
class _Branches:
    """How a family's branches are padded to one rectangle, for the attention alone."""

    index_RL: Tensor  # flat: the place of each token among the family's branch tokens, 0 where there is none
    order: Tensor  # where the family's branch tokens lie in the flattened rectangle, in order
    bias: Tensor  # [R, 1, L, P + L]: 0 where a query may look, -inf where not
    rows: int

    def spread(self, x: Tensor) -> Tensor:
        """Branch tokens [H, tokens, E] as a rectangle [R, H, L, E]; padding repeats the first token."""
        flat = x.transpose(0, 1).contiguous().index_select(0, self.index_RL)  # [R L, H, E]
        return flat.view(self.rows, -1, *flat.shape[1:]).transpose(1, 2)

    def gather(self, rectangle: Tensor) -> Tensor:
        """The tokens [H, tokens, E] of a rectangle [R, H, L, E], without its padding."""
        return rectangle.transpose(1, 2).flatten(0, 1).index_select(0, self.order).transpose(0, 1)

    def seen(self, prefix: Tensor, own: Tensor) -> Tensor:
        """Keys or values that each branch sees, [R, K, P + L, E]: those of the prefix, and its own."""
        rectangle = self.spread(own)
        if not prefix.shape[1]:
            return rectangle
        return torch.cat([prefix.expand(self.rows, -1, -1, -1), rectangle], dim=2)

    def rectangles(self, row: _Row, at: int, window: int | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys, values and bias of a family whose prefix is part `at` of the row, as attention wants them."""
        queries, keys, values = row
        k, v = (self.seen(x[at], x[at + 1]) for x in (keys, values))
        return self.spread(queries[at + 1]), k, v, self.bias_within(window)

    def padded(self, grad: Tensor) -> Tensor:
        """The gradient [H, tokens, E] of `gather`'s output for its input: a rectangle, 0 in the padding."""
        flat = grad.new_zeros(len(self.index_RL), len(grad), grad.shape[2])
        flat.index_copy_(0, self.order, grad.transpose(0, 1))
        return flat.view(self.rows, -1, *flat.shape[1:]).transpose(1, 2)

    def bias_within(self, window: int | None) -> Tensor:
        """The bias, with what lies further back than a sliding window hidden too."""
        length = self.bias.shape[-1]
        if window is None or length <= window:
            return self.bias
        position = torch.arange(length, device=self.bias.device)
        return self.bias + _bias(position[length - self.bias.shape[2] :, None] - position < window)


class FamilyAttention:
    """Many families side by side in one flat row: a prefix, and branches that see the prefix and themselves.

    A family with an empty prefix is a set of unrelated sequences; one with a prefix and several branches is a prompt
    with its completions, whose keys and values are computed once. `families` holds (prefix length, branch lengths) in
    the order of the row: prefix, then its branches one after another, then the next family.
    """

    def __init__(self, families: Sequence[tuple[int, Sequence[int]]], device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)
        self._sizes = [size for prefix, lengths in families for size in (prefix, sum(lengths))]
        whole = _at_once(self._device) and sum(self._sizes) <= LONGEST and fast_paths.on("whole rows")
        self._whole = WholeRow(families, self._device) if whole else None
        self._families = [  # where the prefix lies among the parts of a row (its branches follow), its length, branches
            (2 * number, prefix, self._branches(prefix, lengths) if lengths else None)
            for number, (prefix, lengths) in enumerate(() if whole else families)
        ]

    def _branches(self, prefix: int, lengths: Sequence[int]) -> _Branches:
        longest = max(lengths)
        length_R = torch.tensor(lengths)
        first_R = torch.cumsum(length_R, 0) - length_R
        offset_L = torch.arange(longest)
        real_RL = offset_L < length_R[:, None]
        index_RL = torch.where(real_RL, first_R[:, None] + offset_L, 0)
        seen_LT = torch.arange(prefix + longest) <= prefix + offset_L[:, None]
        real_RT = torch.cat([torch.ones(len(lengths), prefix, dtype=torch.bool), real_RL], dim=1)
        # a padding query keeps its causal view, so that no row of scores is empty: empty ones would be nan
        allowed = seen_LT & (real_RT[:, None, :] | ~real_RL[:, :, None])
        return _Branches(
            index_RL.flatten().to(self._device),
            real_RL.flatten().nonzero()[:, 0].to(self._device),
            _bias(allowed[:, None]).to(self._device),
            len(lengths),
        )

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """One flat row: query [1, H, N, E], key and value [1, K, N, E]."""
        if self._whole is not None:
            return self._whole.attend(query, key, value, scale, window)
        row = query[0], key[0], value[0]
        if torch.is_grad_enabled() and fast_paths.on("recomputed attention"):
            return _Recomputed.apply(*row, self, scale, window)[None]
        return self.forward(*row, scale, window)[None]

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        """Attention of all families: q [H, N, E], k and v [K, N, E] -> [H, N, E]."""
        # one split whose backward is one concatenation; slicing would fill a whole row of zeros for every slice
        row = [x.split(self._sizes, dim=1) for x in (q, k, v)]
        parts: list[Tensor] = []
        for at, prefix, branches in self._families:
            if prefix:
                parts.append(_attention(*_alone(row, at, window), scale)[0])
            if branches is not None:
                parts.append(branches.gather(_attention(*branches.rectangles(row, at, window), scale)))
        return torch.cat(parts, dim=1)

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v for `grad` of what `forward` gave; nothing of it need have been kept."""
        grads, *row = (x.split(self._sizes, dim=1) for x in (grad, q, k, v))
        found = [list(parts) for parts in row]  # every part that is not empty is replaced
        for at, prefix, branches in self._families:
            if prefix:
                of_prefix = _attention_backward(grads[at][None], *_alone(row, at, window), scale)
                for parts, part in zip(found, of_prefix, strict=True):
                    parts[at] = part[0]
            if branches is not None:
                grad_q, *grad_kv = _attention_backward(
                    branches.padded(grads[at + 1]), *branches.rectangles(row, at, window), scale
                )
                found[0][at + 1] = branches.gather(grad_q)
                for parts, part in zip(found[1:], grad_kv, strict=True):
                    parts[at + 1] = branches.gather(part[:, :, prefix:])
                    if prefix:
                        parts[at] = parts[at] + part[:, :, :prefix].sum(0)
        grad_q, grad_k, grad_v = (torch.cat(parts, dim=1) for parts in found)
        return grad_q, grad_k, grad_v


class _Recomputed(torch.autograd.Function):
    """Attention that keeps its queries, keys and values alone, and makes everything else again in the backward pass.

    What it does not keep are the weights, T^2 numbers, and the rectangles to which branches are padded: at 400 tokens a
    third of all that a micro-batch keeps. What it does again is a tenth of the forward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: FamilyAttention, scale: float, window: int | None
    ) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.plan, ctx.scale, ctx.window = plan, scale, window
        return plan.forward(q, k, v, scale, window)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        q, k, v = ctx.saved_tensors
        return *ctx.plan.backward(grads[0], q, k, v, ctx.scale, ctx.window), None, None, None


def _bias(allowed: Tensor) -> Tensor:
    return torch.zeros(allowed.shape, device=allowed.device).masked_fill_(~allowed, -torch.inf)


def _causal(length: int, window: int | None, device: torch.device) -> Tensor:
    """The bias of a sequence that sees itself alone, [1, 1, L, L]."""
    position = torch.arange(length, device=device)
    distance = position[:, None] - position
    return _bias((distance >= 0) & (distance < (window or length + 1)))[None, None]


MATERIALIZE = 2**22  # scores; fewer are faster as plain products on a CPU (4-12x), more would cost memory


def _fused(q: Tensor, k: Tensor) -> bool:
    """Whether torch's fused kernel is taken."""
    return q.is_cuda or q.shape[:3].numel() * k.shape[2] > MATERIALIZE


def _grouped(x: Tensor, key_heads: int) -> Tensor:
    """Query heads [R, H, L, E] of one key head side by side: [R, K, H/K L, E]."""
    rows, heads, length, width = x.shape
    return x.reshape(rows, key_heads, heads // key_heads * length, width)


def _weights(grouped: Tensor, k: Tensor, bias: Tensor) -> Tensor:
    """softmax(q k^T + bias) of grouped and scaled queries, [R, K, H/K L, T]; its sums in the wide format."""
    rows, key_heads, queries, _ = grouped.shape
    scores = torch.matmul(grouped, k.transpose(2, 3)).view(rows, -1, bias.shape[2], k.shape[2])
    weights = torch.softmax(scores + bias.to(scores.dtype), dim=-1, dtype=wide_dtype(scores.dtype)).to(scores.dtype)
    return weights.view(rows, key_heads, queries, -1)


def _attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
    """softmax(q k^T scale + bias) v: q [R, H, L, E], k and v [R, K, T, E], bias broadcast to [R, 1, L, T]."""
    if _fused(q, k):
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        return scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype), scale=scale)
    return torch.matmul(_weights(_grouped(q * scale, k.shape[1]), k, bias), v).view(q.shape)


def _attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v for `grad` of the output of `_attention`.

    With P the weights, S the scores and O = P V:  dV = P^T dO,  dP = dO V^T,  dS = P (dP - sum_t P dP),
    dQ = scale dS K,  dK = scale dS^T Q.
    """
    if _fused(q, k):
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        with torch.enable_grad():
            out = _attention(q, k, v, bias, scale)
        grad_q, grad_k, grad_v = torch.autograd.grad(out, (q, k, v), grad)
        return grad_q, grad_k, grad_v
    grouped, grad = _grouped(q * scale, k.shape[1]), _grouped(grad, k.shape[1])
    weights = _weights(grouped, k, bias)
    grad_v = torch.matmul(weights.transpose(2, 3), grad)
    # torch takes the sum over t in float32 for bfloat16 too
    grad_scores = torch.ops.aten._softmax_backward_data(
        torch.matmul(grad, v.transpose(2, 3)), weights, -1, weights.dtype
    )
    return (
        torch.matmul(grad_scores, k).mul_(scale).view(q.shape),
        torch.matmul(grad_scores.transpose(2, 3), grouped),
        grad_v,
    )
