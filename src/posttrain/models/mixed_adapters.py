"""Low-rank adapters of several clients in one batch: each token has its own, or none.

    y = W x + s_a B_a A_a x

of a token x with the adapter a, s = alpha / r (Hu et al. 2021, arXiv 2106.09685). W x is one product for all tokens,
and B_a A_a x one for the tokens of each adapter, as in S-LoRA (Sheng et al. 2023, arXiv 2311.03285). Nothing is padded,
so adapters may differ in rank, in scale and in the layers that they are on. With a gradient enabled, the adapters' own
weights receive theirs; no weight of one receives anything from the tokens of another.

Shape letters: N tokens of a forward pass, M of those that have an adapter, D inputs and E outputs of a layer, R rank.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.errors import ModelError
from posttrain.models.rounding import wide_dtype

A, B = ".lora_A.default.weight", ".lora_B.default.weight"  # after the path of a layer, in peft's names


def is_linear(module: object) -> bool:
    """Whether a low-rank adapter can be put on it: a linear layer, or GPT-2's, whose weight is transposed."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


@dataclass(frozen=True, eq=False)
class LowRank:
    """The weights of an adapter. Caches know adapters by identity, so two of equal weights share nothing."""

    layers: Mapping[str, tuple[Tensor, Tensor]]  # A [R, D] and B [E, R], float32, by the path of the layer
    scale: float  # s

    @classmethod
    def trained(cls, weights: Mapping[str, Tensor], scale: float) -> "LowRank":
        """The weights themselves, which then receive gradients: those that `lora.add_adapter` makes trainable."""
        paths = dict.fromkeys(name.partition(".lora_")[0] for name in weights)
        return cls({path: (weights[path + A], weights[path + B]) for path in paths}, scale)

    def of_layer(self, path: str, x_MD: Tensor) -> Tensor:
        """S B A x of one layer, [M, E]."""
        a_RD, b_ER = self.layers[path]
        return x_MD @ a_RD.T @ b_ER.T * self.scale


class MixedAdapters:
    """Makes the linear layers of a network add the adapter of each token; the head has none."""

    def __init__(self, network: Any) -> None:
        head = network.get_output_embeddings()
        self._layers: dict[str, Any] = {
            path: layer for path, layer in network.named_modules() if is_linear(layer) and layer is not head
        }
        for path, layer in self._layers.items():
            layer.register_forward_hook(partial(self._add, path))
        self._device = next(iter(self._layers.values())).weight.device
        self._tokens = 0
        self._segments: list[tuple[LowRank | None, int]] = []  # of neighbours with one adapter, in order
        self._places: dict[LowRank, list[int]] = {}  # of an adapter's tokens in the forward pass
        self._joined: dict[tuple[LowRank, ...], Tensor] = {}  # those of several adapters, one after another

    def adapter(self, weights: Mapping[str, Tensor], scale: float) -> LowRank:
        """A copy of an adapter's weights: those that `lora.add_adapter` makes trainable, by the same names."""
        layers: dict[str, tuple[Tensor, Tensor]] = {}
        paths = dict.fromkeys(name.partition(".lora_")[0] for name in weights)
        if odd := weights.keys() ^ {path + part for path in paths if path in self._layers for part in (A, B)}:
            path = min(odd).partition(".lora_")[0]
            raise ModelError(f"the adapter's weights '{path}' are not A and B of a linear layer of the base")
        for path in paths:
            layer = self._layers[path]
            a_RD, b_ER = (weights[path + part].to(self._device, torch.float32, copy=True) for part in (A, B))
            outputs, inputs = layer.weight.shape if isinstance(layer, nn.Linear) else reversed(layer.weight.shape)
            if a_RD.shape != (len(a_RD), inputs) or b_ER.shape != (outputs, len(a_RD)):
                raise ModelError(f"the adapter's weights '{path}' have other shapes than the layer of the base")
            # their logits would not be finite either, and the step of all would fail
            if not (torch.isfinite(a_RD).all() and torch.isfinite(b_ER).all()):
                raise ModelError(f"the adapter's weights '{path}' are not finite; training may have diverged")
            layers[path] = a_RD, b_ER
        return LowRank(layers, scale)

    @contextlib.contextmanager
    def placed(self, adapters: Sequence[LowRank | None], tokens: Sequence[int]) -> Iterator[None]:
        """While the block runs, of a forward pass the first `tokens[0]` tokens have `adapters[0]`, and so on.

        Under gradient checkpointing the backward pass belongs to the block, for it computes layers again.
        """
        places: dict[LowRank, list[int]] = {}
        at = 0
        for adapter, count in zip(adapters, tokens, strict=True):
            if adapter is not None:
                places.setdefault(adapter, []).extend(range(at, at + count))
            at += count
        self._tokens, self._places = at, places
        segments = groupby(zip(adapters, tokens, strict=True), key=itemgetter(0))
        self._segments = [(adapter, sum(count for _, count in of_adapter)) for adapter, of_adapter in segments]
        try:
            yield
        finally:
            self._places, self._joined, self._segments = {}, {}, []

    def _add(self, path: str, layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """What a layer gives, with the adapters' part added."""
        adapters = tuple(adapter for adapter in self._places if path in adapter.layers)
        if not adapters:
            return output
        x_ND, y_NE = inputs[0].flatten(0, -2), output.flatten(0, -2)
        assert len(x_ND) == self._tokens, "a layer that sees only some of the tokens cannot assign them to adapters"
        if torch.is_grad_enabled():
            return self._differentiable(path, x_ND, y_NE).view_as(output)
        if adapters not in self._joined:
            places = [place for adapter in adapters for place in self._places[adapter]]
            self._joined[adapters] = torch.tensor(places, device=self._device)
        places_M = self._joined[adapters]
        parts = (
            x_ND.index_select(0, places_M)
            .to(wide_dtype(x_ND.dtype))
            .split([len(self._places[adapter]) for adapter in adapters])
        )
        low_ME = torch.cat([adapter.of_layer(path, part) for adapter, part in zip(adapters, parts, strict=True)])
        # the sum is rounded once, as peft does
        return y_NE.index_copy_(0, places_M, (y_NE.index_select(0, places_M) + low_ME).to(y_NE.dtype)).view_as(output)

    def _differentiable(self, path: str, x_ND: Tensor, y_NE: Tensor) -> Tensor:
        """The same sum, nothing of it in place: all tokens in their order, 0 for those whose adapter lacks the layer.

        One split and one concatenation, since the backward pass of each slice would fill a whole row with zeros.
        """
        parts = x_ND.split([count for _, count in self._segments])
        low_NE = torch.cat(
            [
                adapter.of_layer(path, part.to(adapter.layers[path][0].dtype))
                if adapter is not None and path in adapter.layers
                else part.new_zeros(len(part), y_NE.shape[1])
                for (adapter, _), part in zip(self._segments, parts, strict=True)
            ]
        )
        return (y_NE + low_NE).to(y_NE.dtype)
