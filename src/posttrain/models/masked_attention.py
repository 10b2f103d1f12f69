"""Attention of a whole packed row with a mask, for GPUs.

Small kernels are launch-bound there: attention per family is a thousand kernels per pass for a row of eight families.
One product over the whole row computes scores that the mask discards, and is still several times as fast. On a CPU
attention per family is faster.

Shape letters: N tokens of a flat row, H query heads, K key heads, E head width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

LONGEST = 2**13  # tokens of a row: the bias has N^2 numbers, 134 MB in bfloat16; making it takes four times as much
# Flash attention takes no bias, and cuDNN's builds a plan for every row length, 1.5 ms a call; few rows are as long.
KERNELS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
ALIGNED = 8  # a bias whose rows begin elsewhere would be copied by every call


class WholeRow:
    """The attention mask of a flat row of families: a token sees those before it in its branch, and in its prefix.

    `families` holds (prefix length, branch lengths), in the order of the row.
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
