"""Samplers in processes of a Ray cluster, behind one engine.

    with SamplerGroup(2, load, learner) as engine:
        engine.generate(requests)

Before anything is sampled, samplers take the trained weights from the trainer if its version is another than theirs;
they sample from no other version. A request goes to the sampler that has its prefix in the cache, that of an episode's
earlier turn; the others are split evenly, those of one prompt together. Which one answers changes nothing but rounding,
since a request's draws depend on its seed. A sampler that dies or hangs is replaced, and its requests are sampled
again: in `lockstep` in the batches that they were in before, so that not even rounding changes.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from posttrain.distributed import cluster
from posttrain.distributed.cluster import Answer, Lost
from posttrain.distributed.group import Group, Ledger
from posttrain.distributed.sampler import Exchanged, Facts, Offer, Sampler
from posttrain.errors import EngineError
from posttrain.rollouts.engine import finish_all, refuse_unanswerable
from posttrain.rollouts.policy import Policy
from posttrain.rollouts.shared_engine import step_of
from posttrain.rollouts.weight_channel import ChannelError
from posttrain.runs.timeline import Span, joined
from posttrain.types import Completion, Decoding, Request

GAP_S = 0.05  # between two spans of sampling that the timeline shows as one
LOSSES = 5  # of samplers, without an answer in between: then something else is wrong


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


@dataclass
class _Place:
    """A sampler as the controller sees it."""

    number: int
    version: str = ""  # of its weights
    call: Any = None  # what it works on
    since: float = 0.0  # when that began
    new: dict[int, Request] = field(default_factory=dict[int, Request])  # not sent yet
    cancelled: list[int] = field(default_factory=list[int])  # not sent yet
    batches: list[dict[int, Request]] = field(default_factory=list[dict[int, Request]])  # sent; the last is under way
    merged: bool = False  # whether requests have joined a batch that was under way
    done: set[int] = field(default_factory=set[int])  # answered or cancelled

    @property
    def running(self) -> dict[int, Request]:
        """Requests that were sent and are not done."""
        return {n: request for batch in self.batches[-1:] for n, request in batch.items() if n not in self.done}


class SamplerGroup(Group):
    """An engine of several processes; a context manager, at whose end they are gone. Conforms to `types.Engine`.

    Where its source goes on while it samples, it is also a `shared_engine.Renewed`.

    Args:
        size: how many.
        load: loads the policy in each; it is pickled.
        source: has the trained weights.
        cpus: logical CPUs of each, for Ray's placement.
        gpus: GPUs of each; None: one where the cluster has any.
        threads: threads that torch uses in each; 0: those of this process divided among them.
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
        load: Callable[[], Policy],
        source: Source,
        *,
        cpus: float = 1.0,
        gpus: float | None = None,
        threads: int = 0,
        timeout_s: float = 600.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        cluster.connect(cpus=size * cpus)
        self._load, self._source, self.timeout_s = load, source, timeout_s
        each = [(cluster.threads_of(threads, size),)] * size
        self.actors = cluster.Actors("sampler", Sampler, each, cluster.bundle(cpus, gpus), environment or {})
        self._places = [_Place(number) for number in range(size)]
        self.replaced, self._sent_bytes, self._sent_s = 0, 0, 0.0
        self._decoding: _Decoding | None = None
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

    def generate(self, requests: Sequence[Request], on_tokens: Callable[[int], None] | None = None) -> list[Completion]:
        """One completion per request, in order.

        Raises:
            UserError: a prompt is empty, or leaves no room in the model's context.
            EngineError: one sampler after another is lost.
        """
        refuse_unanswerable(requests, self.facts.context, self.facts.name)
        with self.open(on_tokens) as decoding:
            return finish_all(decoding, requests)

    @contextlib.contextmanager
    def open(self, on_tokens: Callable[[int], None] | None = None, *, turns: bool = False) -> Iterator[Decoding]:
        """See `types.Engine`. The weights are those that the source has now."""
        self.update()
        self._decoding = decoding = _Decoding(self, self._places, on_tokens, turns)
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

    def update(self, places: Sequence[_Place] | None = None) -> None:
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

    def _sent(self, places: Sequence[_Place], how: str) -> list[tuple[_Place, BaseException]]:
        """Have samplers take the source's weights by this method; those that did not, and why."""
        began = time.monotonic()
        with self._source.offered() as offer:
            calls = {place.number: self.actors.call(place.number, how, offer) for place in places}
            answers = self.actors.collect(calls, self.timeout_s)
        self._sent_s = time.monotonic() - began
        self._ledger.note("weights", [place.number for place in places], self._sent_s, busy=False)
        failed: list[tuple[_Place, BaseException]] = []
        for place in places:
            answer = answers[place.number]
            if isinstance(answer.error, Lost | ChannelError):
                failed.append((place, answer.error))
            else:
                self._sent_bytes, place.version = answer.result(), offer.version
        if any(isinstance(why, ChannelError) for _, why in failed):
            self._source.check()  # before samplers are replaced that are not to blame
        return failed

    def metrics(self) -> dict[str, float]:
        """Of the last transfer of weights: seconds until all samplers had them, and bytes to each. Losses so far.

        Since the last call: the share of time in which each sampled, and the tokens per second then.
        """
        sent = {"cluster/sync_seconds": self._sent_s, "cluster/sync_bytes": float(self._sent_bytes)}
        shares, per_second = self._ledger.rates()
        replaced = {"cluster/samplers_replaced": float(self.replaced)}
        return {**sent, **replaced, **shares, "cluster/sampler_tokens_per_second": per_second}

    def note(self, place: _Place, seconds: float, tokens: int) -> None:
        """Note that a sampler has sampled these tokens in the last seconds."""
        self._ledger.note("sampling", [place.number], seconds, tokens)

    def spans(self) -> list[Span]:
        """What samplers did since the last call."""
        return joined(self._ledger.spans(), GAP_S)

    def revive(self, place: _Place) -> None:
        """Replace a sampler that is lost by a process that has the weights; raises as `update`."""
        self._replace(place)
        self.update([place])

    def _replace(self, place: _Place) -> None:
        self.actors.replace(place.number)
        self.replaced += 1
        place.version = ""
        self._build([place])

    def _build(self, places: Sequence[_Place]) -> list[Facts]:
        calls = {place.number: self.actors.call(place.number, "build", self._load) for place in places}
        return [answer.result() for answer in self.actors.collect(calls, cluster.START_S).values()]


