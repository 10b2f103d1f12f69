"""Keys and values that are continued, widened and kept, against attention that computes everything at once."""

import pytest
import torch

from posttrain.engine.kv_cache import Continued, KeyValueCache, Prefill, Stored
from posttrain.models.attention import FamilyAttention
from posttrain.models.scoring import Scoring
from tests.tiny import tiny_llama

H, K, E = 4, 2, 8
PARTS = [(5, 4), (1, 1), (7, 2), (3, 6)]  # tokens that are known, and tokens that follow


def row(length, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(1, heads, length, E, generator=g, dtype=torch.float64) for heads in (H, K, K)]


@pytest.mark.parametrize("window", [None, 1, 3, 6, 50])
@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize("sinks", [False, True])
def test_new_tokens_attend_as_if_all_were_computed_at_once(window, cap, sinks):
    a = torch.randn(H, generator=torch.Generator().manual_seed(9), dtype=torch.float64) if sinks else None
    scoring = Scoring(0.7, window, cap, a)
    wholes, begun, new = [], [], []
    for seed, (known, more) in enumerate(PARTS):
        q, k, v = row(known + more, seed)
        wholes.append(FamilyAttention([(known + more, [])]).attend(0, q, k, v, scoring)[:, :, known:])
        spare = torch.full((K, 2, E), torch.nan, dtype=torch.float64)  # what lies behind the known tokens is not read
        keys, values = (torch.cat([x[0, :, :known], spare], dim=1) for x in (k, v))
        begun.append((Stored({0: keys}, {0: values}, known), more))
        new.append([x[:, :, known:] for x in (q, k, v)])
    plan = Continued(begun)
    found = plan.attend(0, *(torch.cat(parts, dim=2) for parts in zip(*new, strict=True)), scoring)
    torch.testing.assert_close(found, torch.cat(wholes, dim=2), rtol=1e-12, atol=1e-12)
    assert plan.keys[0].shape == plan.values[0].shape == (K, sum(map(sum, PARTS)), E)
    start = 0
    for seed, (known, more) in enumerate(PARTS):
        _, k, v = row(known + more, seed)
        part = slice(start, start := start + known + more)
        assert torch.equal(plan.keys[0][:, part], k[0]) and torch.equal(plan.values[0][:, part], v[0])


def filled(slots, lengths):
    """A cache whose slot n holds a prompt of so many tokens, and those prompts by layer."""
    config = tiny_llama().network.config
    cache = KeyValueCache(config, slots, torch.float32, torch.device("cpu"))
    plan = Prefill(lengths)
    heads, width = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
    g = torch.Generator().manual_seed(1)
    for layer in range(config.num_hidden_layers):
        plan.keys[layer] = torch.randn(heads, sum(lengths), width, generator=g)
        plan.values[layer] = torch.randn(heads, sum(lengths), width, generator=g)
    for slot, length in enumerate(lengths):
        cache.load_prompt(slot, plan, sum(lengths[:slot]), length)
    return cache, plan


def test_what_is_stored_of_a_slot_is_a_copy_of_its_first_tokens():
    cache, plan = filled(3, [4, 6, 2])
    found = cache.stored(1, 5)
    assert found.length == 5 and found.keys.keys() == found.values.keys() == {0, 1}
    for layer in (0, 1):
        assert torch.equal(found.keys[layer], plan.keys[layer][:, 4:9])
        assert torch.equal(found.values[layer], plan.values[layer][:, 4:9])
    cache.load_prompt(1, plan, 0, 6)
    assert torch.equal(found.keys[0], plan.keys[0][:, 4:9])


def test_a_cache_that_is_widened_keeps_what_it_holds_and_has_empty_slots_more():
    cache, plan = filled(2, [4, 6])
    cache.hold(5, 6)
    for kept, prefilled in ((cache._keys, plan.keys), (cache._values, plan.values)):
        for layer, of_layer in enumerate(kept):
            assert len(of_layer) == 5 and not of_layer[2:].any()
            assert torch.equal(of_layer[0, :, :4], prefilled[layer][:, :4])
            assert torch.equal(of_layer[1, :, :6], prefilled[layer][:, 4:])


def test_a_cache_that_is_narrowed_keeps_its_first_slots_and_frees_the_others_when_it_grows():
    cache, plan = filled(3, [4, 6, 2])
    cache.hold(2, 6)
    cache.set_positions([4, 100])
    for kept, prefilled in ((cache._keys, plan.keys), (cache._values, plan.values)):
        for layer, of_layer in enumerate(kept):
            assert of_layer.untyped_storage().nbytes() == 2 * of_layer[0].nbytes
            assert torch.equal(of_layer[0, :, :4], prefilled[layer][:, :4])
            assert torch.equal(of_layer[1, :, :6], prefilled[layer][:, 4:10])
