import contextlib
import math
import weakref
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from posttrain.data.packing import Example, pack
from posttrain.engine import kv_cache
from posttrain.engine import transformers as module
from posttrain.engine.engine import Subject, check_engine, finish_all
from posttrain.engine.kv_cache import KeyValueCache
from posttrain.engine.transformers import TransformersEngine
from posttrain.models.fused import packing_supported
from posttrain.types import Request, Sampling, StopReason
from tests.tiny import CONTEXT, STOP, plain_logits, tiny_llama

HOT = Sampling(16, temperature=3.0)  # says 16 tokens, the first six of which differ
PROMPTS = [(5, 9, 3), (7,), (4, 8, 15, 16, 23)]


def under(settings, logits, token):
    """The token's logprob under sampling settings, one float at a time."""
    if settings.temperature == 0:
        settings = Sampling(1)
    weights = {i: math.exp(z / settings.temperature) for i, z in enumerate(logits)}
    kept = sorted(weights, key=lambda i: -weights[i])[: settings.top_k or None]
    total, reached, nucleus = sum(weights[i] for i in kept), 0.0, []
    for i in kept:
        if reached < settings.top_p * total:
            nucleus.append(i)
        reached += weights[i]
    return math.log(weights[token] / sum(weights[i] for i in nucleus)) if token in nucleus else -math.inf


def own_logprobs(model):
    """Of each token, by the slow reference, under the request's settings."""

    def score(request, token_ids):
        logits = plain_logits(model, [*request.token_ids, *token_ids])[len(request.token_ids) - 1 : -1]
        return [under(request.sampling, row.tolist(), token) for row, token in zip(logits, token_ids, strict=True)]

    return score


def decode(ids):
    """Two digits for each token, so that a stop string can begin and end within tokens."""
    return "".join(f"{token:02d}" for token in ids if token not in STOP)


def subject(model, **options):
    engine = TransformersEngine(model, STOP, decode=decode, **options)
    return Subject(engine, own_logprobs(model), STOP, CONTEXT, PROMPTS)


def test_nothing_is_sampled_after_a_stop_string():
    engine, counts = TransformersEngine(tiny_llama(), STOP, decode=decode), []
    (whole,) = engine.generate([Request(PROMPTS[0], HOT, 1)])
    stop = decode(whole.token_ids[1:4])[1:-1]  # from within the second token to within the fourth
    (found,) = engine.generate([Request(PROMPTS[0], replace(HOT, stop=(stop,)), 1)], counts.append)
    assert len(whole.token_ids) > 4 == len(found.token_ids) == sum(counts) and found.stop_reason is StopReason.STOP
    assert (found.token_ids, found.logprobs) == (whole.token_ids[:4], whole.logprobs[:4])
    (other,) = engine.generate([Request(PROMPTS[0], replace(HOT, stop=("never",)), 1)])
    assert other == whole


def test_given_tokens_are_scored_while_others_are_sampled():
    model = tiny_llama()
    engine, asked = TransformersEngine(model, STOP), Request(PROMPTS[2], Sampling(6), 1)
    (alone,) = engine.generate([asked])
    with engine.open() as decoding:
        decoding.add(0, asked)
        done = decoding.step()
        decoding.add(1, Request((*PROMPTS[0], 8, 4), Sampling(1), scored_from=3))
        decoding.add(2, Request((*PROMPTS[0], 8, 5), Sampling(1), scored_from=3))
        decoding.cancel(2)
        while len(done) < 2:
            done |= decoding.step()
    assert done[0] == alone and done[1].token_ids == ()
    own = own_logprobs(model)(Request(PROMPTS[0], Sampling(2)), (8, 4))
    assert done[1].scored == pytest.approx(own, abs=1e-4)


@pytest.mark.parametrize("slots", [1, 2, 5, 128])
def test_conforms_whatever_is_decoded_together(slots):
    assert check_engine(replace(subject(tiny_llama(), max_sequences=slots), decode=decode)) == []


def test_conforms_with_little_memory():
    assert check_engine(subject(tiny_llama(), cache_gb=1e-9)) == []


