"""Which sampler gets which request: without processes."""

import contextlib
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("ray")

from posttrain.distributed import routing, samplers
from posttrain.distributed.broadcast import Offer
from posttrain.distributed.cluster import Answer, Lost
from posttrain.distributed.pool import Ledger, Share
from posttrain.distributed.samplers import Exchanged, Facts
from posttrain.engine.weight_channel import ChannelError
from posttrain.errors import EngineError, ProcessLost
from posttrain.types import Completion, Request, Sampling, StopReason
from tests.distributed.fakes import placed


class Actors:
    """Samplers that answer a request after as many calls as its seed says, with its number."""

    def __init__(self, size, losses=()):
        self.left = [{} for _ in range(size)]
        self.sent = [[] for _ in range(size)]  # batches, as they came
        self.losses, self.calls = Counter(losses), 0

    def call(self, place, method, *args):
        if method == "begin":
            self.left[place] = {}
        if method != "exchange":
            return Answer()
        version, new, cancelled = args
        assert version == "1"
        if new:
            self.sent[place].append([number for number, _ in new])
        for number, request in new:
            self.left[place][number] = (request.seed, request)
        for number in cancelled:
            self.left[place].pop(number, None)
        self.calls += 1
        if self.losses[self.calls]:
            return Answer(error=Lost("gone"))
        done = {n: said(request) for n, (after, request) in self.left[place].items() if not after}
        self.left[place] = {n: (after - 1, r) for n, (after, r) in self.left[place].items() if n not in done}
        return Answer(Exchanged(done, len(done)))

    def arrived(self, calls, timeout_s):
        first = min(calls)
        return {first: calls[first]}

    def collect(self, calls, timeout_s):
        return calls

    def lost(self, place, why):
        return Lost(f"sampler {place} {why}")


def said(request):
    return Completion((request.seed,), (-1.0,), StopReason.LENGTH)


class Group(Actors):
    """What a decoding reads of a group."""

    facts, timeout_s = Facts("m", 1000, frozenset(), {}), 60.0

    def __init__(self, size, losses=()):
        super().__init__(size, losses)
        self.revived = []
        self.places = [routing.Place(number, "1") for number in range(size)]
        self.ledger = Ledger("sampler", size)

    def ask(self, place, method, *args):
        return self.collect({place: self.call(place, method, *args)}, self.timeout_s)[place].result()

    def revive(self, place):
        self.revived.append(place.number)

    def decoding(self, turns=False):
        return routing.RoutedDecoding(self, self.places, None, turns)


def ask(decoding, requests):
    for number, request in requests.items():
        decoding.add(number, request)
    done = {}
    for _ in range(1000):
        done |= decoding.step()
        if len(done) == len(requests):
            return done
    raise AssertionError("some were never answered")


def request(prompt, seed=0):
    return Request((prompt,), Sampling(4), seed)


requests_of = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=24)


@given(st.integers(1, 4), requests_of, st.lists(st.integers(1, 12), max_size=3))
def test_each_request_is_answered_once_whoever_is_lost(size, drawn, losses):
    group = Group(size, losses)
    requests = {number: request(prompt, seed) for number, (prompt, seed) in enumerate(drawn)}
    done = ask(group.decoding(), requests)
    assert done == {number: said(each) for number, each in requests.items()}
    assert len(group.revived) == len([loss for loss in set(losses) if loss <= group.calls])