class _Decoding:
    """Requests under way on the samplers of a group. Conforms to `types.Decoding`."""

    def __init__(
        self, group: SamplerGroup, places: list[_Place], on_tokens: Callable[[int], None] | None, turns: bool
    ) -> None:
        self._group, self._places, self._on_tokens, self._turns = group, places, on_tokens, turns
        self._waiting: dict[int, Request] = {}
        # conversations so far, and who has them in the cache: equal ones maybe several
        self._known: dict[tuple[int, ...], list[_Place]] = {}
        self._losses = 0
        for place in places:
            place.new, place.cancelled, place.batches, place.done, place.call = {}, [], [], set(), None
            place.merged = False
        self._begin_all()

    def add(self, number: int, request: Request) -> None:
        """See `types.Decoding`."""
        refuse_unanswerable([request], self._group.facts.context, self._group.facts.name)
        self._waiting[number] = request

    def forget(self) -> None:
        """The samplers have new weights, and none of the conversations in their caches."""
        self._known = {}

    def cancel(self, number: int) -> None:
        """See `types.Decoding`."""
        self._waiting.pop(number, None)
        for place in self._places:
            place.new.pop(number, None)
            if number in place.running:
                place.cancelled.append(number)
                place.done.add(number)

    def step(self) -> dict[int, Completion]:
        """See `types.Decoding`: what the first sampler that answers has done in a slice of time.

        Raises:
            EngineError: one sampler after another is lost.
        """
        self._assign()
        for place in self._places:
            if place.call is None and (place.new or place.cancelled or place.running):
                self._send(place)
        calls = {place.number: place.call for place in self._places if place.call is not None}
        if not calls:
            return {}
        patience = min(place.since for place in self._places if place.call is not None) + self._group.timeout_s
        answers = self._group.actors.arrived(calls, max(0.0, patience - time.monotonic()))
        now = time.monotonic()  # to replace one takes time, for which the others are not to blame
        done: dict[int, Completion] = {}
        for place in self._places:
            if place.number in answers:
                done |= self._received(place, answers[place.number])
            elif place.call is not None and now - place.since > self._group.timeout_s:
                why = f"has not answered for {self._group.timeout_s:g} s"
                self.lost(place, self._group.actors.lost(place.number, why))
        return done

    def _assign(self) -> None:
        """Give waiting requests to samplers: to the one that has the prefix, the others in equal shares."""
        rest: dict[tuple[int, ...], dict[int, Request]] = {}  # by prompt
        for number, request in self._waiting.items():
            if (place := self._knower(request)) is not None:
                place.new[number] = request
            else:
                rest.setdefault(request.token_ids, {})[number] = request
        self._waiting = {}
        left = [each for of_prompt in rest.values() for each in of_prompt.items()]
        loads = {place.number: len(place.running) + len(place.new) for place in self._places}
        share = math.ceil((len(left) + sum(loads.values())) / len(self._places))
        for place in sorted(self._places, key=lambda place: loads[place.number]):
            mine = max(0, share - loads[place.number])
            place.new.update(left[:mine])
            left = left[mine:]

    def _knower(self, request: Request) -> _Place | None:
        """The sampler with the longest conversation that the request goes on with."""
        begun = [known for known in self._known if request.token_ids[: len(known)] == known]
        if not begun:
            return None
        places = self._known[conversation := max(begun, key=len)]
        place = min(places, key=lambda place: place.number)  # not the first that answered: the clock decides nothing
        places.remove(place)
        if not places:
            del self._known[conversation]
        return place

    def _begin_all(self) -> None:
        """Open a decoding on each sampler; those that were lost since the last one are replaced."""
        actors = self._group.actors
        calls = {place.number: actors.call(place.number, "begin", self._turns) for place in self._places}
        for number, answer in actors.collect(calls, self._group.timeout_s).items():
            if isinstance(answer.error, Lost):
                self.lost(self._places[number], answer.error)
            else:
                answer.result()

    def _begin(self, place: _Place) -> None:
        """The same on a sampler that was replaced."""
        call = self._group.actors.call(place.number, "begin", self._turns)
        self._group.actors.collect({place.number: call}, self._group.timeout_s)[place.number].result()

    def _send(self, place: _Place) -> None:
        """Have a sampler work for a slice of time."""
        if place.new and place.running:
            place.batches, place.done = [place.running | place.new], set()
            place.merged = True
        elif place.new:
            place.batches.append(place.new)
        self._exchange(place, place.new, place.cancelled)
        place.new, place.cancelled = {}, []

    def _exchange(self, place: _Place, new: Mapping[int, Request], cancelled: Sequence[int] = ()) -> None:
        place.since = time.monotonic()
        place.call = self._group.actors.call(place.number, "exchange", place.version, list(new.items()), cancelled)

    def _received(self, place: _Place, answer: Answer) -> dict[int, Completion]:
        """What a sampler has done."""
        place.call = None
        if isinstance(answer.error, Lost):
            self.lost(place, answer.error)
            return {}
        found: Exchanged = answer.result()
        self._group.note(place, found.seconds, found.tokens)
        running = place.running
        done = {number: completion for number, completion in found.done.items() if number in running}
        for number, completion in done.items():
            if wrong := _fault(running[number], completion):
                self.lost(place, Lost(f"sampler {place.number} {wrong}"))
                return {}
        self._losses = 0
        place.done |= done.keys()
        if self._turns:
            for number, completion in done.items():
                conversation = (*running[number].token_ids, *completion.token_ids)
                self._known.setdefault(conversation, []).append(place)
        if self._on_tokens is not None:
            self._on_tokens(found.tokens)
        return done

    def lost(self, place: _Place, why: BaseException) -> None:
        """Replace a sampler, and sample again what it had."""
        while True:
            self._losses += 1
            if self._losses > LOSSES:
                raise EngineError(f"{self._losses} samplers were lost one after another; the last: {why}") from why
            try:
                self._group.revive(place)
                self._begin(place)
                return self._repeat(place)
            except Lost as again:
                why = again

    def _repeat(self, place: _Place) -> None:
        """Give a sampler that was replaced all batches that it had, and go on with the last.

        A batch to which nothing was added is computed as it was before, and so are those that find its prompts in the
        cache. Otherwise only what is not done is given.
        """
        place.call = None
        if place.merged:
            place.batches = [place.running]
        for batch in place.batches[:-1]:
            left, new = set(batch), batch
            while left:
                self._exchange(place, new)
                answer = self._group.actors.collect({place.number: place.call}, self._group.timeout_s)[place.number]
                left, new = left - answer.result().done.keys(), {}
        place.call = None
        if place.running:
            self._exchange(place, place.batches[-1])


def _fault(request: Request, completion: Completion) -> str:
    """What is wrong with an answer; "" where nothing is."""
    tokens, most = len(completion.token_ids), request.sampling.max_new_tokens
    if not 0 < tokens <= most:
        return f"answered with {tokens} tokens, of {most} at most"
    if tokens != len(completion.logprobs):
        return f"answered with {tokens} tokens and {len(completion.logprobs)} logprobs"
    return ""
