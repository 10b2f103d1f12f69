"""Conversations on the embedded engine: what was computed is not computed again, and nothing that is drawn changes."""

import asyncio
from functools import partial

import pytest
import torch

from posttrain.fast_paths import without
from posttrain.rollouts import transformers as module
from posttrain.rollouts.async_engine import AsyncEngine
from posttrain.rollouts.kv_cache import STEP, bytes_per_token
from posttrain.rollouts.prefix_cache import PrefixCache
from posttrain.rollouts.transformers import TransformersEngine
from posttrain.types import Request, Sampling
from tests.tiny import tiny_llama

BLOCK, TOKENS, SAID = 4, 6, 3  # of a beginning; sampled in a turn; shown before the next
PROMPTS = [tuple(range(5, 16)), (5, 6, 7, 8, 9, 30, 31, 32), (7, 8)]
GROUP = 3


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(module, "PrefixCache", partial(PrefixCache, block=BLOCK))


def answered(decoding, requests, first):
    done = {}
    for number, request in enumerate(requests, first):
        decoding.add(number, request)
    while len(done) < len(requests):
        done |= decoding.step()
    return [done[number] for number in range(first, first + len(requests))]


def conversations(model, *, turns, rounds=3, **options):
    """Groups of conversations: all completions, and how many tokens of prompts each round computed."""
    engine = TransformersEngine(model, frozenset(), **options)
    found, computed = [], []
    with engine.open(turns=turns) as decoding:
        asked = [Request(p, Sampling(TOKENS), seed=10 * n + g) for n, p in enumerate(PROMPTS) for g in range(GROUP)]
        for number in range(rounds):
            before = decoding.computed
            done = answered(decoding, asked, 100 * number)
            computed.append(decoding.computed - before)
            found += done
            asked = [
                Request((*r.token_ids, *c.token_ids, *range(20, 20 + SAID)), Sampling(TOKENS), r.seed + 1000)
                for r, c in zip(asked, done, strict=True)
            ]
        decoding.kept = 0 if decoding._prefixes is None else len(decoding._prefixes)
    return found, computed, decoding.kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("slots", [128, 2])
def test_turns_draw_the_same_with_and_without_what_is_known(dtype, slots):
    model = tiny_llama(dtype=dtype, context=200)
    ours, computed, _ = conversations(model, turns=True, max_sequences=slots)
    plain, every, _ = conversations(model, turns=False, max_sequences=slots)
    assert [c.token_ids for c in ours] == [c.token_ids for c in plain]
    for one, other in zip(ours, plain, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5 if dtype is torch.float32 else 1e-12)
    assert sum(computed) < sum(every) / 2


def test_of_a_later_turn_only_what_is_new_is_computed():
    _, computed, kept = conversations(tiny_llama(context=200), turns=True)
    episodes = len(PROMPTS) * GROUP
    assert computed[0] == sum(map(len, PROMPTS))  # once for each group
    assert computed[1:] == [episodes * (1 + SAID)] * 2  # the last token sampled never went through the model
    assert kept == episodes  # a later turn takes the place of the earlier one


def test_a_group_shares_what_is_known_of_its_prompt():
    model = tiny_llama(context=200)
    with TransformersEngine(model, frozenset()).open(turns=True) as decoding:
        answered(decoding, [Request(PROMPTS[0], Sampling(TOKENS))], 0)
        before = decoding.computed
        again = [Request((*PROMPTS[0], 33, 34), Sampling(TOKENS), seed=s) for s in range(4)]
        found = answered(decoding, again, 10)
        assert decoding.computed - before == 2
    assert [c.token_ids for c in found] == [c.token_ids for c in TransformersEngine(model, frozenset()).generate(again)]


@pytest.mark.parametrize("cache_gb", [1e-9, 2e-5])
def test_with_little_memory_the_same_is_drawn_and_less_is_known(cache_gb):
    model = tiny_llama(dtype=torch.float64, context=200)
    ours, computed, kept = conversations(model, turns=True, cache_gb=cache_gb)
    plain, every, _ = conversations(model, turns=False, cache_gb=cache_gb)
    assert [c.token_ids for c in ours] == [c.token_ids for c in plain]
    assert kept < len(PROMPTS) * GROUP and computed[1] > len(PROMPTS) * GROUP * (1 + SAID)
    assert (computed == every) == (cache_gb == 1e-9)


def test_prompts_above_the_size_of_a_prefill_are_computed_one_at_a_time(monkeypatch):
    model, passes, compute = tiny_llama(context=200), [], module.TransformersDecoding._compute
    whole, _, _ = conversations(model, turns=True)
    monkeypatch.setattr(module, "PREFILL_TOKENS", 1)
    monkeypatch.setattr(
        module.TransformersDecoding,
        "_compute",
        lambda self, prompts, plan, begun: (passes.append(len(prompts)), compute(self, prompts, plan, begun))[1],
    )
    found, _, _ = conversations(model, turns=True)
    assert [c.token_ids for c in found] == [c.token_ids for c in whole] and set(passes) == {1}


def test_without_its_fast_path_nothing_is_kept():
    with without("prefix cache"):
        _, _, kept = conversations(tiny_llama(context=200), turns=True)
    assert kept == 0


def test_what_is_known_is_forgotten_when_the_weights_may_change():
    model = tiny_llama(context=200)
    before, _, _ = conversations(model, turns=True)
    engine = TransformersEngine(model, frozenset())
    with engine.open(turns=True) as decoding:
        answered(decoding, [Request(PROMPTS[0], Sampling(TOKENS))], 0)
    with torch.no_grad():
        model.network.model.layers[0].mlp.down_proj.weight.add_(0.5)
    after, _, _ = conversations(model, turns=True)
    plain, _, _ = conversations(model, turns=False)
    assert [c.token_ids for c in after] == [c.token_ids for c in plain] != [c.token_ids for c in before]


