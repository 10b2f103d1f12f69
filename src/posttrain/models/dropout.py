"""Stateless adapter dropout: a function of seed, layer, example and token.

So a resumed run has the masks of the uninterrupted one, a second forward pass of a micro-batch has the masks of the
first, and the micro-batch split does not change the result.

Shape letters: N tokens of a flat row, D inputs of a layer.
"""

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from posttrain.models.language_model import Packed


@dataclass
class Dropout:
    """The dropout of all layers of one adapter; off unless inside `dropping`."""

    layers: list[Any] = field(default_factory=list[Any])  # peft's LoRA layers that have some
    _seed: int | None = None
    _segments: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])  # key and length, over the row

    @property
    def on(self) -> bool:
        """Whether dropout is active."""
        return self._seed is not None

    def dropping(self, seed: int | None) -> contextlib.AbstractContextManager[None]:
        """While the block runs, forward passes of packed rows drop by `seed`; None: they drop nothing."""
        return self._in_state(seed, [])

    def as_now(self) -> contextlib.AbstractContextManager[None]:
        """A context to enter later, which restores the current dropout seed."""
        return self._in_state(self._seed, self._segments)

    @contextlib.contextmanager
    def _in_state(self, seed: int | None, segments: list[tuple[int, int]]) -> Iterator[None]:
        before = self._seed, self._segments
        self._set(seed, segments)
        try:
            yield
        finally:
            self._set(*before)

    def _set(self, seed: int | None, segments: list[tuple[int, int]]) -> None:
        self._seed, self._segments = seed, segments
        for layer in self.layers:
            layer.training = self.on  # by which DoRA decides whether its inputs were dropped

    def read(self, row: "Packed") -> None:
        """The next forward pass is of this row. A prefix is known by its tokens, a continuation by its example."""
        self._segments = []
        if not self.on:
            return
        at, examples = 0, iter(row.examples)
        for prefix, lengths in row.families:
            if prefix:
                self._segments.append((_digest("prefix", row.token_ids[at : at + prefix]), prefix))
            self._segments += [(_digest("example", next(examples)), length) for length in lengths]
            at += prefix + sum(lengths)

    def kept(self, layer: int, share: float, x: Tensor) -> Tensor:
        """1 / share where a number is kept, which happens with probability `share`, else 0: [N, D]."""
        lengths = [length for _, length in self._segments]
        assert sum(lengths) == x.shape[-2], "dropout is for packed rows: one that it was told of"
        found = torch.empty(x.shape[-2:], dtype=x.dtype, device=x.device)
        generator = torch.Generator(x.device)
        for (key, _), part in zip(self._segments, found.split(lengths), strict=True):
            generator.manual_seed(_digest(self._seed, layer, key))
            part.bernoulli_(share, generator=generator)
        return found.div_(share)


class KeyedDropout(nn.Module):
    """Replaces `nn.Dropout` in one layer: y = x m / (1 - p), m ~ Bernoulli(1 - p)."""

    def __init__(self, p: float, layer: int, dropout: Dropout) -> None:
        super().__init__()
        self.p, self._layer, self.dropout = p, layer, dropout

    def forward(self, x: Tensor) -> Tensor:
        """[..., N, D] -> the same."""
        return x * self.dropout.kept(self._layer, 1 - self.p, x) if self.dropout.on else x


def keyed_dropout(layers: Sequence[Any], adapter: str) -> Dropout | None:
    """Give peft's LoRA layers dropout by key in place of `nn.Dropout`; None where there is none."""
    dropout = Dropout()
    for number, layer in enumerate(layers):
        if isinstance(there := layer.lora_dropout[adapter], nn.Dropout) and there.p > 0:
            layer.lora_dropout[adapter] = KeyedDropout(there.p, number, dropout)
            dropout.layers.append(layer)
    return dropout if dropout.layers else None


def _digest(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1
