"""Samplers in processes of a Ray cluster, behind one engine.

    with SamplerGroup(2, load, learner) as engine:
        engine.generate(requests)

Before anything is sampled, samplers take the trained weights from the trainer if its version is another than theirs;
they sample from no other version. The trainer broadcasts them to all that need them. A request goes to the sampler that
has its prefix in the cache, that of an episode's earlier turn; the others are split evenly, those of one prompt
together. Which one answers changes nothing but rounding, since a request's draws depend on its seed. A sampler that
dies or hangs is replaced, and its requests are sampled again: in `lockstep` in the batches that they were in before, so
that not even rounding changes.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from posttrain.distributed.broadcast import Offer, received
from posttrain.distributed.cluster import Lost, Process
from posttrain.distributed.pool import LOSSES, Pool
from posttrain.distributed.routing import Place, RoutedDecoding
from posttrain.engine.engine import DecodingEngine
from posttrain.engine.policy import Policy
from posttrain.engine.scheduler import step_of
from posttrain.engine.transformers import TransformersDecoding
from posttrain.engine.weight_channel import ChannelError
from posttrain.errors import EngineError
from posttrain.models.language_model import LanguageModel
from posttrain.models.precision import compute_of
from posttrain.types import Completion, Decoding, Engine, Request

if TYPE_CHECKING:
    from posttrain.distributed.trainers import LearnerGroup

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
    """An engine, and a copy of the policy whose version is known."""

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


class SamplerGroup(DecodingEngine, Pool):
    """Conforms to `types.Engine`; a scheduler can put newer weights in while it samples (`in_flight`)."""

    def __init__(
        self,
        size: int,  # how many
        load: Callable[..., Policy],  # loads the policy in each; it is pickled
        source: "LearnerGroup",  # has the trained weights
        *,
        engines: Sequence[str] = (),  # of each sampler, an argument of `load`; none: it has no such argument
        **settings: Any,  # as those of `Pool`
    ) -> None:
        super().__init__(Sampler, size, **settings)
        self.given = [(partial(load, engine=engine),) for engine in engines] or [(load,)] * size
        self._source = source
        self._places = [Place(number) for number in range(size)]
        self._sent_bytes, self._sent_s, self._retries = 0, 0.0, 0
        self._decoding: RoutedDecoding | None = None
        with self.ready():
            self.facts: Facts = self.build(range(size))[0]

    def stop(self) -> None:
        """Stop all processes."""
        super().stop()
        self._places = []

    @contextlib.contextmanager
    def open(self, on_tokens: Callable[[int], None] | None = None, *, turns: bool = False) -> Iterator[Decoding]:
        """See `types.Engine`. The weights are those that the source has now."""
        self.update()
        self._decoding = decoding = RoutedDecoding(self, self._places, on_tokens, turns)
        try:
            yield decoding
        finally:
            self._decoding = None
            for place in self._places:
                self.call(place.number, "end")

    @property
    def newest(self) -> str:
        """The version of the source's weights."""
        return self._source.version

    @property
    def sampled_from(self) -> str:
        """The oldest version of the samplers' weights."""
        return min((place.version for place in self._places), key=step_of)

    def renew(self) -> None:
        """Send the source's weights to the samplers in the middle of a decoding; those that are lost are replaced."""
        assert self._decoding is not None, "nothing is under way"
        failed = self._sent(self._places, "renew")
        self._decoding.forget()
        for place, why in failed:
            self._decoding.lost(place, why)

    def update(self, places: Sequence[Place] | None = None) -> None:
        """Send the source's weights to samplers, in no decoding, that have others; replace who does not take them."""
        if not self._places:
            raise EngineError("the samplers have been stopped")
        version, why = self._source.version, None
        behind = [place for place in places or self._places if place.version != version]
        for _ in range(1 + LOSSES):
            if not behind:
                return
            failed = self._sent(behind, "take")
            behind = [place for place, _ in failed]
            why = failed[-1][1] if failed else None
            for place in behind:
                with contextlib.suppress(Lost):  # one that is lost while it starts is replaced by the next try
                    self._replace(place)
        raise EngineError(f"weights of version '{version}' could not be sent to the samplers: {why}") from why

    def _sent(self, places: Sequence[Place], how: str) -> list[tuple[Place, BaseException]]:
        """Have samplers take the source's weights by this method; those that did not, and why."""
        began = time.monotonic()
        failed = self._broadcast(places, how)
        cut = [place for place, why in failed if isinstance(why, ChannelError)]
        if cut:  # one that is lost ends the transfer of all, and so does the trainer
            self._source.check()
            failed = [(place, why) for place, why in failed if place not in cut] + self._broadcast(cut, how)
        self._retries = len(cut)
        self._sent_s = time.monotonic() - began
        self.ledger.note("weights", [place.number for place in places], self._sent_s, busy=False)
        return failed

    def _broadcast(self, places: Sequence[Place], how: str) -> list[tuple[Place, BaseException]]:
        with self._source.offered() as offer:
            each = {"size": 1 + len(places), "patience": self.timeout_s / 2}  # who waits for one that hangs is not lost
            transfer = offer._replace(transfer=secrets.token_hex(8), **each)
            calls = {
                place.number: self.call(place.number, how, transfer._replace(rank=rank))
                for rank, place in enumerate(places, 1)
            }
            answers = self.collect(calls)
        failed: list[tuple[Place, BaseException]] = []
        for place in places:
            answer = answers[place.number]
            if isinstance(answer.error, Lost | ChannelError):
                failed.append((place, answer.error))
            else:
                self._sent_bytes, place.version = answer.result(), offer.version
        return failed

    def metrics(self) -> dict[str, float]:
        """Of weights sent since the last call: seconds for all, bytes to each, repetitions; losses; `Ledger.rates`."""
        sent = {"cluster/sync_seconds": self._sent_s, "cluster/sync_bytes": float(self._sent_bytes)}
        sent["cluster/sync_retries"] = float(self._retries)
        self._sent_bytes, self._sent_s, self._retries = 0, 0.0, 0
        shares, speeds = self.ledger.rates()
        replaced = {"cluster/samplers_replaced": float(self.replaced)}
        return {**sent, **replaced, **shares, **speeds}

    def revive(self, place: Place) -> None:
        """Replace a sampler that is lost by a process that has the weights; raises as `update`."""
        self._replace(place)
        self.update([place])

    def _replace(self, place: Place) -> None:
        place.version = ""
        self.replace(place.number)