@pytest.mark.parametrize("config", ["window", "cap", "sinks"])
def test_other_kinds_of_attention_draw_the_same_turns_too(config):
    model = {"window": windowed, "cap": capped, "sinks": with_sinks}[config]()
    ours, computed, _ = conversations(model, turns=True)
    plain, every, _ = conversations(model, turns=False)
    assert [c.token_ids for c in ours] == [c.token_ids for c in plain] and sum(computed) < sum(every) / 2
    for one, other in zip(ours, plain, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def wrapped(kind, config):
    from posttrain.models.language_model import wrap

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = kind(config)
    return wrap(network.float(), name="tiny", context=200)


COMMON = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 200,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def windowed():
    from transformers import MistralConfig, MistralForCausalLM

    return wrapped(MistralForCausalLM, MistralConfig(**COMMON, sliding_window=5))


def capped():
    from transformers import Gemma2Config, Gemma2ForCausalLM

    caps = {"attn_logit_softcapping": 1.0, "final_logit_softcapping": 5.0, "sliding_window": 5}
    return wrapped(Gemma2ForCausalLM, Gemma2Config(**COMMON, **caps, query_pre_attn_scalar=8))


def with_sinks():
    from transformers import GptOssConfig, GptOssForCausalLM

    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 5}
    return wrapped(GptOssForCausalLM, GptOssConfig(**COMMON, **experts))


def test_requests_that_come_while_others_are_under_way_find_room_and_change_nothing():
    model = tiny_llama(dtype=torch.float64, context=200)
    engine = TransformersEngine(model, frozenset())
    requests = [Request(PROMPTS[n % 3], Sampling(12), seed=n) for n in range(7)]
    with engine.open() as decoding:
        done, places = {}, []
        for number, request in enumerate(requests):
            decoding.add(number, request)
            done |= decoding.step()
            places.append(decoding._slots)
        while len(done) < len(requests):
            done |= decoding.step()
    assert places[0] == 1 and max(places) > 4
    assert [done[n].token_ids for n in range(7)] == [c.token_ids for c in engine.generate(requests)]


def test_longer_requests_that_join_wait_until_the_cache_has_memory_for_them():
    model = tiny_llama(dtype=torch.float64, context=200)
    token_bytes = bytes_per_token(model.network.config, model.dtype)
    memory = 6 * 40 * token_bytes  # six of 40 tokens, or one of 190
    engine = TransformersEngine(model, frozenset(), cache_gb=(memory + 1) / 2**30)
    short = [Request(PROMPTS[0], Sampling(40 - 4 * n - len(PROMPTS[0])), seed=n) for n in range(6)]
    long = [Request(PROMPTS[1], Sampling(n - len(PROMPTS[1])), seed=n) for n in (70, 190, 110)]
    requests, done, running, held = [*short, *long, *short], {}, [], []
    with engine.open() as decoding:
        for number, request in enumerate(short):
            decoding.add(number, request)
        done |= decoding.step()
        for number, request in enumerate([*long, *short], len(short)):
            decoding.add(number, request)
        while len(done) < len(requests):
            done |= decoding.step()
            running.append(sorted({each.number for each in decoding._running}))
            held.append(
                sum(kept.untyped_storage().nbytes() for kept in (*decoding._cache._keys, *decoding._cache._values))
            )
    assert max(held) <= memory * (1 + STEP / 40)  # it grows by so many tokens
    assert [7] in running and not any(7 in numbers and len(numbers) > 1 for numbers in running)
    assert max(map(len, running)) == 6
    assert [done[n].token_ids for n in range(len(requests))] == [c.token_ids for c in engine.generate(requests)]


def test_a_request_that_is_cancelled_leaves_its_slot_to_another():
    model = tiny_llama(dtype=torch.float64, context=200)
    engine = TransformersEngine(model, frozenset(), max_sequences=2)
    requests = [Request(PROMPTS[0], Sampling(9), seed=n) for n in range(4)]
    with engine.open() as decoding:
        for number, request in enumerate(requests):
            decoding.add(number, request)
        done = decoding.step() | decoding.step()
        decoding.cancel(0)  # under way
        decoding.cancel(2)  # waiting
        decoding.cancel(77)
        while len(done) < 2:
            done |= decoding.step()
        assert decoding.step() == {} and not decoding._running and not decoding._prompts and not decoding._wanted
    alone = engine.generate(requests)
    assert done.keys() == {1, 3} and all(done[n].token_ids == alone[n].token_ids for n in (1, 3))


def test_the_schedules_draw_the_same():
    model = tiny_llama(dtype=torch.float64, context=200)

    def run(schedule, pause):
        asks = AsyncEngine(TransformersEngine(model, frozenset()), schedule=schedule, turns=True)

        async def episode(number):
            said = PROMPTS[number % 3]
            for turn in range(3):
                await asyncio.sleep(pause * (number % 4))
                done = await asks.submit(Request(said, Sampling(TOKENS), 10 * turn + number), (number, 0, turn))
                said = (*said, *done.token_ids, 20, 21)
            asks.leave()
            return said

        async def every():
            return await asyncio.gather(*(episode(n) for n in range(6)))

        asks.enter(6)
        return asks.run(every())

    assert run("continuous", 0.003) == run("lockstep", 0.0) == run("continuous", 0.0)
