"""Which sampler of a cluster gets which request, and what becomes of the requests of one that is lost."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from posttrain.distributed.cluster import LONGER, Answer, Lost
from posttrain.distributed.pool import LOSSES
from posttrain.engine.engine import refuse_unanswerable
from posttrain.errors import EngineError
from posttrain.types import Completion, Request

if TYPE_CHECKING:
    from posttrain.distributed.samplers import Exchanged, SamplerGroup


@dataclass
class Place:
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


class RoutedDecoding:
    """Requests under way on the samplers of a group. Conforms to `types.Decoding`."""

    def __init__(
        self, group: "SamplerGroup", places: list[Place], on_tokens: Callable[[int], None] | None, turns: bool
    ) -> None:
        self._group, self._places, self._on_tokens, self._turns = group, places, on_tokens, turns
        self._waiting: dict[int, Request] = {}
        # conversations so far, and who has them in the cache: equal ones maybe several
        self._known: dict[tuple[int, ...], list[Place]] = {}
        self._losses = 0
        for place in places:
            place.new, place.cancelled, place.batches, place.done, place.call = {}, [], [], set(), None
            place.merged = False
        calls = {place.number: group.call(place.number, "begin", turns) for place in places}
        for number, answer in group.collect(calls, group.timeout_s).items():  # those lost since the last are replaced
            if isinstance(answer.error, Lost):
                self.lost(places[number], answer.error)
            else:
                answer.result()

    def add(self, number: int, request: Request) -> None:
        """See `types.Decoding`."""
        refuse_unanswerable(number, request, self._group.facts.context, self._group.facts.name)
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
        """See `types.Decoding`: what the first sampler that answers has done in a slice of time. Raises as `lost`."""
        self._assign()
        for place in self._places:
            if place.call is None and (place.new or place.cancelled or place.running):
                self._send(place)
        calls = {place.number: place.call for place in self._places if place.call is not None}
        if not calls:
            return {}
        patience = min(place.since for place in self._places if place.call is not None) + self._group.timeout_s
        answers = self._group.arrived(calls, max(0.0, patience - time.monotonic()))
        now = time.monotonic()  # to replace one takes time, for which the others are not to blame
        done: dict[int, Completion] = {}
        for place in self._places:
            if place.number in answers:
                done |= self._received(place, answers[place.number])
            elif place.call is not None and now - place.since > self._group.timeout_s:
                why = f"has not answered for {self._group.timeout_s:g} s{LONGER}"
                self.lost(place, self._group.lost(place.number, why))
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

    def _knower(self, request: Request) -> Place | None:
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

    def _send(self, place: Place) -> None:
        """Have a sampler work for a slice of time."""
        if place.new and place.running:
            place.batches, place.done = [place.running | place.new], set()
            place.merged = True
        elif place.new:
            place.batches.append(place.new)
        self._exchange(place, place.new, place.cancelled)
        place.new, place.cancelled = {}, []

    def _exchange(self, place: Place, new: Mapping[int, Request], cancelled: Sequence[int] = ()) -> None:
        place.since = time.monotonic()
        place.call = self._group.call(place.number, "exchange", place.version, list(new.items()), cancelled)

    def _received(self, place: Place, answer: Answer) -> dict[int, Completion]:
        place.call = None
        if isinstance(answer.error, Lost):
            self.lost(place, answer.error)
            return {}
        found: Exchanged = answer.result()
        self._group.ledger.note("sampling", [place.number], found.seconds, found.tokens)
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

    def lost(self, place: Place, why: BaseException) -> None:
        """Replace a sampler, and sample again what it had; raises `EngineError` if one after another is lost."""
        while True:
            self._losses += 1
            if self._losses > LOSSES:
                raise EngineError(f"{self._losses} samplers were lost one after another; the last: {why}") from why
            try:
                self._group.revive(place)
                self._group.ask(place.number, "begin", self._turns)
                return self._repeat(place)
            except Lost as again:
                why = again

    def _repeat(self, place: Place) -> None:
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
                answer = self._group.collect({place.number: place.call}, self._group.timeout_s)[place.number]
                left, new = left - answer.result().done.keys(), {}
        place.call = None
        if place.running:
            self._exchange(place, place.batches[-1])


def _fault(request: Request, completion: Completion) -> str:
    if request.scored_from:
        return ""
    tokens, most = len(completion.token_ids), request.sampling.max_new_tokens
    if not 0 < tokens <= most:
        return f"answered with {tokens} tokens, of {most} at most"
    if tokens != len(completion.logprobs):
        return f"answered with {tokens} tokens and {len(completion.logprobs)} logprobs"
    return ""
