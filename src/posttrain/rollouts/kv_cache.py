"""A cache of keys and values, and the three attention plans that fill and read it.

Shape letters: B sequences being decoded, S slots, T longest sequence, P tokens of a prompt, H query heads, K key heads,
E head width, N tokens of a flat row, L tokens of a sequence that are new.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from posttrain.models.attention import FamilyAttention
from posttrain.models.scoring import Scoring, attention, weights_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


class Prefill(FamilyAttention):
    """Attention of several prompts side by side, which keeps their keys and values."""

    def __init__(self, lengths: Sequence[int], device: torch.device | str = "cpu") -> None:
        super().__init__([(length, []) for length in lengths], device)
        self.keys: dict[int, Tensor] = {}  # by layer: [K, N, E]
        self.values: dict[int, Tensor] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """As the base, and keep the keys and values."""
        self.keys[layer], self.values[layer] = key[0], value[0]
        return super().attend(layer, query, key, value, scoring)


@dataclass(frozen=True)
class Stored:
    """Keys and values of the beginning of a sequence: by layer [K, T, E], of which `length` tokens count."""

    keys: Mapping[int, Tensor]
    values: Mapping[int, Tensor]
    length: int


class Continued:
    """Attention of several sequences whose beginnings are known; `parts` has those, and how many tokens follow each.

    A flat row holds the new tokens alone. What it keeps are the keys and values of the sequences as a whole.
    """

    def __init__(self, parts: Sequence[tuple[Stored, int]], device: torch.device | str = "cpu") -> None:
        self._parts, self._device = parts, device
        self.keys: dict[int, Tensor] = {}  # by layer: [K, all tokens, E]
        self.values: dict[int, Tensor] = {}
        self._distances: list[Tensor] = []  # [L, T]: how far back each key lies
        for begun, new in parts:
            position = torch.arange(begun.length + new, device=device)
            self._distances.append(position[begun.length :, None] - position)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """One flat row: query [1, H, N, E], key and value [1, K, N, E]."""
        sizes = [new for _, new in self._parts]
        rows = (x[0].split(sizes, dim=1) for x in (query, key, value))
        found: list[Tensor] = []
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for (begun, _), distance_LT, q, k, v in zip(self._parts, self._distances, *rows, strict=True):
            keys.append(torch.cat([begun.keys[layer][:, : begun.length], k], dim=1))
            values.append(torch.cat([begun.values[layer][:, : begun.length], v], dim=1))
            hidden = (distance_LT < 0) | (distance_LT >= (scoring.window or distance_LT.shape[1]))
            bias = torch.zeros(hidden.shape, device=q.device).masked_fill_(hidden, -torch.inf)[None, None]
            found.append(attention(q[None], keys[-1][None], values[-1][None], bias, scoring)[0])
        self.keys[layer], self.values[layer] = torch.cat(keys, dim=1), torch.cat(values, dim=1)
        return torch.cat(found, dim=1)[None]


def bytes_per_token(config: "PreTrainedConfig", dtype: torch.dtype) -> int:
    """What one token of one sequence takes in the cache, over all layers."""
    heads, width = _shape(config)
    return 2 * config.num_hidden_layers * heads * width * dtype.itemsize


def _shape(config: "PreTrainedConfig") -> tuple[int, int]:
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return heads, getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


STEP = 32  # tokens by which the cache grows: a slice of it would have to be copied for its products, the whole has not


class KeyValueCache:
    """Keys and values of up to S sequences; the first B slots are in use, always without a gap.

    It has room for the longest of them, to the next multiple of `STEP`, and what lies behind the others is hidden. As
    a plan it appends one token to each sequence in use and attends to all it holds. Set `positions` before a step.
    """

    def __init__(self, config: "PreTrainedConfig", slots: int, dtype: torch.dtype, device: torch.device) -> None:
        heads, width = _shape(config)
        empty = torch.empty(slots, heads, 0, width, dtype=dtype, device=device)
        self._keys, self._values = [empty] * config.num_hidden_layers, [empty] * config.num_hidden_layers
        self._device = device
        self.set_positions([])

    def widen(self, slots: int) -> None:
        """Have more slots; what is in those in use stays."""
        for kept in (self._keys, self._values):
            for layer, old in enumerate(kept):
                kept[layer] = torch.cat([old, old.new_zeros(slots - len(old), *old.shape[1:])])

    def stored(self, slot: int, length: int) -> Stored:
        """A copy of the first `length` tokens of a slot."""
        keys, values = (
            {layer: kept[slot, :, :length].clone() for layer, kept in enumerate(by_layer)}
            for by_layer in (self._keys, self._values)
        )
        return Stored(keys, values, length)

    def load_prompt(self, slot: int, prefill: Prefill | Continued, start: int, length: int) -> None:
        """Put a prompt, tokens `start` to `start + length` of the prefilled row, at the beginning of a slot."""
        part = slice(start, start + length)
        if length > self._room:
            self._resize(length)
        for layer, keys in prefill.keys.items():
            self._keys[layer][slot, :, :length] = keys[:, part]
            self._values[layer][slot, :, :length] = prefill.values[layer][:, part]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of one slot to another."""
        for kept in (*self._keys, *self._values):
            kept[target, :, :length] = kept[source, :, :length]

    def set_positions(self, positions: Sequence[int]) -> None:
        """Where the next token of each of the B sequences goes."""
        self._positions_B = torch.tensor(positions, dtype=torch.long, device=self._device)
        self._rows_B = torch.arange(len(positions), device=self._device)
        longest = max(positions, default=-1) + 1
        if not 0 <= self._room - longest < 2 * STEP:
            self._resize(longest)
        self._distance_BT = self._positions_B[:, None] - torch.arange(self._room, device=self._device)
        hidden = self._distance_BT < 0
        self._bias = torch.zeros(hidden.shape, device=self._device).masked_fill_(hidden, -torch.inf)[:, None, None]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """One step: query [B, H, 1, E], key and value [B, K, 1, E]: one new token per sequence."""
        keys, values = self._keys[layer], self._values[layer]
        keys[self._rows_B, :, self._positions_B] = key[:, :, 0]
        values[self._rows_B, :, self._positions_B] = value[:, :, 0]
        batch, heads, _, width = query.shape
        grouped = (query * scoring.scale).view(batch, key.shape[1], heads // key.shape[1], width)
        bias = self._bias
        if scoring.window is not None and self._room > scoring.window:
            bias = bias.masked_fill((self._distance_BT >= scoring.window)[:, None, None], -torch.inf)
        scores = torch.matmul(grouped, keys[:batch].transpose(2, 3))
        sinks = None if scoring.sinks is None else scoring.sinks.view(key.shape[1], -1, 1)
        weights = weights_of(scores, bias, scoring.cap, sinks).weights
        return torch.matmul(weights, values[:batch]).view(batch, heads, 1, width)

    @property
    def _room(self) -> int:
        return self._keys[0].shape[2]

    def _resize(self, longest: int) -> None:
        """Make room for `longest` tokens, layer by layer, so that old and new never both exist whole."""
        room = -(-longest // STEP) * STEP
        for kept in (self._keys, self._values):
            for layer, old in enumerate(kept):
                new = old.new_empty(*old.shape[:2], room, old.shape[3])
                both = min(room, old.shape[2])
                new[:, :, :both] = old[:, :, :both]
                # zeros: what is hidden gets weight 0, and 0 times a stray nan would still be nan
                new[:, :, both:] = 0
                kept[layer] = new
