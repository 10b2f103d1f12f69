"""Requests of several adapters in one decoding: each gets what a network of its own gives it alone."""

from functools import cache, partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.engine import transformers as module
from posttrain.engine.kv_cache import PrefixCache
from posttrain.engine.transformers import TransformersEngine
from posttrain.errors import UserError
from posttrain.types import Request, Sampling
from tests.clients import clients, mixed
from tests.tiny import CONTEXT, tiny_llama

PROMPTS = [(5, 9, 3), (7,), (4, 8, 15, 16, 23, 9, 3)]
STOPS = [frozenset(), frozenset({3, 7, 12, 20, 33}), frozenset({1, 5, 9, 21, 30, 38})]
LOGPROBS = 2e-5  # nats by which rounding of a product may differ with its number of rows


@cache
def clients_of_one_base():
    model = tiny_llama()
    of_all = mixed(model)
    return of_all, clients(model, of_all)


@cache
def alone(client, request, stops):
    """The completion of a network that has the adapter as peft puts it there."""
    _, each = clients_of_one_base()
    return TransformersEngine(each[client].alone, stops).generate([request])[0]


def is_as_alone(found, client, request, stops):
    expected = alone(client, request, stops)
    assert (found.token_ids, found.stop_reason) == (expected.token_ids, expected.stop_reason)
    assert found.logprobs == pytest.approx(expected.logprobs, abs=LOGPROBS)


def until_done(decoding, count, done=None):
    done = done or {}
    for _ in range(1000):
        if len(done) == count:
            return done
        done |= decoding.step()
    raise AssertionError("it does not end")


requests = st.builds(
    Request,
    st.sampled_from(PROMPTS),
    st.builds(Sampling, st.integers(1, 12), st.sampled_from([0.0, 0.7, 1.0]), st.sampled_from([0, 3])),
    st.integers(0, 3),
)
arrivals = st.lists(st.tuples(st.integers(0, 4), requests, st.sampled_from(STOPS), st.integers(0, 3)), max_size=9)


@settings(deadline=None, max_examples=30)
@given(arrivals=arrivals, slots=st.integers(1, 8), turns=st.booleans())
def test_whoever_else_samples_and_whenever_they_come(arrivals, slots, turns):
    of_all, each = clients_of_one_base()
    done = {}
    with TransformersEngine(of_all, frozenset(range(10)), max_sequences=slots).open(turns=turns) as decoding:
        for number, (client, request, stops, steps) in enumerate(arrivals):
            decoding.add(number, request, stop_ids=stops, adapter=each[client].adapter)
            for _ in range(steps):
                done |= decoding.step()
        done = until_done(decoding, len(arrivals), done)
    for number, (client, request, stops, _) in enumerate(arrivals):
        is_as_alone(done[number], client, request, stops)


def test_one_prompt_under_several_adapters_is_another_prompt_for_each():
    of_all, each = clients_of_one_base()
    asked = [(client, Request(PROMPTS[2], Sampling(6), seed)) for seed in range(3) for client in range(5)]
    with TransformersEngine(of_all, frozenset()).open() as decoding:
        for number, (client, request) in enumerate(asked):
            decoding.add(number, request, adapter=each[client].adapter)
        done = until_done(decoding, len(asked))
        assert decoding.computed == 5 * len(PROMPTS[2])
    for number, (client, request) in enumerate(asked):
        is_as_alone(done[number], client, request, frozenset())
    assert len({done[client].logprobs for client in range(5)}) == 5


def test_a_conversation_goes_on_from_what_its_own_adapter_has_computed(monkeypatch):
    monkeypatch.setattr(module, "PrefixCache", partial(PrefixCache, block=3))
    of_all, each = clients_of_one_base()
    first, number = [Request(PROMPTS[2], Sampling(5), seed=client) for client in range(5)], 0
    with TransformersEngine(of_all, frozenset()).open(turns=True) as decoding:
        for client, request in enumerate(first):
            decoding.add(client, request, adapter=each[client].adapter)
        done = until_done(decoding, 5)
        before = decoding.computed
        # every adapter continues what every adapter has said
        later = [
            (client, Request((*request.token_ids, *done[said].token_ids, 6), Sampling(4), seed=9))
            for client in range(5)
            for said, request in enumerate(first)
        ]
        for number, (client, request) in enumerate(later, 5):
            decoding.add(number, request, adapter=each[client].adapter)
        done = until_done(decoding, number + 1, done)
        assert decoding.computed - before < sum(len(request.token_ids) for _, request in later)
    for number, (client, request) in enumerate(later, 5):
        is_as_alone(done[number], client, request, frozenset())


def test_an_adapter_that_was_cancelled_leaves_the_others_as_they_are():
    of_all, each = clients_of_one_base()
    asked = [Request(PROMPTS[client % 3], Sampling(9), seed=client) for client in range(5)]
    with TransformersEngine(of_all, frozenset()).open() as decoding:
        for client, request in enumerate(asked):
            decoding.add(client, request, adapter=each[client].adapter)
            decoding.add(-1 - client, request, adapter=each[client - 1].adapter)
        for client in range(5):
            decoding.step()
            decoding.cancel(-1 - client)
        done = until_done(decoding, 5)
    for client, request in enumerate(asked):
        is_as_alone(done[client], client, request, frozenset())


def test_a_prompt_that_is_too_long_costs_nobody_anything():
    of_all, each = clients_of_one_base()
    request = Request(PROMPTS[0], Sampling(5), seed=1)
    with TransformersEngine(of_all, frozenset()).open() as decoding:
        decoding.add(0, request, adapter=each[1].adapter)
        decoding.step()
        with pytest.raises(UserError, match="tokens"):
            decoding.add(1, Request(PROMPTS[0] * CONTEXT, Sampling(5)), adapter=each[2].adapter)
        done = until_done(decoding, 1)
    is_as_alone(done[0], 1, request, frozenset())


def test_weights_are_packed_once_however_many_adapters_come(monkeypatch):
    model = tiny_llama(dtype=torch.bfloat16)
    of_all = mixed(model)
    each, packed = clients(model, of_all), []
    original = module.packed_weights
    monkeypatch.setattr(module, "packed_weights", lambda network: packed.append(network) or original(network))
    with TransformersEngine(of_all, frozenset()).open() as decoding:
        for number, client in enumerate(each * 2):
            decoding.add(number, Request(PROMPTS[0], Sampling(12), seed=number), adapter=client.adapter)
            decoding.step()
        until_done(decoding, 10)
    assert packed == [of_all.network]
