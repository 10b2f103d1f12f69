"""Trajectories of several branches, and groups of several seats: every sampled token is in exactly one branch."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.types import StopReason, Trajectory, Turn
from tests.groups import group_of


def turn(context, said, *, restarts=False, text=""):
    logprobs = tuple(-0.1 * token for token in said)
    return Turn(tuple(context), tuple(said), logprobs, StopReason.STOP, text, restarts)


APPENDS = Trajectory((turn([1, 2], [3, 4]), turn([5], [6])))
RESTARTS = Trajectory((*APPENDS.turns, turn([1, 2, 7], [8], restarts=True, text="end"), turn([9], [10], text="last")))


def test_tokens_that_only_append_are_one_branch():
    assert APPENDS.branches == (APPENDS,)
    assert APPENDS.token_ids == (1, 2, 3, 4, 5, 6)
    assert APPENDS.sampled == (False, False, True, True, False, True)


def test_a_turn_that_restarts_begins_a_branch():
    first, second = RESTARTS.branches
    assert first == APPENDS and second.token_ids == (1, 2, 7, 8, 9, 10)
    assert second.sampled == (False, False, False, True, False, True)
    assert second.branches == (second,)
    assert Trajectory((turn([1], [2], restarts=True), turn([3], [4]))).token_ids == (1, 2, 3, 4)
    assert Trajectory(()).branches == ()


def test_logprobs_and_words_are_those_of_all_branches():
    assert RESTARTS.logprobs == pytest.approx([-0.3, -0.4, -0.6, -0.8, -1.0])
    assert (RESTARTS.text, RESTARTS.stop_reason) == ("last", StopReason.STOP)


def test_several_branches_are_no_one_sequence():
    for read in (lambda: RESTARTS.token_ids, lambda: RESTARTS.sampled):
        with pytest.raises(ValueError, match="a trajectory of 2 branches is not one sequence"):
            read()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=6))
def test_every_sampled_token_is_in_one_branch_and_in_order(shapes):
    names = iter(range(1000))
    whole = Trajectory(
        tuple(
            turn([next(names) for _ in range(shown)], [next(names) for _ in range(said)], restarts=again)
            for shown, said, again in shapes
        )
    )
    found = [token for part in whole.branches for token, mine in zip(part.token_ids, part.sampled, strict=True) if mine]
    assert found == [token for each in whole.turns for token in each.token_ids]
    assert tuple(each for part in whole.branches for each in part.turns) == whole.turns


def test_rows_of_a_group_are_compared_by_seat():
    alone = group_of([APPENDS] * 4, [0.0] * 4)
    assert alone.by_seat == {"": [*alone.rows]}
    both = group_of([APPENDS] * 4, [0.0] * 4, seats=["b", "a", "b", "b"], episodes=[0, 0, 1, 2])
    first, second, third, fourth = both.rows
    assert list(both.by_seat.items()) == [("b", [first, third, fourth]), ("a", [second])]


def test_a_group_is_lost_with_one_of_its_rows():
    assert not group_of([APPENDS] * 2, [0.0, 1.0]).lost
    assert group_of([APPENDS] * 2, [0.0, math.nan]).lost