@given(st.integers(1, 4), requests_of)
def test_shares_are_equal_and_split_few_prompts(size, drawn):
    group = Group(size)
    ask(group.decoding(), {number: request(prompt, seed) for number, (prompt, seed) in enumerate(drawn)})
    shares = [[number for batch in sent for number in batch] for sent in group.sent]
    share = -(-len(drawn) // size)
    assert (
        sorted(number for numbers in shares for number in numbers) == list(range(len(drawn)))
        and max(map(len, shares)) == share
    )
    prompts = [{drawn[number][0] for number in numbers} for numbers in shares]
    assert sum(map(len, prompts)) <= len({prompt for prompt, _ in drawn}) + size - 1


def test_a_later_turn_goes_to_the_sampler_that_has_the_earlier_one():
    group = Group(3)
    decoding = group.decoding(turns=True)
    first = {number: request(number) for number in range(7)}
    done = ask(decoding, first)
    before = [set(batches[0]) for batches in group.sent]
    later = {n + 10: Request((*first[n].token_ids, *done[n].token_ids, 99), Sampling(4)) for n in reversed(range(7))}
    ask(decoding, later | {50: request(50)})
    after = [{n - 10 for n in batches[1] if n != 50} for batches in group.sent]
    assert before == after


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_equal_conversations_go_back_to_their_samplers_whoever_answered_first(order):
    group = Group(2)
    decoding = group.decoding(turns=True)
    for number in range(4):
        decoding.add(number, request(0))  # two on each, with the same answer
    first = {0: {0: order[0]}, 1: {0: order[1]}}
    group.arrived = lambda calls, timeout_s: {n: calls[n] for n in sorted(calls, key=lambda n: first[n][0])[:1]}
    done = {}
    while len(done) < 4:
        done |= decoding.step()
    group.arrived = lambda calls, timeout_s: dict(calls)
    ask(decoding, {n + 10: Request((0, 0, n), Sampling(4)) for n in range(4)})
    assert [batches[1] for batches in group.sent] == [[10, 11], [12, 13]]


def test_a_sampler_is_not_lost_for_the_time_that_another_took_to_be_replaced(monkeypatch):
    group = Group(2, losses=[1])
    now = [0.0]
    monkeypatch.setattr(routing.time, "monotonic", lambda: now[0])
    revive = group.revive

    def slowly(place):
        now[0] += 10 * group.timeout_s
        revive(place)

    group.revive = slowly
    ready = iter([[0]])  # the first alone; later all are
    group.arrived = lambda calls, timeout_s: {n: calls[n] for n in next(ready, calls)}
    done = ask(group.decoding(), {number: request(number) for number in range(4)})
    assert len(done) == 4 and group.revived == [0]


def test_what_comes_later_fills_the_samplers_that_have_less():
    group = Group(2)
    decoding = group.decoding()
    decoding.add(0, request(0, seed=9))
    decoding.step()
    for number in (1, 2, 3):
        decoding.add(number, request(number, seed=9))
    for _ in range(3):
        decoding.step()
    assert group.sent == [[[0], [1]], [[2, 3]]] or group.sent == [[[0], [3]], [[1, 2]]]


def test_cancelled_requests_are_not_answered_and_not_sampled_again():
    group = Group(1, losses=[3])
    decoding = group.decoding()
    decoding.add(0, request(0, seed=4))
    decoding.add(1, request(1, seed=4))
    decoding.add(2, request(2, seed=4))
    decoding.cancel(2)  # before it was sent
    decoding.step()
    decoding.cancel(1)  # under way
    done = {}
    for _ in range(20):
        done |= decoding.step()
    assert set(done) == {0} and group.revived == [0]


def test_a_lost_sampler_gets_its_batches_again_in_order():
    group = Group(1, losses=[4])
    decoding = group.decoding(turns=True)
    ask(decoding, {0: request(0), 1: request(1)})
    ask(decoding, {2: Request((0, 0, 5), Sampling(4), 1), 3: Request((1, 0, 5), Sampling(4), 2)})
    assert group.sent == [[[0, 1], [2, 3], [0, 1], [2, 3]]]


def test_where_requests_joined_a_batch_only_the_rest_is_given_again():
    group = Group(1, losses=[4])
    decoding = group.decoding()
    decoding.add(0, request(0))
    decoding.add(1, request(1, seed=9))
    assert set(decoding.step()) == {0}
    decoding.add(2, request(2, seed=9))
    for _ in range(3):
        decoding.step()
    assert group.sent == [[[0, 1], [2], [1, 2]]]


def test_too_many_losses_in_a_row_are_an_error():
    group = Group(1, losses=range(1, 50))
    decoding = group.decoding()
    decoding.add(0, request(0))
    with pytest.raises(EngineError, match="6 samplers were lost one after another; the last: gone"):
        for _ in range(20):
            decoding.step()


def test_one_that_does_not_answer_in_time_is_lost(monkeypatch):
    group = Group(2)
    hung = group.places[1]
    monkeypatch.setattr(group, "arrived", lambda calls, timeout_s: {n: c for n, c in calls.items() if n == 0})
    now = [time.monotonic()]
    monkeypatch.setattr(routing.time, "monotonic", lambda: now[0])
    decoding = group.decoding()
    decoding.add(0, request(0))
    decoding.add(1, request(1))
    decoding.step()
    assert hung.call is not None and not group.revived
    now[0] += group.timeout_s + 1
    decoding.step()
    assert group.revived == [1]


class Starting(Actors):
    """Samplers that are lost in the calls that a test names, and answer nothing until they are replaced."""

    def __init__(self, size):
        super().__init__(size)
        self.to_lose, self.gone, self.started = Counter(), set(), 0

    def __len__(self):
        return len(self.left)

    def call(self, place, method, *args):
        if self.to_lose[method]:
            self.to_lose[method] -= 1
            self.gone.add(place)
        if place in self.gone:
            return Answer(error=Lost(f"gone in {method}"))
        if method == "exchange":
            args = ("1", *args[1:])  # whichever version
        return {"build": Answer(Group.facts), "take": Answer(8)}.get(method) or super().call(place, method, *args)

    def replace(self, place):
        self.gone.discard(place)
        self.started += 1

    def stop(self):
        pass


class Source:
    """Has weights."""

    version = "a.1"

    def __init__(self, gone=False):
        self.gone = gone

    def check(self):
        if self.gone:
            raise ProcessLost("a trainer is gone")

    def offered(self):
        return contextlib.nullcontext(Offer(self.version, "", 0))


HERE = Share(gpus=0.0, threads=1)  # what needs no cluster to be asked


@pytest.mark.parametrize("lost", ["take", "begin", "exchange"])
@pytest.mark.parametrize("again", [0, 1, 2])
def test_a_replacement_that_is_lost_while_it_loads_is_replaced(lost, again, monkeypatch):
    actors = Starting(2)
    placed(monkeypatch, actors)
    with samplers.SamplerGroup(2, lambda: None, Source(), share=HERE) as engine:
        actors.to_lose.update({lost: 1, "build": again})
        requests = [request(number) for number in range(4)]
        assert engine.generate(requests) == [said(each) for each in requests]
        assert engine.replaced == actors.started == 1 + again


def test_each_sampler_loads_its_own_engine_and_so_does_its_replacement(monkeypatch):
    actors, loaded = Starting(2), []
    placed(monkeypatch, actors)
    call = actors.call

    def building(place, method, *args):
        if method == "build":
            loaded.append((place, args[0]()))
        return call(place, method, *args)

    actors.call = building

    def load(engine):
        return engine

    with samplers.SamplerGroup(2, load, Source(), engines=["http://a", "http://b"], share=HERE) as engine:
        actors.to_lose.update({"exchange": 1})
        engine.generate([request(number) for number in range(4)])
    assert loaded[:2] == [(0, "http://a"), (1, "http://b")] and len(loaded) == 3 and loaded[2] in loaded[:2]


def test_samplers_are_not_replaced_for_weights_that_nobody_sends(monkeypatch):
    actors = Starting(2)
    placed(monkeypatch, actors)
    call = actors.call

    def cut(place, method, *args):
        return Answer(error=ChannelError("cut off")) if method == "take" else call(place, method, *args)

    actors.call = cut
    with samplers.SamplerGroup(2, lambda: None, Source(gone=True), share=HERE) as engine:
        with pytest.raises(ProcessLost, match="a trainer is gone"):
            engine.generate([request(0)])
        assert engine.replaced == 0
    with samplers.SamplerGroup(2, lambda: None, Source(), share=HERE) as engine:
        with pytest.raises(EngineError, match="could not be sent to the samplers: cut off"):
            engine.generate([request(0)])
        assert engine.replaced == 12


def test_replacements_that_are_lost_again_and_again_are_an_error(monkeypatch):
    actors = Starting(1)
    placed(monkeypatch, actors)
    with samplers.SamplerGroup(1, lambda: None, Source(), share=HERE) as engine:
        actors.to_lose.update({"exchange": 1, "build": 99})
        with pytest.raises(EngineError, match="6 samplers were lost one after another; the last: gone in build"):
            engine.generate([request(0)])
        assert engine.replaced == 5


@pytest.mark.parametrize(
    ("tokens", "logprobs", "says"),
    [(0, 0, "with 0 tokens, of 4 at most"), (5, 5, "with 5 tokens, of 4"), (3, 2, "with 3 tokens and 2 logprobs")],
)
def test_a_sampler_that_answers_wrong_lengths_is_replaced_and_again_and_again_an_error(tokens, logprobs, says):
    wrong = Completion((1,) * tokens, (-1.0,) * logprobs, StopReason.LENGTH)
    for times in (1, 99):
        group, left = Group(1), [wrong] * times

        def exchange(place, method, *args, call=group.call, left=left):
            answer = call(place, method, *args)
            if method == "exchange" and answer.value.done and left:
                return Answer(answer.value._replace(done=dict.fromkeys(answer.value.done, left.pop())))
            return answer

        group.call = exchange
        if times == 1:
            assert ask(group.decoding(), {0: request(0, seed=2)}) == {0: said(request(0, seed=2))}
            assert group.revived == [0]
        else:
            with pytest.raises(EngineError, match=f"6 samplers were lost .*; the last: sampler 0 answered {says}"):
                ask(group.decoding(), {0: request(0)})
