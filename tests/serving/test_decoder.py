"""One batch of several adapters, by the decoder itself: who samples when, from which weights."""

import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.errors import TrainingError
from posttrain.serving.base import Adapter, Decoder, Job, Weights, prompt_logprobs
from posttrain.types import Completion, Request, Sampling, StopReason
from tests.tiny import plain_logits

STOPS = frozenset({260})
LOGPROBS = 2e-5  # nats by which rounding of a product may differ with its number of rows


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
        "d": weights_of(base, Adapter(8, train_attn=False), 4),
    }


def decoder_of(base, kept, **options):
    """A decoder that says what it loads."""
    loads = []

    def load(name):
        loads.append(name)
        return kept[name]

    found = Decoder(base, load, **{"max_sequences": 8, "cache_gb": 0.1} | options)
    found.loads = loads
    return found


@pytest.fixture
def decoder(base, kept):
    return decoder_of(base, kept)


@pytest.fixture
def few(base, kept):
    """A decoder of two adapters at a time."""
    return decoder_of(base, kept, adapters=2)


def job(weights, results, *, tokens=(5, 6), new=4, samples=1, stop_ids=STOPS, seed=0, **settings):
    sampling = Sampling(new, stop=settings.get("stop_strings", ()))
    requests = [Request(tokens, sampling, seed + number) for number in range(samples)]
    given = settings.get("prompt_logprobs", False), settings.get("top", 0)
    return Job(weights, requests, stop_ids, *given, results.append, settings.get("key", ""))


def drained(decoder):
    steps = 0
    while decoder.busy:
        decoder.step()
        steps += 1
        assert steps < 500
    return steps


def alone(base, kept, weights, **settings):
    """What a client gets that has the server for itself."""
    results = []
    decoder = decoder_of(base, kept)
    decoder.add(job(weights, results, **settings))
    drained(decoder)
    return results[0]


def is_as_alone(found, base, kept, weights, **settings):
    expected = alone(base, kept, weights, **settings)
    for ours, theirs in zip(found[0], expected[0], strict=True):
        assert (ours.token_ids, ours.stop_reason) == (theirs.token_ids, theirs.stop_reason)
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=LOGPROBS)
    if found[1] is not None:
        torch.testing.assert_close(torch.tensor(found[1].own), torch.tensor(expected[1].own), equal_nan=True)


def test_requests_of_several_adapters_get_what_each_gets_alone(base, kept, decoder):
    results = {}
    asked = [(weights, seed) for seed in range(3) for weights in ("a", "b", "", "c", "d")]
    for weights, seed in asked:
        decoder.add(job(weights, results.setdefault((weights, seed), []), seed=seed, samples=2, prompt_logprobs=True))
    drained(decoder)
    for weights, seed in asked:
        (found,) = results[weights, seed]
        is_as_alone(found, base, kept, weights, seed=seed, samples=2, prompt_logprobs=True)
    assert len({tuple(results[weights, 0][0][0][0].logprobs) for weights in ("a", "b", "", "c", "d")}) == 5
    assert decoder.loads == ["a", "b", "c", "d"]


def test_they_get_what_the_network_gives_in_which_they_were_trained(base, kept, decoder):
    results = {name: [] for name in kept}
    for name, result in results.items():
        decoder.add(job(name, result, new=6, prompt_logprobs=True, tokens=(5, 6, 7, 8)))
    drained(decoder)
    for name, [(samples, prompt)] in results.items():
        model = base.adapted(kept[name].adapter)
        with torch.no_grad():
            for path, parameter in model.trainable():
                parameter.copy_(kept[name].tensors[path])
        whole = [5, 6, 7, 8, *samples[0].token_ids]
        own = torch.tensor(prompt_logprobs(model, whole, 0).own)
        torch.testing.assert_close(own[4:].float(), torch.tensor(samples[0].logprobs), atol=LOGPROBS, rtol=0)
        torch.testing.assert_close(own[1:4], torch.tensor(prompt.own[1:]), atol=LOGPROBS, rtol=0)