@pytest.mark.parametrize("fails", [False, True])
def test_keys_and_values_are_freed_before_the_heap_is_settled(monkeypatch, fails):
    """Whoever opened the engine holds the decoding still."""
    caches, alive = [], []

    def made(*args):
        cache = KeyValueCache(*args)
        caches.append(weakref.ref(cache))
        return cache

    monkeypatch.setattr(module, "KeyValueCache", made)
    monkeypatch.setattr(module.HEAP, "release", lambda: None)
    monkeypatch.setattr(type(module.HEAP), "settle", lambda heap: alive.append([ref() is not None for ref in caches]))
    with contextlib.suppress(KeyError), TransformersEngine(tiny_llama(), STOP).open(turns=True) as decoding:
        finish_all(decoding, [Request(PROMPTS[0], Sampling(4), seed) for seed in range(3)])
        if fails:
            raise KeyError
    assert alive == ([] if fails else [[False]]) and len(caches) == 1 and caches[0]() is None
    assert decoding is not None


def test_a_prompt_is_computed_once_for_all_its_completions(monkeypatch):
    lengths = []

    class Counted(module.Prefill):
        def __init__(self, parts, device="cpu"):
            lengths.append(list(parts))
            super().__init__(parts, device)

    monkeypatch.setattr(module, "Prefill", Counted)
    engine = TransformersEngine(tiny_llama(), STOP, max_sequences=3)
    interleaved = [Request(p, Sampling(6), seed=i) for i in range(4) for p in PROMPTS]
    engine.generate(interleaved)
    assert sorted(n for parts in lengths for n in parts) == [1, 3, 5]


def test_what_is_sampled_does_not_depend_on_who_shares_a_prompt():
    model = tiny_llama(dtype=torch.float64)
    requests = [Request(p, Sampling(n), seed=n) for p in PROMPTS for n in (2, 9, 3, 5)]
    together = TransformersEngine(model, STOP).generate(requests)
    alone = [TransformersEngine(model, STOP).generate([request])[0] for request in requests]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-6)


def test_in_bfloat16_the_sampler_rounds_as_the_trainer_does():
    """The two take their products over the same keys at once: split in two, a product would be rounded twice."""
    model = tiny_llama(dtype=torch.bfloat16)
    requests = [Request(p, Sampling(9), seed=n) for n in range(6) for p in PROMPTS]
    found = TransformersEngine(model, frozenset()).generate(requests)
    worst = 0.0
    for request, completion in zip(requests, found, strict=True):
        learned = (True,) * len(completion.token_ids)
        (row,) = pack([Example(request.token_ids, completion.token_ids, learned)], 100)
        with torch.no_grad():
            ours = model.logprobs(row).logprobs
        worst = max(worst, (ours - torch.tensor(completion.logprobs)).abs().max().item())
    assert worst < 1e-5


def test_a_finished_sequence_costs_nothing_more_and_its_place_is_taken(monkeypatch):
    model = tiny_llama()
    batch_sizes = []
    hidden = type(model).hidden

    def watched(self, token_ids, positions, plan):
        if isinstance(plan, KeyValueCache):
            batch_sizes.append(len(token_ids))
        return hidden(self, token_ids, positions, plan)

    monkeypatch.setattr(type(model), "hidden", watched)
    lengths = [2, 9, 3, 5, 2, 7]
    requests = [Request(PROMPTS[0], Sampling(n), seed=n) for n in lengths]
    found = TransformersEngine(model, frozenset(), max_sequences=2).generate(requests)
    assert [len(c.token_ids) for c in found] == lengths
    assert sum(batch_sizes) == sum(lengths) - len(lengths)  # the first token of each comes from its prefill
    assert max(batch_sizes) == 2


def test_what_lies_past_a_sequence_in_the_cache_cannot_poison_it(monkeypatch):
    model = tiny_llama()
    requests = [Request(p, Sampling(6), seed=i) for i, p in enumerate(PROMPTS)]
    clean = TransformersEngine(model, STOP).generate(requests)
    resize = KeyValueCache._resize

    def poisoned(self, longest):
        before = self._room
        resize(self, longest)
        for kept in (*self._keys, *self._values):
            kept[:, :, before:] += 1e4

    monkeypatch.setattr(KeyValueCache, "_resize", poisoned)
    assert TransformersEngine(model, STOP).generate(requests) == clean


