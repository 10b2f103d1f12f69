import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.errors import UserError
from posttrain.rewards import Repetition
from tests.rewards.episodes import value


def test_hand_counted_shares():
    assert value(Repetition(1), "a b a A") == -0.5  # 2 distinct of 4
    assert value(Repetition(2), "a b a c") == 0.0  # ab ba ac: 3 distinct of 3
    assert value(Repetition(2), "a b a b a") == -0.5  # ab ba ab ba: 2 distinct of 4
    assert value(Repetition(4), "a b c d a b c d") == pytest.approx(-0.2)  # abcd bcda cdab dabc abcd: 4 distinct of 5
    assert value(Repetition(4), "wait " * 23) == pytest.approx(-0.95)  # 1 distinct of 20
    assert value(Repetition(4), "a b c d e f g") == 0.0


def test_too_few_words_cannot_repeat():
    assert value(Repetition(4), "a a a") == 0.0
    assert value(Repetition(4), "") == 0.0


@given(st.lists(st.sampled_from("ab"), max_size=30), st.integers(1, 5))
def test_saying_everything_again_never_helps(words, n):
    text = " ".join(words)
    assert -1 < value(Repetition(n), f"{text} {text}") <= value(Repetition(n), text) <= 0


def test_n_of_zero_is_refused():
    with pytest.raises(UserError, match="n=0"):
        Repetition(0)
