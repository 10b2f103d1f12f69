"""Beginnings of prompts that are known: which is found, which goes, and that another text is never taken for it."""

from itertools import takewhile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.engine import kv_cache
from posttrain.engine.kv_cache import PrefixCache, Stored

BLOCK = 3


def stored(name):
    """Something to keep, which says its name."""
    return Stored({0: torch.tensor(name)}, {}, 0)


def name_of(found):
    return None if found is None else (found.keys[0].item(), found.length)


def cache(*texts, capacity=10**6, size=1):
    kept = PrefixCache(capacity, block=BLOCK)
    for number, text in enumerate(texts):
        kept.keep(tuple(text), stored(number), size)
    return kept


def test_the_longest_beginning_is_found_to_the_last_token():
    kept = cache(range(0, 4), range(10, 21), [10, 11, 12, 99])
    assert name_of(kept.longest((*range(10, 18), 50, 51))) == (1, 8)
    assert name_of(kept.longest((10, 11, 12, 99, 7))) == (2, 4)
    assert name_of(kept.longest((0, 1, 2, 3, 4, 5))) == (0, 4)


def test_less_than_a_block_is_not_looked_for():
    kept = cache(range(8))
    assert kept.longest((0, 1, 9, 3)) is None
    assert name_of(kept.longest((0, 1, 2, 9))) == (0, 3)
    assert kept.longest((1, 2, 3, 4, 5)) is None and kept.longest(()) is None


def test_the_last_token_of_a_prompt_is_always_computed():
    """Its hidden state is what the next token is drawn from."""
    kept = cache(range(12))
    assert name_of(kept.longest(tuple(range(12)))) == (0, 11)
    assert name_of(kept.longest(tuple(range(6)))) == (0, 5)
    assert kept.longest(tuple(range(3))) is None


def test_what_one_adapter_has_computed_is_nothing_to_another():
    kept = cache(range(12))
    kept.keep(tuple(range(9)), stored(1), 1, adapter=1)
    kept.keep(tuple(range(7)), stored(2), 1, adapter=1.0)  # another object with the same hash
    assert len(kept) == 3
    assert name_of(kept.longest((*range(12), 50))) == (0, 12)
    assert name_of(kept.longest((*range(12), 50), 1)) == (1, 9)
    assert name_of(kept.longest((*range(12), 50), 1.0)) == (2, 7)
    assert kept.longest((*range(12), 50), 2) is None
    kept.keep(tuple(range(15)), stored(3), 1, adapter=1)  # it begins with all three, and takes the place of its own
    assert len(kept) == 3
    assert [name_of(kept.longest((*range(15), 50), adapter)) for adapter in (None, 1, 1.0)] == [
        (0, 12),
        (3, 15),
        (2, 7),
    ]


def test_a_sequence_takes_the_place_of_one_that_it_begins_with():
    kept = cache(range(7), range(9), [0, 1, 2, 50, 51, 52], range(20))
    assert len(kept) == 2
    assert name_of(kept.longest((0, 1, 2, 50, 51, 52, 9))) == (2, 6)
    assert name_of(kept.longest((*range(8), 99))) == (3, 8)


def test_those_that_were_asked_for_longest_ago_go_first():
    texts = [[n] * 6 for n in range(4)]
    kept = cache(*texts, capacity=4)
    kept.longest((0,) * 5)
    kept.longest((2,) * 5)
    kept.keep((7,) * 6, stored(7), 2)
    assert [kept.longest((n,) * 5) is not None for n in (0, 1, 2, 3, 7)] == [True, False, True, False, True]


def test_the_capacity_is_never_passed_and_what_is_too_large_drops_nothing():
    kept = cache([1] * 6, [2] * 6, capacity=10, size=4)
    kept.keep((3,) * 6, stored(3), 11)
    assert len(kept) == 2 and kept.longest((3,) * 5) is None
    kept.keep((4,) * 6, stored(4), 10)
    assert len(kept) == 1 and name_of(kept.longest((4,) * 5)) == (4, 4)
    kept.keep((5,) * 6, stored(5), 5)
    kept.keep((6,) * 6, stored(6), 5)
    assert len(kept) == 2


def test_a_beginning_that_several_share_is_found_while_one_of_them_is_there():
    """As a system prompt is: what goes takes no more along than what it had alone."""
    system = (9,) * 6
    kept = cache((*system, 1, 1, 1), (*system, 2, 2, 2), capacity=2)
    kept.longest((*system, 1, 1, 1, 5))
    kept.keep((4,) * 6, stored(4), 1)  # the second one goes, which was kept last
    assert name_of(kept.longest((*system, 7))) == (0, 6)
    kept.keep((5,) * 6, stored(5), 1)
    assert kept.longest((4,) * 5) is None and name_of(kept.longest((*system, 7))) == (0, 6)


TEXTS = st.lists(st.lists(st.integers(0, 1), max_size=10).map(tuple), min_size=1, max_size=8)


def common(one, other):
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@given(TEXTS, st.lists(st.integers(0, 1), max_size=10).map(tuple), st.integers(1, 6))
def test_what_is_found_is_a_beginning_and_none_has_more_blocks(texts, prompt, capacity):
    kept = cache(*texts, capacity=capacity)
    there = [entry.token_ids for entry in kept._entries.values()]
    assert len(there) <= capacity and kept._size == len(there)
    best = max((common(text, prompt[:-1]) // BLOCK for text in there), default=0)
    found = kept.longest(prompt)
    if found is None:
        assert best == 0
    else:
        text = texts[found.keys[0].item()]
        assert found.length == common(text, prompt[:-1]) and found.length // BLOCK == best


@pytest.mark.parametrize("values", [1, 2])
def test_texts_whose_hashes_are_equal_are_told_apart(monkeypatch, values):
    monkeypatch.setattr(kv_cache, "hash", lambda of: sum(of[1]) % values, raising=False)
    texts = [(0, 0, 0, 0, 0, 0, 0), (1, 1, 0, 0, 1, 0), (0, 0, 0, 1, 1, 1, 1, 1, 1), (1, 0, 1, 1, 0, 1)]
    kept = cache(*texts, capacity=3)  # the first one is gone
    assert name_of(kept.longest((0, 0, 0, 1, 1, 0, 5))) == (2, 5)
    assert name_of(kept.longest((1, 1, 0, 0, 1, 0, 1))) == (1, 6)
    assert kept.longest((1, 1, 1, 1, 1, 1, 1)) is None
    for number in range(9):
        kept.keep((number, 5, 5, 5), stored(number), 1)
    assert len(kept) == 3 and kept.longest((0, 0, 0, 1, 1, 0, 5)) is None


def test_nothing_is_left_of_what_went():
    kept = cache(*([n % 3] * (n + 3) for n in range(30)), capacity=2)
    assert sum(map(len, kept._by_beginning.values())) == sum(len(e.token_ids) // BLOCK for e in kept._entries.values())
    assert all(kept._by_beginning.values())
