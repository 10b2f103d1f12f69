"""One sampler, in a process of its own: an engine, and a copy of the policy whose version is known."""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from posttrain.distributed.broadcast import Offer, received
from posttrain.distributed.cluster import Process
from posttrain.engine.policy import Policy
from posttrain.engine.transformers import TransformersDecoding
from posttrain.errors import EngineError
from posttrain.models.language_model import LanguageModel
from posttrain.models.precision import compute_of
from posttrain.types import Completion, Engine, Request

SLICE_S = 0.1  # that a sampler works before it says what is done


class Facts(NamedTuple):
    """What a controller needs to know of a policy whose weights are elsewhere."""

    name: str
    context: int
    stop_ids: frozenset[int]
    compute: Mapping[str, Any]  # see `compute_of`


def facts_of(model: LanguageModel) -> Facts:
    """What is known of a policy's model."""
    return Facts(model.name, model.context, model.stop_ids, compute_of(model, str(model.dtype)))


class Exchanged(NamedTuple):
    """What a sampler has done in a slice of time."""

    done: dict[int, Completion]
    tokens: int
    seconds: float = 0.0  # that it worked


class Samples(Process):
    """A process in which one decoding of an engine is open."""

    def __init__(self, place: int, size: int, threads: int) -> None:
        super().__init__(place, size, threads)
        self._opened, self._tokens, self._left = contextlib.ExitStack(), 0, 0

    def _open(self, engine: Engine, **more: Any) -> None:
        """Open a decoding, and close the one before."""
        self._opened.close()
        self._decoding = self._opened.enter_context(engine.open(self._count, **more))

    def _count(self, tokens: int) -> None:
        self._tokens += tokens

    def _slice(self, left: int) -> Exchanged:
        """Sample for `SLICE_S`, or until so many requests are done."""
        done: dict[int, Completion] = {}
        began = time.monotonic()
        self._tokens = 0
        while len(done) < left and time.monotonic() < began + SLICE_S:
            done |= self._decoding.step()
        return Exchanged(done, self._tokens, time.monotonic() - began)

    def end(self) -> None:
        """Close the decoding."""
        self._opened.close()


class Sampler(Samples):
    """See the module."""

    kind = "sampler"

    def __init__(self, place: int, size: int, threads: int) -> None:
        super().__init__(place, size, threads)
        self._version = ""
        self._unfinished: dict[int, list[tuple[int, str]]] = {}  # and from which version each token is

    def build(self, make: Callable[[], Policy]) -> Facts:
        """Load the policy; its weights have no version yet."""
        self._policy = make()
        return facts_of(self._policy.model)

    def take(self, offer: Offer) -> int:
        """Take the weights that are offered; their size in bytes. If that fails halfway, they have no version."""
        self._opened.close()
        return self._take(offer)

    def _take(self, offer: Offer) -> int:
        self._version = ""
        size = load_weights(self._policy.model, received(offer))
        self._version = offer.version
        return size

    def renew(self, offer: Offer) -> int:
        """As `take`, with a decoding open: sequences go on with the new weights and the keys and values of the old."""
        decoding = cast(TransformersDecoding, self._decoding)  # others go on with no other weights
        for number, tokens in decoding.sampled().items():
            versions = self._unfinished[number]
            if versions[-1][0] == len(tokens):
                versions.pop()  # no token is of that version
            versions.append((len(tokens), offer.version))
        size = self._take(offer)
        decoding.renew()
        return size

    def begin(self, turns: bool) -> None:
        """Open a decoding."""
        self._unfinished = {}
        self._open(self._policy.engine, turns=turns)

    def exchange(self, version: str, new: Sequence[tuple[int, Request]], cancelled: Sequence[int]) -> Exchanged:
        """Add and cancel requests, and sample from the weights of that version for `SLICE_S`, or until all are done."""
        if version != self._version:
            raise EngineError(f"this sampler has weights of version '{self._version}', not '{version}'")
        for number, request in new:
            self._decoding.add(number, request)
            self._unfinished[number] = [(0, version)]
        for number in cancelled:
            self._decoding.cancel(number)
            self._unfinished.pop(number, None)
        found = self._slice(len(self._unfinished))
        done = {n: replace(each, versions=tuple(self._unfinished.pop(n))) for n, each in found.done.items()}
        return found._replace(done=done)


@torch.no_grad()
def load_weights(model: LanguageModel, weights: Iterable[tuple[str, Tensor]]) -> int:
    """Put all trained weights in place, one at a time; their size in bytes. Raises `EngineError` if they are others."""
    missing, size = dict(model.trainable()), 0
    for name, weight in weights:
        mine = missing.pop(name, None)
        if mine is None or mine.shape != weight.shape or mine.dtype != weight.dtype:
            here = "none of that name" if mine is None else f"{list(mine.shape)} in {mine.dtype}"
            raise EngineError(
                f"the trainer sent '{name}', {list(weight.shape)} in {weight.dtype}; the sampler has {here}"
            )
        mine.copy_(weight)
        size += weight.numel() * weight.element_size()
    if missing:
        raise EngineError(
            f"the trainer left out {len(missing)} weights of the sampler, such as '{next(iter(missing))}'"
        )
    return size