def test_unwritten_cache_is_finite(monkeypatch):
    """0 weight times an uninitialised nan would be nan."""
    empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *a, **k: empty(*a, **k).fill_(float("nan")))
    cache = KeyValueCache(tiny_llama().network.config, 2, torch.float32, torch.device("cpu"))
    cache.set_positions([3])
    kept = [*cache._keys, *cache._values]
    assert all(layer.shape[2] >= 4 and torch.isfinite(layer).all() for layer in kept)


@pytest.mark.parametrize("step", [1, 3])
def test_a_cache_that_grows_and_shrinks_at_every_other_token_conforms(monkeypatch, step):
    monkeypatch.setattr(kv_cache, "STEP", step)
    rooms = []
    resize = KeyValueCache._resize

    def watched(self, longest):
        resize(self, longest)
        rooms.append(self._room)

    monkeypatch.setattr(KeyValueCache, "_resize", watched)
    assert check_engine(subject(tiny_llama(), max_sequences=2)) == []
    assert any(b > a for a, b in pairwise(rooms)) and any(b < a for a, b in pairwise(rooms))
    assert all(room % step == 0 for room in rooms)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_update_changes_what_is_sampled_next(dtype):
    model = tiny_llama(dtype=dtype)
    engine = TransformersEngine(model, STOP)
    requests = [Request(PROMPTS[0], Sampling(module.PACK_FROM + 1), seed=i) for i in range(8)]
    before = engine.generate(requests)
    with torch.no_grad():
        model.network.model.layers[0].mlp.down_proj.weight.add_(0.5)
    assert engine.generate(requests) != before


def test_weights_are_packed_for_rollouts_that_are_long_enough_and_change_nothing(monkeypatch):
    """As two engines, one of which never packs, on the same weights."""
    model, packed = tiny_llama(dtype=torch.bfloat16), []
    engine = TransformersEngine(model, frozenset())
    original = module.packed_weights

    @contextlib.contextmanager
    def watched(network):
        with original(network) as count:
            packed.append(count)
            yield count

    monkeypatch.setattr(module, "packed_weights", watched)
    long = [Request(p, Sampling(module.PACK_FROM + 1), seed=n) for n, p in enumerate(PROMPTS)]
    short = [Request(p, Sampling(module.PACK_FROM), seed=n) for n, p in enumerate(PROMPTS)]
    found, first = engine.generate(long), engine.generate(short)
    layers = [m for m in model.network.modules() if isinstance(m, torch.nn.Linear)]
    assert packed == [len(layers) if packing_supported() else 0]
    monkeypatch.setattr(module, "PACK_FROM", 10**6)
    assert engine.generate(long) == found
    assert [c.token_ids for c in first] == [c.token_ids[:-1] for c in found]


def test_each_request_has_its_own_limit_and_settings():
    requests = [Request(PROMPTS[0], Sampling(3)), Request(PROMPTS[0], Sampling(5, temperature=0.0))]
    found = TransformersEngine(tiny_llama(), frozenset()).generate(requests)
    assert [len(c.token_ids) for c in found] == [3, 5]
    assert all(c.stop_reason is StopReason.LENGTH for c in found)


def test_every_token_has_a_uniform_number_of_its_own(monkeypatch):
    asked = []
    uniforms = module.uniforms

    def watched(seeds, positions):
        asked.extend(zip(seeds, positions, strict=True))
        return uniforms(seeds, positions)

    monkeypatch.setattr(module, "uniforms", watched)
    TransformersEngine(tiny_llama(), frozenset()).generate([Request(PROMPTS[0], Sampling(4), seed=s) for s in (7, 8)])
    assert sorted(asked) == [(seed, position) for seed in (7, 8) for position in range(4)]


