"""A preallocated cache of keys and values, and the two attention plans that fill and read it.

Shape letters: B sequences being decoded, S slots, T keys that a sequence may see, H query heads, K key heads, R query
heads of one key head, E head width, N tokens of a flat row.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import softmax

from posttrain.models.attention import FamilyAttention
from posttrain.models.wide import wide_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


class Prefill(FamilyAttention):
    """Attention of several prompts side by side, which keeps their keys and values."""

    def __init__(self, lengths: Sequence[int], device: torch.device | str = "cpu") -> None:
        super().__init__([(length, []) for length in lengths], device)
        self.keys: dict[int, Tensor] = {}  # by layer: [K, N, E]
        self.values: dict[int, Tensor] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """As the base, and keep the keys and values."""
        self.keys[layer], self.values[layer] = key[0], value[0]
        return super().attend(layer, query, key, value, scale, window)


def bytes_per_token(config: "PreTrainedConfig", dtype: torch.dtype) -> int:
    """What one token of one sequence takes in the cache, over all layers."""
    heads, width = _shape(config)
    return 2 * config.num_hidden_layers * heads * width * dtype.itemsize


def _shape(config: "PreTrainedConfig") -> tuple[int, int]:
    heads = config.num_key_value_heads or config.num_attention_heads
    return heads, getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


class KeyValueCache:
    """Keys and values of up to S sequences that are being decoded, and of the prompts that they continue.

    A prompt is held once for all its completions: `hold` gives it a place, `release` takes that back. Sequences are in
    the first B slots, always without a gap. As a plan the cache appends one token to each of them and attends to their
    prompts and themselves; say with `set_batch`, before each step, which prompt each continues and how far it is.
    """

    def __init__(
        self,
        config: "PreTrainedConfig",
        *,
        slots: int,
        new_tokens: int,
        places: int,
        prompt_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        heads, width = _shape(config)
        layers = config.num_hidden_layers
        # zeros, not empty: what lies past a sequence's end gets weight 0, and 0 times a stray nan would still be nan
        self._keys, self._values = (
            torch.zeros(layers, slots, heads, new_tokens, width, dtype=dtype, device=device) for _ in range(2)
        )
        self._prompt_keys, self._prompt_values = (
            torch.zeros(layers, places, heads, prompt_tokens, width, dtype=dtype, device=device) for _ in range(2)
        )
        self._lengths = [0] * places  # of the prompt in each place; 0 where it is free
        self._device = device
        self.set_batch([], [])

    def hold(self, prefill: Prefill, start: int, length: int) -> int:
        """Take in a prompt, tokens `start` to `start + length` of the prefilled row; returns its place."""
        place = self._lengths.index(0)
        self._lengths[place] = length
        for layer, keys in prefill.keys.items():
            self._prompt_keys[layer, place, :, :length] = keys[:, start : start + length]
            self._prompt_values[layer, place, :, :length] = prefill.values[layer][:, start : start + length]
        return place

    def release(self, place: int) -> None:
        """Make a place free that no sequence continues any more."""
        self._lengths[place] = 0

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of one slot to another."""
        self._keys[:, target, :, :length] = self._keys[:, source, :, :length]
        self._values[:, target, :, :length] = self._values[:, source, :, :length]

    def set_batch(self, places: Sequence[int], written: Sequence[int]) -> None:
        """The place of each of the B sequences' prompts, and how many tokens each has in its slot already."""
        members: list[list[int]] = [[] for _ in range(max(places, default=-1) + 1)]
        seat: list[int] = []
        for row, place in enumerate(places):
            seat.append(len(members[place]))
            members[place].append(row)
        self._together = max(map(len, members), default=0)  # sequences of one prompt, padded to the most there are
        self._members = self._tensor([row for m in members for row in m + [0] * (self._together - len(m))])
        self._seats_B = self._tensor([place * self._together + s for place, s in zip(places, seat, strict=True)])
        self._places = len(members)
        self._written_B, self._rows_B = self._tensor(written), self._tensor(range(len(places)))
        prompt_B = self._tensor([self._lengths[place] for place in places])
        self._prompt_seen = int(prompt_B.max()) if len(places) else 0
        self._seen = max(written, default=-1) + 1
        at = self._tensor(range(self._prompt_seen))
        # how far back each key is; below 0 it is ahead, or nobody's
        before = ((prompt_B + self._written_B)[:, None] - at).masked_fill_(at >= prompt_B[:, None], -1)
        own = self._written_B[:, None] - self._tensor(range(self._seen))
        self._distance_BT = torch.cat([before, own], dim=1)
        hidden = self._distance_BT < 0
        self._bias = torch.zeros(hidden.shape, device=self._device).masked_fill_(hidden, -torch.inf)[:, None, None]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """One step: query [B, H, 1, E], key and value [B, K, 1, E]: one new token per sequence."""
        keys, values = self._keys[layer], self._values[layer]
        keys[self._rows_B, :, self._written_B] = key[:, :, 0]
        values[self._rows_B, :, self._written_B] = value[:, :, 0]
        batch, heads, _, width = query.shape
        # in one piece: a product with a slice would take four times as long as copying it first
        own_keys = keys[:batch, :, : self._seen].contiguous()
        prompt_keys = self._prompt_keys[layer, : self._places, :, : self._prompt_seen].contiguous()
        grouped = (query * scale).view(batch, key.shape[1], heads // key.shape[1], width)
        shared = self._scatter(torch.matmul(self._gather(grouped), prompt_keys.transpose(2, 3)))
        scores = torch.cat([shared, torch.matmul(grouped, own_keys.transpose(2, 3))], dim=3)
        bias = self._bias
        if window is not None and bias.shape[-1] > window:
            bias = bias.masked_fill((self._distance_BT >= window)[:, None, None], -torch.inf)
        weights = softmax(scores + bias, dim=-1, dtype=wide_dtype(query.dtype)).to(query.dtype)
        on_prompt, on_own = weights.split([self._prompt_seen, self._seen], dim=3)
        prompt_values = self._prompt_values[layer, : self._places, :, : self._prompt_seen]
        out = self._scatter(torch.matmul(self._gather(on_prompt), prompt_values))
        out = out + torch.matmul(on_own, values[:batch, :, : self._seen])
        return out.view(batch, heads, 1, width)

    def _gather(self, x: Tensor) -> Tensor:
        """Rows [B, K, R, ...] side by side with those of the same prompt: [places, K, together R, ...]."""
        _, heads, repeats, width = x.shape
        found = x.index_select(0, self._members).view(self._places, self._together, heads, repeats, width)
        return found.transpose(1, 2).reshape(self._places, heads, self._together * repeats, width)

    def _scatter(self, x: Tensor) -> Tensor:
        """What `_gather` put together, as rows again."""
        _, heads, rows, width = x.shape
        repeats = rows // self._together
        found = x.view(self._places, heads, self._together, repeats, width).transpose(1, 2)
        return found.reshape(-1, heads, repeats, width).index_select(0, self._seats_B)

    def _tensor(self, numbers: Iterable[int]) -> Tensor:
        return torch.tensor([*numbers], dtype=torch.long, device=self._device)