asked = st.tuples(
    st.sampled_from(["a", "b", "c", "d", ""]),
    st.fixed_dictionaries(
        {
            "tokens": st.sampled_from([(5, 6), (9, 10, 11, 12, 13), (7,)]),
            "new": st.integers(1, 9),
            "samples": st.integers(1, 3),
            "seed": st.integers(0, 2),
            "stop_ids": st.sampled_from([STOPS, frozenset(range(0, 261, 5)), frozenset()]),
            "prompt_logprobs": st.booleans(),
            "key": st.sampled_from("xyz"),
        }
    ),
    st.integers(0, 3),  # steps before the next request comes
)


@settings(deadline=None, max_examples=15)
@given(arrivals=st.lists(asked, max_size=7), adapters=st.integers(1, 4), slots=st.integers(1, 9))
def test_whoever_else_samples_and_whenever_they_come(base, kept, arrivals, adapters, slots):
    decoder = decoder_of(base, kept, max_sequences=slots, adapters=adapters)
    results = [[] for _ in arrivals]
    for (weights, options, steps), result in zip(arrivals, results, strict=True):
        decoder.add(job(weights, result, **options))
        for _ in range(steps):
            decoder.step()
    drained(decoder)
    for (weights, options, _), (found,) in zip(arrivals, results, strict=True):
        is_as_alone(found, base, kept, weights, **options)


class Results(list):
    """Adds its name to a list when something comes."""

    def __init__(self, name, order):
        self.name, self.order = name, order

    def append(self, found):
        self.order.append(self.name)
        super().append(found)


def test_all_share_a_batch_that_goes_on_while_there_are_requests(decoder):
    order, opened = [], []
    engine = decoder._scheduler._engine
    open_engine = engine.open
    engine.open = lambda *given, **more: opened.append(1) or open_engine(*given, **more)
    decoder.add(job("a", Results("a1", order), new=6))
    decoder.step()
    decoder.add(job("a", Results("a2", order), new=2))
    decoder.add(job("b", Results("b", order), new=1))
    decoder.add(job("", Results("base", order), new=3, stop_ids=frozenset()))
    assert drained(decoder) < 9
    assert order == ["b", "a2", "base", "a1"] and decoder.loads == ["a", "b"] and opened == [1]
    assert decoder._scheduler._decoding is None and not decoder._scheduler.sources


def test_stop_tokens_end_the_samples_alone_for_which_they_were_given(base, kept, decoder):
    results = []
    whole = alone(base, kept, "a", new=8)[0][0].token_ids
    decoder.add(job("a", results, new=8))
    decoder.add(job("a", results, new=8, stop_ids=frozenset({whole[2]})))
    drained(decoder)
    cut, found = whole.index(whole[2]) + 1, {len(each[0][0].token_ids): each[0][0] for each in results}
    assert found[8].token_ids == whole and found[8].stop_reason is StopReason.LENGTH
    assert found[cut] == Completion(whole[:cut], found[8].logprobs[:cut], StopReason.STOP)


def test_the_adapter_that_was_not_used_for_longest_makes_room(few):
    decoder, results = few, []
    for weights in ("a", "c", "a", "", "b", "a", "c"):
        decoder.add(job(weights, results))
        drained(decoder)
        assert len(decoder._adapters) <= 2
    assert decoder.loads == ["a", "c", "b", "c"] and len(results) == 7


def test_an_adapter_that_made_room_is_freed(base, kept):
    decoder, results = decoder_of(base, kept, adapters=1), []
    decoder.add(job("a", results))
    decoder.step()
    gone = weakref.ref(decoder._adapters["a"])
    drained(decoder)
    decoder.add(job("b", results))
    drained(decoder)
    gc.collect()
    assert gone() is None and len(results) == 2


