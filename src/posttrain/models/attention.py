"""Attention by plan: visibility is given by the caller, not by a padding mask.

Every Hugging Face decoder that takes its attention from transformers' registry can be run with a plan. A plan for
training (`FamilyAttention`, here) lets many sequences lie side by side in one row without padding, and lets the
completions of one prompt share it. A plan for decoding (`engine/kv_cache.py`) reads and writes a preallocated cache.

Shape letters: N tokens of a flat row, H query heads, K key heads, E head width, P tokens of a prefix, R branches of a
family, L tokens of the longest branch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from posttrain import fast_paths
from posttrain.errors import ModelError
from posttrain.models.scoring import Scoring, attention, attention_backward

BY_PLAN = "posttrain"
LONGEST = 2**13  # tokens of a `WholeRow`: its bias has N^2 numbers, 134 MB in bfloat16; making it takes four times that
# Flash attention takes no bias, and cuDNN's builds a plan for every row length, 1.5 ms a call; few rows are as long.
KERNELS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
ALIGNED = 8  # a bias whose rows begin elsewhere would be copied by every call


class AttentionPlan(Protocol):
    """Decides which keys and values each query sees."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
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
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    if plan is None:
        raise ModelError(
            "this model was loaded for posttrain and its attention needs a plan; call it through posttrain.models, "
            "or save it and load the folder with transformers"
        )
    # Qwen2-MoE keeps its window to itself: transformers builds it into the mask, which a plan does not read
    sliding_window = others.get("sliding_window", getattr(module, "sliding_window", None))
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    out = plan.attend(module.layer_idx, query, key, value, Scoring(scale, sliding_window, softcap, s_aux))
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(BY_PLAN, _attend_by_plan)


def _at_once(device: torch.device) -> bool:
    """Whether a device is faster with a whole row than with its parts."""
    return device.type == "cuda"