def test_requests_of_different_settings_in_one_call_are_sampled_as_if_alone():
    model = tiny_llama()
    settings = [Sampling(8), Sampling(8, temperature=0.3), Sampling(8, top_k=2), Sampling(8, top_p=0.4)]
    requests = [Request(PROMPTS[0], s, seed=3) for s in settings]
    together = TransformersEngine(model, frozenset()).generate(requests)
    for request, completion in zip(requests, together, strict=True):
        (alone,) = TransformersEngine(model, frozenset()).generate([request])
        assert completion.token_ids == alone.token_ids
        assert completion.logprobs == pytest.approx(alone.logprobs, abs=1e-5)
    assert len({c.token_ids for c in together}) > 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_renewed_weights_are_used_from_the_next_token_on_and_old_ones_by_nothing_that_begins_then(dtype):
    """A sequence goes on from its keys and values; what begins, even as one in the cache, has new ones."""
    old, new = tiny_llama(dtype=dtype), tiny_llama(seed=3, dtype=dtype)
    model = tiny_llama(dtype=dtype)
    engine = TransformersEngine(model, frozenset())
    first, later = Request(PROMPTS[0], Sampling(14), 1), Request(PROMPTS[2], Sampling(12), 2)
    with engine.open(turns=True) as decoding:
        decoding.add(0, first)
        for _ in range(4):
            decoding.step()
        assert [*map(len, decoding.sampled().values())] == [4]
        model.network.load_state_dict(new.network.state_dict())
        decoding.renew()
        done = {}
        while 0 not in done:
            done |= decoding.step()
        again = Request((*PROMPTS[0], *done[0].token_ids), Sampling(4), 5)
        decoding.add(1, later)
        decoding.add(3, again)
        while not {1, 3} <= done.keys():
            done |= decoding.step()
        model.network.load_state_dict(old.network.state_dict())
        decoding.renew()
        decoding.add(2, again)
        while 2 not in done:
            done |= decoding.step()
    assert done[0].token_ids[:4] == TransformersEngine(old, frozenset()).generate([first])[0].token_ids[:4]
    assert done[0].token_ids[4:] != TransformersEngine(old, frozenset()).generate([first])[0].token_ids[4:]
    assert done[1].token_ids == TransformersEngine(new, frozenset()).generate([later])[0].token_ids
    assert done[3].token_ids == TransformersEngine(new, frozenset()).generate([again])[0].token_ids
    assert done[2] == TransformersEngine(old, frozenset()).generate([again])[0]


def test_a_request_that_waits_for_a_slot_begins_with_the_new_weights_whatever_was_computed_of_its_prompt():
    old, new, model = tiny_llama(), tiny_llama(seed=3), tiny_llama()
    requests = [Request(PROMPTS[0], Sampling(8), seed=n) for n in range(3)]
    with TransformersEngine(model, frozenset(), max_sequences=2).open() as decoding:
        for number, request in enumerate(requests):
            decoding.add(number, request)
        done = decoding.step()  # the prompt of all three is in memory
        model.network.load_state_dict(new.network.state_dict())
        decoding.renew()
        while len(done) < 3:
            done |= decoding.step()
    alone = [TransformersEngine(each, frozenset()).generate(requests)[2].token_ids for each in (old, new)]
    assert done[2].token_ids == alone[1] != alone[0]


def test_with_short_steps_those_that_run_get_a_token_between_many_long_prompts():
    engine = TransformersEngine(tiny_llama(context=1100), frozenset())
    requests = [Request(tuple((3 * n + i) % 20 for i in range(700)), Sampling(12), n) for n in range(6)]
    alone = engine.generate(requests)
    engine.short_steps = True
    with engine.open() as decoding:
        decoding.add(0, requests[0])
        decoding.step()
        for number in range(1, 6):
            decoding.add(number, requests[number])
        lengths = []
        for _ in range(10):
            decoding.step()
            lengths.append(len(decoding.sampled()[0]))
        done = {}
        while len(done) < 6:
            done |= decoding.step()
    assert lengths == [1, 2, 2, 3, 3, 4, 4, 5, 5, 6]  # a prompt, a token, a prompt, a token
    assert all(done[number].token_ids == alone[number].token_ids for number in range(6))
