import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.errors import UserError
from posttrain.rewards import LengthTarget, SoftOverlong
from tests.rewards.episodes import value


@pytest.mark.parametrize(
    "words, expected", [(0, 0), (6, 0), (7, -0.25), (8, -0.5), (9, -0.75), (10, -1), (11, -1), (99, -1)]
)
def test_soft_overlong_is_the_papers_equation_with_limit_10_and_buffer_4(words, expected):
    assert value(SoftOverlong(limit=10, buffer=4), "word " * words) == expected


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 150))
def test_soft_overlong_against_the_three_cases_of_equation_13(limit, buffer, length):
    if buffer > limit:
        limit, buffer = buffer, limit
    if length <= limit - buffer:
        expected = 0.0
    elif length <= limit:
        expected = ((limit - buffer) - length) / buffer
    else:
        expected = -1.0
    assert value(SoftOverlong(limit, buffer, count=len), "x" * length) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("words, expected", [(10, 0), (5, -0.5), (15, -0.5), (8, -0.2), (0, -1), (20, -1), (50, -1)])
def test_length_target_falls_on_both_sides(words, expected):
    assert value(LengthTarget(10), "word " * words) == expected


def test_length_is_counted_by_what_the_caller_counts():
    assert value(LengthTarget(4, count=len), "abcd") == 0.0
    assert value(LengthTarget(4), "abcd") == -0.75


@pytest.mark.parametrize("limit, buffer", [(10, 0), (10, -1), (10, 11), (0, 0)])
def test_a_ramp_that_is_none_is_refused(limit, buffer):
    with pytest.raises(UserError, match=f"buffer={buffer}, limit={limit}"):
        SoftOverlong(limit, buffer)


def test_a_target_that_is_none_is_refused():
    with pytest.raises(UserError, match="above 0; got 0"):
        LengthTarget(0)
