"""KV cache, the attention plans that fill and read it, and the cache of earlier prompts.

Shape letters: B sequences being decoded, S slots, T longest sequence, P tokens of a prompt, H query heads, K key heads,
E head width, N tokens of a flat row, L tokens of a sequence that are new.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from posttrain.models.attention import FamilyAttention
from posttrain.models.scoring import Scoring, attention, weights_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


class Prefill(FamilyAttention):
    """Attention of a packed row of prompts (prefill), which keeps keys and values."""

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
    """Keys and values of a sequence's prefix: by layer [K, T, E], of which the first `length` tokens are valid."""

    keys: Mapping[int, Tensor]
    values: Mapping[int, Tensor]
    length: int


class Continued:
    """Attention of sequences with cached prefixes; `parts` has those, and the number of new tokens after each.

    A flat row holds only the new tokens; the cache has the keys and values of the whole sequences. Shape letters:
    R sequences, L the most new tokens of one, T the most tokens of one.
    """

    def __init__(self, parts: Sequence[tuple[Stored, int]], device: torch.device | str = "cpu") -> None:
        self._parts = parts
        self.keys: dict[int, Tensor] = {}  # by layer: [K, all tokens, E]
        self.values: dict[int, Tensor] = {}
        begun_R = torch.tensor([begun.length for begun, _ in parts], device=device)
        query_L = torch.arange(max(new for _, new in parts), device=device)
        key_T = torch.arange(max(begun.length + new for begun, new in parts), device=device)
        # distance to each key; padding keys lie ahead of every query
        self._distance_RLT = begun_R[:, None, None] + query_L[:, None] - key_T

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """One flat row: query [1, H, N, E], key and value [1, K, N, E]. The sequences are padded for the attention."""
        rows, new, longest = self._distance_RLT.shape
        q, k, v = (
            x.new_zeros(rows, x.shape[1], length, x.shape[3])
            for x, length in ((query, new), (key, longest), (value, longest))
        )
        sizes = [size for _, size in self._parts]
        split = zip(*(x[0].split(sizes, dim=1) for x in (query, key, value)), strict=True)
        for row, ((begun, size), own) in enumerate(zip(self._parts, split, strict=True)):
            end = begun.length + size
            q[row, :, :size] = own[0]
            k[row, :, : begun.length], k[row, :, begun.length : end] = begun.keys[layer][:, : begun.length], own[1]
            v[row, :, : begun.length], v[row, :, begun.length : end] = begun.values[layer][:, : begun.length], own[2]
        hidden = (self._distance_RLT < 0) | (self._distance_RLT >= (scoring.window or longest + new))
        bias = torch.zeros(hidden.shape, device=q.device).masked_fill_(hidden, -torch.inf)[:, None]
        out = attention(q, k, v, bias, scoring)
        whole = [begun.length + size for begun, size in self._parts]
        self.keys[layer] = torch.cat([k[row, :, :size] for row, size in enumerate(whole)], dim=1)
        self.values[layer] = torch.cat([v[row, :, :size] for row, size in enumerate(whole)], dim=1)
        return torch.cat([out[row, :, :size] for row, size in enumerate(sizes)], dim=1)[None]


def bytes_per_token(config: "PreTrainedConfig", dtype: torch.dtype) -> int:
    """Cache memory per token of one sequence, over all layers."""
    heads, width = _shape(config)
    return 2 * config.num_hidden_layers * heads * width * dtype.itemsize


def _shape(config: "PreTrainedConfig") -> tuple[int, int]:
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return heads, getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


STEP = 32  # tokens by which the cache grows: products on a slice would copy it, on the whole they do not
BLOCK = 16  # tokens: beginnings of prompts are looked up at multiples of it


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

    def hold(self, slots: int, longest: int) -> None:
        """Have these slots, new ones empty, all with room for `longest` tokens; memory is freed when it next grows."""
        room = min(self._room, rounded(longest))
        for kept in (self._keys, self._values):
            for layer, old in enumerate(kept):
                more = slots - len(old)
                new = [old[:, :, :room], old.new_zeros(more, old.shape[1], room, old.shape[3])] if more > 0 else []
                kept[layer] = torch.cat(new) if new else old[:slots]

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
        room = rounded(longest)
        for kept in (self._keys, self._values):
            for layer, old in enumerate(kept):
                new = old.new_empty(*old.shape[:2], room, old.shape[3])
                both = min(room, old.shape[2])
                new[:, :, :both] = old[:, :, :both]
                # zeros: masked entries get weight 0, and 0 times nan would be nan
                new[:, :, both:] = 0
                kept[layer] = new


def rounded(tokens: int) -> int:
    """The tokens that a slot of the cache has room for, where it must have room for these."""
    return -(-tokens // STEP) * STEP


@dataclass(frozen=True)
class _Entry:
    token_ids: tuple[int, ...]
    stored: Stored
    size: int  # bytes
    adapter: object


class PrefixCache:
    """Sequences by their prefixes and the adapter that computed them, with LRU eviction above `capacity` bytes."""

    def __init__(self, capacity: int, *, block: int = BLOCK) -> None:
        self._capacity, self._block, self._size = capacity, block, 0
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        # hash of a beginning of whole blocks: the entries that have it, the newest last
        self._by_beginning: dict[int, dict[int, None]] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, token_ids: tuple[int, ...], stored: Stored, size: int, adapter: object = None) -> None:
        """Store a sequence; it replaces a stored prefix of itself."""
        if size > self._capacity:
            return
        known = self._find(token_ids, adapter)
        if known is not None and len(self._entries[known[0]].token_ids) == known[1]:
            self._drop(known[0])
        while self._entries and self._size + size > self._capacity:
            self._drop(next(iter(self._entries)))
        number, self._next = self._next, self._next + 1
        self._entries[number] = _Entry(token_ids, stored, size, adapter)
        self._size += size
        for beginning, _ in self._beginnings(token_ids):
            self._by_beginning.setdefault(beginning, {})[number] = None

    def longest(self, token_ids: tuple[int, ...], adapter: object = None) -> Stored | None:
        """The longest cached prefix of a prompt, without its last token; None if there is none."""
        found = self._find(token_ids[:-1], adapter)
        if found is None:
            return None
        number, length = found
        self._entries.move_to_end(number)
        return replace(self._entries[number].stored, length=length)

    def _find(self, token_ids: tuple[int, ...], adapter: object) -> tuple[int, int] | None:
        """The adapter's entry with the longest common prefix of a block or more, and its number of tokens."""
        for beginning, length in reversed(list(self._beginnings(token_ids))):
            for number in reversed(self._by_beginning.get(beginning, ())):
                entry = self._entries[number]
                there = entry.token_ids
                # and not another text with the same hash
                if entry.adapter is adapter and there[:length] == token_ids[:length]:
                    rest = zip(there[length:], token_ids[length:], strict=False)
                    return number, length + next(
                        (i for i, (a, b) in enumerate(rest) if a != b), min(map(len, (there, token_ids))) - length
                    )
        return None

    def _beginnings(self, token_ids: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        """A hash of each prefix of whole blocks, and its length."""
        so_far = 0
        for start, end in pairwise(range(0, len(token_ids) + 1, self._block)):
            so_far = hash((so_far, token_ids[start:end]))
            yield so_far, end

    def _drop(self, number: int) -> None:
        entry = self._entries.pop(number)
        self._size -= entry.size
        for beginning, _ in self._beginnings(entry.token_ids):
            having = self._by_beginning.get(beginning, {})  # none, where two of its beginnings have one hash
            having.pop(number, None)
            if not having:
                self._by_beginning.pop(beginning, None)
