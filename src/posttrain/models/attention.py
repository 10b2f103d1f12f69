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

from posttrain.errors import ModelError
from posttrain.models.fused import attention_weights

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


@dataclass(frozen=True)
class _Branches:
    """How a family's branches are padded to one rectangle, for the attention alone."""

    index_RL: Tensor  # flat: the place of each token among the family's branch tokens, 0 where there is none
    order: Tensor  # where the family's branch tokens lie in the flattened rectangle, in order
    bias: Tensor  # [R, 1, L, P + L]: 0 where a query may look, -inf where not
    rows: int


class FamilyAttention:
    """Many families side by side in one flat row: a prefix, and branches that see the prefix and themselves.

    A family with an empty prefix is a set of unrelated sequences; one with a prefix and several branches is a prompt
    with its completions, whose keys and values are computed once. `families` holds (prefix length, branch lengths) in
    the order of the row: prefix, then its branches one after another, then the next family.
    """

    def __init__(self, families: Sequence[tuple[int, Sequence[int]]], device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)
        self._families = [
            (prefix, self._branches(prefix, lengths) if lengths else None) for prefix, lengths in families
        ]
        self._sizes = [size for prefix, lengths in families for size in (prefix, sum(lengths))]

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
        # one split whose backward is one concatenation; slicing would fill a whole row of zeros for every slice
        queries, keys, values = (x[0].split(self._sizes, dim=1) for x in (query, key, value))
        parts: list[Tensor] = []
        for family, (prefix, branches) in enumerate(self._families):
            at, after = 2 * family, 2 * family + 1
            if prefix:
                parts.append(_prefix_attention(queries[at], keys[at], values[at], scale, window))
            if branches is not None:
                shared = (keys[at], values[at])
                parts.append(
                    _branch_attention(queries[after], keys[after], values[after], shared, branches, scale, window)
                )
        return torch.cat(parts, dim=1)[None]


def _bias(allowed: Tensor) -> Tensor:
    return torch.zeros(allowed.shape, device=allowed.device).masked_fill_(~allowed, -torch.inf)


def _prefix_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
    """Causal attention within one sequence: q [H, P, E], k and v [K, P, E]."""
    position = torch.arange(q.shape[1], device=q.device)
    distance = position[:, None] - position
    allowed = (distance >= 0) & (distance < (window or len(position) + 1))
    return _attention(q[None], k[None], v[None], _bias(allowed)[None, None], scale)[0]


def _branch_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    shared: tuple[Tensor, Tensor],
    branches: _Branches,
    scale: float,
    window: int | None,
) -> Tensor:
    """Attention of a family's branch tokens, [H, tokens, E], to their prefix and their own branch."""

    def rectangle(x: Tensor) -> Tensor:
        flat = x.transpose(0, 1).contiguous().index_select(0, branches.index_RL)  # [R L, H, E]
        return flat.view(branches.rows, -1, *flat.shape[1:]).transpose(1, 2)  # [R, H, L, E]

    prefix = shared[0].shape[1]
    keys, values = (
        torch.cat([before.expand(branches.rows, -1, -1, -1), rectangle(own)], dim=2) if prefix else rectangle(own)
        for before, own in zip(shared, (k, v), strict=True)
    )
    bias = branches.bias
    if window is not None and bias.shape[-1] > window:
        position = torch.arange(bias.shape[-1], device=q.device)
        bias = bias + _bias(position[prefix:, None] - position < window)
    out = _attention(rectangle(q), keys, values, bias, scale)  # [R, H, L, E]
    flat = out.transpose(1, 2).flatten(0, 1)  # [R L, H, E]
    return flat.index_select(0, branches.order).transpose(0, 1)


MATERIALIZE = 2**22  # scores; fewer are faster as plain products on a CPU (4-12x), more would cost memory


def _attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
    """softmax(q k^T scale + bias) v: q [R, H, L, E], k and v [R, K, T, E], bias broadcast to [R, 1, L, T]."""
    rows, heads, length, width = q.shape
    repeats = heads // k.shape[1]
    if q.is_cuda or rows * heads * length * k.shape[2] > MATERIALIZE:
        k, v = (x.repeat_interleave(repeats, dim=1) for x in (k, v))
        return scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype), scale=scale)
    grouped = (q * scale).reshape(rows, k.shape[1], repeats * length, width)  # query heads of one key head side by side
    scores = torch.matmul(grouped, k.transpose(2, 3)).view(rows, heads, length, -1)
    weights = attention_weights(scores, bias)
    return torch.matmul(weights.view(rows, k.shape[1], repeats * length, -1), v).view(rows, heads, length, width)
