"""Conversations on the embedded engine: what was computed is not computed again, and nothing that is drawn changes."""

import asyncio
from functools import partial

import pytest
import torch

from posttrain.engine import transformers as module
from posttrain.engine.client import Client
from posttrain.engine.kv_cache import STEP, PrefixCache, bytes_per_token
from posttrain.engine.scheduler import Scheduler
from posttrain.engine.transformers import TransformersEngine
from posttrain.fast_paths import without
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


def sizes(engine, *waves):
    """All completions of requests, some of which come after a step; the bytes of the cache, and who runs, by step."""
    requests, done, held, running = [each for wave in waves for each in wave], {}, [], []
    with engine.open() as decoding:
        numbers = iter(range(len(requests)))
        for wave in waves:
            for request in wave:
                decoding.add(next(numbers), request)
            done |= decoding.step()
        while len(done) < len(requests):
            done |= decoding.step()
            cache = decoding._cache
            held.append(sum(kept.untyped_storage().nbytes() for kept in (*cache._keys, *cache._values)))
            running.append({each.number for each in decoding._running})
    return [done[number].token_ids for number in range(len(requests))], held, running


def of_tokens(*tokens, prompt=PROMPTS[2]):
    """Requests whose sequences become so long."""
    return [Request(prompt, Sampling(n - len(prompt)), seed=place) for place, n in enumerate(tokens)]


def with_memory(tokens):
    """An engine whose cache has memory for so many tokens."""
    model = tiny_llama(dtype=torch.float64, context=200)
    memory = tokens * bytes_per_token(model.network.config, model.dtype)
    return TransformersEngine(model, frozenset(), cache_gb=(memory + 1) / 2**30), memory


def test_longer_requests_that_join_wait_until_the_cache_has_memory_for_them():
    engine, memory = with_memory(6 * 2 * STEP)
    short, long = of_tokens(*range(40, 64, 4)), of_tokens(2 * STEP, 6 * STEP, 3 * STEP, prompt=PROMPTS[1])
    found, held, running = sizes(engine, short, [*long, *short])
    assert max(held) <= memory
    together = [len(numbers) for numbers in running if 7 in numbers]
    assert max(together) == 2 and max(map(len, running)) == 6
    assert found == [done.token_ids for done in engine.generate([*short, *long, *short])]


@pytest.mark.parametrize("joins", [False, True])
def test_slots_that_are_added_when_a_long_request_is_done_are_short(joins):
    engine, memory = with_memory(2 * 6 * STEP)
    long, short = of_tokens(5 * STEP, 6 * STEP), of_tokens(*[STEP, STEP - 5] * 10)
    waves = [*([short[:3]] if joins else []), [*long, *short]]
    found, held, _ = sizes(engine, *waves)
    assert max(held) <= memory
    assert found == [done.token_ids for done in engine.generate([each for wave in waves for each in wave])]


def test_requests_before_a_long_one_do_not_wait_for_it():
    engine, _ = with_memory(8 * STEP)
    short, long = of_tokens(*[STEP - n % 5 for n in range(40)]), of_tokens(6 * STEP)
    last = []
    for waves in ([short], [short, long]):
        _, _, running = sizes(engine, *waves)
        last.append(max(step for step, numbers in enumerate(running) if numbers & {*range(40)}) + len(waves))
    assert last[0] == last[1]


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
        scheduler = Scheduler(TransformersEngine(model, frozenset()))
        asks = Client(scheduler, schedule, turns=True)

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
        return scheduler.run(asks, every())

    assert run("continuous", 0.003) == run("lockstep", 0.0) == run("continuous", 0.0)
