"""What holds for every rule."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.rewards import REWARDS
from posttrain.testing import check_reward
from tests.rewards.episodes import episode, unguarded

RULES = ("tags", "language", "length", "length_target", "repetition", "steps", "verification")
TEXT = st.lists(
    st.sampled_from(["<think>", "</think>", "wait ", "12+7=19, ", "Да. ", "\n", "1. ", "the ", "答え"]), max_size=30
)


@pytest.mark.parametrize("name", RULES)
def test_conforms(name):
    texts = [
        "",
        "<think>12+7=19, wait, check: 19-7=12</think>19",
        "a " * 600,
        "да нет",
        "1.\n2.\n;;..,",
        "<think></think>",
    ]
    check_reward(REWARDS[name](), [episode(t, id=str(i)) for i, t in enumerate(texts)])


@pytest.mark.parametrize("name", RULES)
def test_a_hostile_completion_takes_no_time(name):
    start = time.monotonic()
    for text in ("<think>", "a", " ", "\n", "wait ", "1. ", ". ", "</think>", "- ", "step 1 "):
        unguarded(REWARDS[name](), [episode(text * 20_000)])
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("name", RULES)
@given(words=TEXT)
def test_the_value_is_always_within_the_stated_bounds(name, words):
    rule = REWARDS[name]()
    (score,) = unguarded(rule, [episode("".join(words))])
    low, high = rule.bounds
    assert low <= score.value <= high and not score.unparsed