def test_more_adapters_than_may_be_in_memory_wait_and_the_base_does_not(few):
    decoder, order = few, []
    decoder.add(job("a", Results("a", order), new=6))
    decoder.add(job("b", Results("b", order), new=3))
    decoder.add(job("", Results("base", order), new=2))
    decoder.add(job("c", Results("c", order), new=1))
    decoder.add(job("", Results("behind", order), new=2))
    for _ in range(3):
        decoder.step()
        assert decoder.loads == ["a", "b"]
    drained(decoder)
    assert order == ["base", "b", "c", "behind", "a"]
    decoder.add(job("a", Results("again", order)))  # which was in use when c came
    drained(decoder)
    assert decoder.loads == ["a", "b", "c"]


def test_weights_that_change_on_the_disk_do_not_change_a_batch(base, kept):
    results, changing = [], {"a": Weights(kept["a"].adapter, {n: w.clone() for n, w in kept["a"].tensors.items()})}
    decoder = decoder_of(base, changing)
    decoder.add(job("a", results, new=8))
    decoder.step()
    for weight in changing["a"].tensors.values():
        weight.zero_()
    drained(decoder)
    is_as_alone(results[0], base, kept, "a", new=8)


def test_what_fails_is_told_and_the_others_are_answered(base, kept):
    results = []
    infinite = {name: weight.clone().fill_(torch.inf) for name, weight in kept["a"].tensors.items()}
    decoder = decoder_of(base, kept | {"infinite": Weights(Adapter(4), infinite)})
    decoder.add(job("a", results, new=6))
    decoder.step()
    for weights, tokens in (("none", (5, 6)), ("infinite", (5, 6)), ("b", ()), ("b", (5,) * 64)):
        decoder.add(job(weights, results, tokens=tokens))
    drained(decoder)
    assert [isinstance(each, Exception) for each in results] == [True, True, True, True, False]
    is_as_alone(results[-1], base, kept, "a", new=6)


def test_a_fault_in_a_batch_of_one_adapter_is_told(decoder, monkeypatch):
    results = []
    decoder.add(job("a", results))
    decoder.add(job("a", results))
    decoder.step()
    monkeypatch.setattr(decoder._scheduler._decoding, "step", lambda: 1 / 0)
    decoder.step()
    assert [type(each) for each in results] == [ZeroDivisionError] * 2 and not decoder.busy
    decoder.add(job("b", results))
    drained(decoder)
    assert not isinstance(results[2], Exception)


def test_an_adapter_that_makes_a_step_fail_fails_alone(base, kept):
    """Its weights are finite, and its logits are not."""
    huge = {name: weight.clone().fill_(1e30) for name, weight in kept["b"].tensors.items()}
    decoder, order = decoder_of(base, kept | {"b": Weights(Adapter(4), huge)}), []
    names = ["a", "b", "", "c", "b", "a"]
    results = [Results(name, order) for name in names]
    for name, result in zip(names, results, strict=True):
        decoder.add(job(name, result, samples=2, new=5))
    later = Results("later", order)
    for _ in range(3):
        decoder.step()
    decoder.add(job("a", later, new=2))
    drained(decoder)
    for name, result in zip(names, results, strict=True):
        (found,) = result
        if name == "b":
            assert isinstance(found, TrainingError)
        else:
            is_as_alone(found, base, kept, name, samples=2, new=5)
    is_as_alone(later[0], base, kept, "a", new=2)
    assert not decoder.busy and decoder._scheduler._decoding is None


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


def test_sampling_ends_when_a_stop_string_occurs(base, kept):
    """Not at the request's longest length, of which the rest would be thrown away."""

    def answered(stops):
        results, decoder = [], decoder_of(base, kept)
        decoder.add(job("a", results, new=40, stop_ids=frozenset(), stop_strings=stops))
        return results, drained(decoder)

    whole, steps = answered(())
    text = str(base.tokenizer.decode(list(whole[0][0][0].token_ids)))
    found, fewer = answered((text[4:7],))
    cut = found[0][0][0]
    assert cut.stop_reason is StopReason.STOP and cut.token_ids == whole[0][0][0].token_ids[: len(cut.token_ids)]
    assert fewer == len(cut.token_ids) < steps == 40