class WholeRow:
    """The attention mask of a flat row of families: a token sees those before it in its branch, and in its prefix.

    For GPUs, where small kernels are launch-bound: attention per family is a thousand kernels per pass for a row of
    eight families. One product over the whole row computes scores that the mask discards, and is still several times as
    fast. On a CPU attention per family is faster. `families` are those of `FamilyAttention`.
    """

    def __init__(self, families: Sequence[tuple[int, Sequence[int]]], device: torch.device) -> None:
        places = [
            (family, branch, place)
            for family, (prefix, lengths) in enumerate(families)
            for branch, (first, length) in enumerate([(0, prefix), *((prefix, length) for length in lengths)])
            for place in range(first, first + length)
        ]
        self._places = torch.tensor(places, dtype=torch.int32, device=device).T
        self._biases: dict[tuple[int | None, torch.dtype], Tensor] = {}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """Attention of the row: query [1, H, N, E], key and value [1, K, N, E] -> [1, H, N, E]."""
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
        kind = window, query.dtype
        if kind not in self._biases:
            self._biases[kind] = self._bias(*kind)
        with sdpa_kernel(KERNELS):
            return scaled_dot_product_attention(query, key, value, attn_mask=self._biases[kind], scale=scale)

    def _bias(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """0 where a token may look and -inf where not, [N, N]."""
        family, branch, place = self._places
        distance = place[:, None] - place
        sees = (family[:, None] == family) & ((branch[:, None] == branch) | (branch == 0)) & (distance >= 0)
        if window is not None:
            sees &= distance < window
        tokens = len(place)
        bias = torch.zeros(tokens, -(-tokens // ALIGNED) * ALIGNED, dtype=dtype, device=place.device)[:, :tokens]
        return bias.masked_fill_(~sees, -torch.inf)


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
        self._device, self._described = torch.device(device), families
        self._sizes = [size for prefix, lengths in families for size in (prefix, sum(lengths))]
        whole = _at_once(self._device) and sum(self._sizes) <= LONGEST and fast_paths.on("whole rows")
        self._whole = WholeRow(families, self._device) if whole else None

    @cached_property
    def _families(self) -> list[tuple[int, int, _Branches | None]]:
        """Where each prefix lies among the parts of a row (its branches follow), its length, and its branches."""
        return [
            (2 * number, prefix, self._branches(prefix, lengths) if lengths else None)
            for number, (prefix, lengths) in enumerate(self._described)
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

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """One flat row: query [1, H, N, E], key and value [1, K, N, E]."""
        if self._whole is not None and scoring.plain:
            return self._whole.attend(query, key, value, scoring.scale, scoring.window)
        row = query[0], key[0], value[0]
        if torch.is_grad_enabled() and fast_paths.on("recomputed attention"):
            return _Recomputed.apply(*row, scoring.sinks, self, scoring)[None]
        return self.forward(*row, scoring)[None]

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        """Attention of all families: q [H, N, E], k and v [K, N, E] -> [H, N, E]."""
        # one split whose backward is one concatenation; slicing would fill a whole row of zeros for every slice
        row = [x.split(self._sizes, dim=1) for x in (q, k, v)]
        parts: list[Tensor] = []
        for at, prefix, branches in self._families:
            if prefix:
                parts.append(attention(*_alone(row, at, scoring.window), scoring)[0])
            if branches is not None:
                parts.append(branches.gather(attention(*branches.rectangles(row, at, scoring.window), scoring)))
        return torch.cat(parts, dim=1)

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Gradients of q, k, v and the sinks for `grad` of what `forward` gave; nothing of it need have been kept."""
        grads, *row = (x.split(self._sizes, dim=1) for x in (grad, q, k, v))
        found = [list(parts) for parts in row]  # every part that is not empty is replaced
        of_sinks: list[Tensor | None] = []
        for at, prefix, branches in self._families:
            if prefix:
                *of_prefix, sinks = attention_backward(grads[at][None], *_alone(row, at, scoring.window), scoring)
                of_sinks.append(sinks)
                for parts, part in zip(found, of_prefix, strict=True):
                    parts[at] = part[0]
            if branches is not None:
                grad_q, *grad_kv, sinks = attention_backward(
                    branches.padded(grads[at + 1]), *branches.rectangles(row, at, scoring.window), scoring
                )
                of_sinks.append(sinks)
                found[0][at + 1] = branches.gather(grad_q)
                for parts, part in zip(found[1:], grad_kv, strict=True):
                    parts[at + 1] = branches.gather(part[:, :, prefix:])
                    if prefix:
                        parts[at] = parts[at] + part[:, :, :prefix].sum(0)
        grad_q, grad_k, grad_v = (torch.cat(parts, dim=1) for parts in found)
        grad_sinks = None
        if scoring.sinks is not None:
            grad_sinks = torch.stack([each for each in of_sinks if each is not None]).sum(0).to(scoring.sinks.dtype)
        return grad_q, grad_k, grad_v, grad_sinks


class _Recomputed(torch.autograd.Function):
    """Attention that keeps its queries, keys and values alone, and makes everything else again in the backward pass.

    What it does not keep are the weights, T^2 numbers, and the rectangles to which branches are padded: at 400 tokens a
    third of all that a micro-batch keeps. What it does again is a tenth of the forward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, plan: FamilyAttention, scoring: Scoring
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, sinks)
        ctx.plan, ctx.scoring = plan, scoring._replace(sinks=None)
        return plan.forward(q, k, v, scoring)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None, None, None]:
        q, k, v, sinks = ctx.saved_tensors
        return *ctx.plan.backward(grads[0], q, k, v, ctx.scoring._replace(sinks=sinks)), None, None


def _bias(allowed: Tensor) -> Tensor:
    return torch.zeros(allowed.shape, device=allowed.device).masked_fill_(~allowed, -torch.inf)


def _causal(length: int, window: int | None, device: torch.device) -> Tensor:
    """The bias of a sequence that sees itself alone, [1, 1, L, L]."""
    position = torch.arange(length, device=device)
    distance = position[:, None] - position
    return _bias((distance >= 0) & (distance < (window or length + 1)))[None, None]
