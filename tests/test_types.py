"""Trajectories of several branches, and groups of several seats: every sampled token is in exactly one branch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.types import Group, StopReason, Task, Trajectory, Turn


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
    rows = (APPENDS,) * 4
    alone = Group(Task(()), rows, (0.0,) * 4, ({},) * 4)
    assert (alone.rows_by_seat, alone.seat_names) == (((0, 1, 2, 3),), ("",) * 4)
    both = Group(Task(()), rows, (0.0,) * 4, ({},) * 4, ("b", "a", "b", "b"), (0, 0, 1, 2))
    assert both.rows_by_seat == ((0, 2, 3), (1,)) and both.seat_names == both.seats


@pytest.mark.parametrize("column", ["seats", "episodes"])
def test_a_column_that_names_not_every_row_is_refused(column):
    with pytest.raises(ValueError, match=f"a group of 2 rows needs as many {column}; got 1"):
        Group(Task(()), (APPENDS,) * 2, (0.0,) * 2, ({},) * 2, **{column: ("a",) if column == "seats" else (0,)})
