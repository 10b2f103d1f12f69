"""Batches of several adapters, by the decoder itself: who samples when, from which weights."""

import pytest
import torch

from posttrain.server.base import Adapter
from posttrain.server.datum import Sampled
from posttrain.server.decoder import Decoder, Job, Weights, first_stop, prompt_logprobs
from posttrain.types import Request, Sampling
from tests.tiny import plain_logits

STOPS = frozenset({260})


def weights_of(base, adapter, seed):
    """Weights that make another policy."""
    g = torch.Generator().manual_seed(seed)
    model = base.adapted(adapter)
    return Weights(adapter, {name: torch.randn(p.shape, generator=g) / 4 for name, p in model.trainable()})


@pytest.fixture(scope="module")
def kept(base):
    return {
        "a": weights_of(base, Adapter(4), 1),
        "b": weights_of(base, Adapter(4), 2),
        "c": weights_of(base, Adapter(2, train_mlp=False), 3),
    }


@pytest.fixture
def decoder(base, kept):
    loads = []

    def load(name):
        loads.append(name)
        return kept[name]

    found = Decoder(base, load, max_sequences=8, cache_gb=0.1)
    found.loads = loads
    return found


def job(weights, results, *, tokens=(5, 6), new=4, samples=1, stop_ids=STOPS, seed=0, **settings):
    requests = [Request(tokens, Sampling(new), seed + number) for number in range(samples)]
    given = {"stop_strings": (), "prompt_logprobs": False, "top": 0} | settings
    return Job(
        weights, requests, stop_ids, given["stop_strings"], given["prompt_logprobs"], given["top"], results.append
    )


def drained(decoder):
    steps = 0
    while decoder.busy:
        decoder.step()
        steps += 1
        assert steps < 500
    return steps


def alone(base, kept, weights, **settings):
    results = []
    decoder = Decoder(base, lambda name: kept[name], max_sequences=8, cache_gb=0.1)
    decoder.add(job(weights, results, **settings))
    drained(decoder)
    return results[0]


def test_requests_of_several_adapters_get_what_each_gets_alone(base, kept, decoder):
    results = {}
    asked = [(weights, seed) for seed in range(3) for weights in ("a", "b", "", "c")]
    for weights, seed in asked:
        decoder.add(job(weights, results.setdefault((weights, seed), []), seed=seed, samples=2))
    drained(decoder)
    for weights, seed in asked:
        (found,) = results[weights, seed]
        expected = alone(base, kept, weights, seed=seed, samples=2)
        assert [each.tokens for each in found[0]] == [each.tokens for each in expected[0]]
    assert len({tuple(results[weights, 0][0][0][0].logprobs) for weights in ("a", "b", "", "c")}) == 4


def test_requests_of_one_adapter_share_a_batch_and_others_wait_their_turn(decoder):
    order = []

    class Results(list):
        def __init__(self, name):
            self.name = name

        def append(self, found):
            order.append(self.name)

    decoder.add(job("a", Results("a1"), new=6))
    decoder.step()
    decoder.add(job("a", Results("a2"), new=2))  # joins
    decoder.add(job("b", Results("b"), new=1))
    decoder.add(job("a", Results("a3"), new=1))  # behind b
    drained(decoder)
    assert order == ["a2", "a1", "b", "a3"] and decoder.loads == ["a", "b", "a"]


def test_other_stop_tokens_are_another_batch(base, kept, decoder):
    results = []
    whole = alone(base, kept, "a", new=8)[0][0].tokens
    decoder.add(job("a", results, new=8))
    decoder.add(job("a", results, new=8, stop_ids=frozenset({whole[2]})))
    drained(decoder)
    assert results[0][0][0].tokens == whole
    cut = whole.index(whole[2]) + 1
    assert results[1][0][0] == Sampled(whole[:cut], results[0][0][0].logprobs[:cut], True)
    assert decoder.loads == ["a"]


def test_an_adapter_in_place_is_not_loaded_again(decoder):
    results = []
    for weights in ("a", "c", "a", "c", "b", "a"):  # b has the shape of a
        decoder.add(job(weights, results))
        drained(decoder)
    assert decoder.loads == ["a", "c", "b", "a"] and len(results) == 6


def test_what_fails_is_told_and_the_others_are_answered(decoder):
    results = []
    decoder.add(job("none", results))
    decoder.add(job("a", results, tokens=()))
    decoder.add(job("a", results))
    drained(decoder)
    assert [isinstance(each, Exception) for each in results] == [True, True, False]


def test_a_fault_in_a_batch_ends_its_requests_alone(decoder, monkeypatch):
    results = []
    decoder.add(job("a", results))
    decoder.step()
    monkeypatch.setattr(decoder._decoding, "step", lambda: 1 / 0)
    decoder.add(job("b", results))
    drained(decoder)
    assert isinstance(results[0], ZeroDivisionError) and not isinstance(results[1], Exception)


def test_logprobs_of_a_prompt_are_those_of_plain_transformers(base):
    tokens = [5, 6, 7, 8, 9, 10, 11]
    logits = plain_logits(base.model, tokens).log_softmax(1)
    found = prompt_logprobs(base.model, tokens, 3)
    expected = logits[torch.arange(6), torch.tensor(tokens[1:])]
    assert torch.isnan(torch.tensor(found.own[0]))
    torch.testing.assert_close(torch.tensor(found.own[1:]).double(), expected, atol=2e-5, rtol=0)
    best = logits[:-1].topk(3, dim=1)
    assert found.top_tokens[1:].tolist() == best.indices.tolist()
    torch.testing.assert_close(torch.tensor(found.top_logprobs[1:]).double(), best.values, atol=2e-5, rtol=0)
    assert found.top_logprobs[0].tolist() == [-99999.0] * 3 and found.top_tokens[0].tolist() == [0] * 3
    assert prompt_logprobs(base.model, tokens, 0).top_tokens is None


def test_a_prompt_of_one_token_has_no_logprob(base):
    assert prompt_logprobs(base.model, [5], 2).own.shape == (1,)


@pytest.mark.parametrize(
    ("stops", "expected"), [([], None), (["zz"], None), (["c"], 3), (["cd", "b"], 2), (["de"], 5), (["abcde"], 5)]
)
def test_a_stop_string_ends_with_the_token_that_completes_it(stops, expected):
    assert first_stop("abcdef", stops, lambda tokens: "".join(tokens)) == expected
