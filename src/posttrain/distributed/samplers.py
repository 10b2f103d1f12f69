"""Samplers in processes of a Ray cluster, behind one engine.

    with SamplerGroup(2, load, learner) as engine:
        engine.generate(requests)

Before anything is sampled, samplers take the trained weights from the trainer if its version is another than theirs;
they sample from no other version. The trainer sends to two samplers, and each of these to two more while its own
weights arrive, and so on. A request goes to the sampler that has its prefix in the cache, that of an episode's
earlier turn; the others are split evenly, those of one prompt together. Which one answers changes nothing but rounding,
since a request's draws depend on its seed. A sampler that dies or hangs is replaced, and its requests are sampled
again: in `lockstep` in the batches that they were in before, so that not even rounding changes.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

from posttrain.distributed import cluster, connection
from posttrain.distributed.cluster import Answer, Lost
from posttrain.distributed.group import LOSSES, Group, Ledger
from posttrain.distributed.routing import Place, RoutedDecoding
from posttrain.distributed.sampler import Facts, Offer, Sampler
from posttrain.engine.engine import DecodingEngine
from posttrain.engine.policy import Policy
from posttrain.engine.scheduler import step_of
from posttrain.engine.weight_channel import ALIVE_S, FANOUT, PATIENCE, ChannelError
from posttrain.errors import EngineError
from posttrain.runs.timeline import Span
from posttrain.types import Decoding


class Source(Protocol):
    """What has the weights: a `LearnerGroup`."""

    @property
    def version(self) -> str:
        """The version of its weights."""
        ...

    def offered(self) -> AbstractContextManager[Offer]:
        """Offer them while the block runs."""
        ...

    def check(self) -> None:
        """Raise `ProcessLost` if it has lost a process."""
        ...


class SamplerGroup(DecodingEngine, Group):
    """An engine of several processes; a context manager, at whose end they are gone. Conforms to `types.Engine`.

    Where its source goes on while it samples, a scheduler can put newer weights in (`in_flight`).

    Args:
        size: how many.
        load: loads the policy in each; it is pickled.
        engines: of each sampler, an argument of `load`; none: it has no such argument.
        source: has the trained weights.
        share: what each gets of a machine.
        timeout_s: how long a call may take, the transfer of weights among them, before the process counts as lost.
        environment: variables of their processes.

    Attributes:
        facts: what is known of the policy.
        replaced: number of samplers that were lost and replaced.

    Raises:
        UserError: Ray is not installed, the cluster has no room for them, or the policy cannot be loaded.
    """

    def __init__(
        self,
        size: int,
        load: Callable[..., Policy],
        source: Source,
        *,
        engines: Sequence[str] = (),
        share: cluster.Share = cluster.ONE_CPU,
        timeout_s: float = 600.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        connection.connect(cpus=size * share.cpus)
        self._loads = [partial(load, engine=engine) for engine in engines] or [load] * size
        self._source, self.timeout_s = source, timeout_s
        each = [(cluster.threads_of(share.threads, size),)] * size
        self.actors = cluster.Actors("sampler", Sampler, each, share.bundle(), environment or {})
        self._places = [Place(number) for number in range(size)]
        self.replaced, self._sent_bytes, self._sent_s, self._retries = 0, 0, 0.0, 0
        self._decoding: RoutedDecoding | None = None
        self._ledger = Ledger("sampler", size)
        try:
            self.facts: Facts = self._build(self._places)[0]
        except BaseException:
            self.stop()
            raise

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
                self.actors.call(place.number, "end")

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
        """Send the source's weights to samplers that have others, and replace those that do not take them.

        Args:
            places: the samplers; None: all. Those in the middle of a decoding must not be among them.

        Raises:
            EngineError: one sampler after another is lost.
        """
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
        raise EngineError(f"the weights {version} could not be sent: {why}") from why

    def _sent(self, places: Sequence[Place], how: str) -> list[tuple[Place, BaseException]]:
        """Have samplers take the source's weights by this method; those that did not, and why."""
        began = time.monotonic()
        with self._source.offered() as offer:
            answers = self._passed_on(places, how, offer)
            # the sampler that was to pass them on may be the one that failed
            again = [place for place in places[FANOUT:] if isinstance(answers[place.number].error, ChannelError)]
            answers |= self._answers(again, how, [offer] * len(again))
        self._retries = len(again)
        self._sent_s = time.monotonic() - began
        self._ledger.note("weights", [place.number for place in places], self._sent_s, busy=False)
        failed: list[tuple[Place, BaseException]] = []
        for place in places:
            answer = answers[place.number]
            if isinstance(answer.error, Lost | ChannelError):
                failed.append((place, answer.error))
            else:
                self._sent_bytes, place.version = answer.result(), offer.version
        if any(isinstance(why, ChannelError) for _, why in failed):
            self._source.check()  # before samplers are replaced that are not to blame
        return failed

    def _passed_on(self, places: Sequence[Place], how: str, offer: Offer) -> dict[int, Answer]:
        """What samplers answer that take the weights: the first from the source, the others from earlier ones."""
        passing = places[: max(0, math.ceil(len(places) / FANOUT) - 1)]
        # those that wait for a sampler that hangs are not lost with it
        patience = min(PATIENCE, max(2 * ALIVE_S, self.timeout_s / 4))
        relays = self._answers(passing, "pass_on")
        offers = [offer] * FANOUT
        for answer in relays.values():
            host, port, key = (offer.host, offer.port, offer.key) if answer.error else answer.value
            offers += [Offer(offer.version, host, port, key, patience)] * FANOUT
        lost = {number: answer for number, answer in relays.items() if answer.error}
        asked = [(place, own) for place, own in zip(places, offers, strict=False) if place.number not in lost]
        answers = self._answers([place for place, _ in asked], how, [own for _, own in asked])
        for place in passing:
            self.actors.call(place.number, "keep")
        return {**answers, **lost}

    def _answers(self, places: Sequence[Place], method: str, offers: Sequence[Offer] = ()) -> dict[int, Answer]:
        """What samplers answer that are called at the same time, each with its offer if there are any."""
        args = [(offer,) for offer in offers] or [()] * len(places)
        calls = {p.number: self.actors.call(p.number, method, *own) for p, own in zip(places, args, strict=True)}
        return self.actors.collect(calls, self.timeout_s) if calls else {}

    def metrics(self) -> dict[str, float]:
        """Of the last transfer of weights since the last call, 0 without one, and of sampling since then.

        Of the transfer: seconds until all samplers had them, bytes to each, and how many the trainer sent them since
        another sampler had failed to. Losses so far. Of sampling: the share of time in which each sampled, and tokens
        per second then, of all and of each.
        """
        sent = {"cluster/sync_seconds": self._sent_s, "cluster/sync_bytes": float(self._sent_bytes)}
        sent["cluster/sync_retries"] = float(self._retries)
        self._sent_bytes, self._sent_s, self._retries = 0, 0.0, 0
        shares, speeds = self._ledger.rates()
        replaced = {"cluster/samplers_replaced": float(self.replaced)}
        return {**sent, **replaced, **shares, **speeds}

    def note(self, place: Place, seconds: float, tokens: int) -> None:
        """Note that a sampler has sampled these tokens in the last seconds."""
        self._ledger.note("sampling", [place.number], seconds, tokens)

    def spans(self) -> list[Span]:
        """What samplers did since the last call."""
        return self._ledger.spans()

    def revive(self, place: Place) -> None:
        """Replace a sampler that is lost by a process that has the weights; raises as `update`."""
        self._replace(place)
        self.update([place])

    def _replace(self, place: Place) -> None:
        self.actors.replace(place.number)
        self.replaced += 1
        place.version = ""
        self._build([place])

    def _build(self, places: Sequence[Place]) -> list[Facts]:
        calls = {place.number: self.actors.call(place.number, "build", self._loads[place.number]) for place in places}
        return [answer.result() for answer in self.actors.collect(calls, cluster.START_S).values()]
