"""From scored completions to pairs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.training.policy import example_of
from posttrain.training.preference import PAIRINGS, pairs_of
from posttrain.types import Trajectory
from tests.groups import with_rows
from tests.training.test_policy import REWARDS, SPOKEN, group, groups


def said(pairs):
    """The tokens of both sides."""
    return [(pair.chosen.continuation, pair.rejected.continuation) for pair in pairs]


def test_the_best_against_the_worst():
    first, second = ([words for _, words in members] for members in SPOKEN)
    # rewards 1, 0, 0.5 and 0, 2, 0, of whose two worst the first is taken
    assert said(pairs_of(groups(), "best-worst")) == [(first[0], first[1]), (second[1], second[0])]


def test_all_that_differ():
    first, second = ([words for _, words in members] for members in SPOKEN)
    assert set(said(pairs_of(groups(), "all"))) == {
        (first[0], first[1]),
        (first[0], first[2]),
        (first[2], first[1]),
        (second[1], second[0]),
        (second[1], second[2]),
    }


@pytest.mark.parametrize(("margin", "count"), [(0.0, 5), (0.5, 5), (0.6, 3), (1.5, 2), (2.1, 0)])
def test_those_that_differ_by_less_than_the_margin_are_left_out(margin, count):
    assert len(pairs_of(groups(), "all", margin=margin)) == count


def test_what_was_sampled_is_learned_as_it_was_sampled():
    (pair,) = pairs_of([group(SPOKEN[0], REWARDS[0])], "best-worst")
    first, second, *_ = group(SPOKEN[0], REWARDS[0]).rows
    assert pair == (example_of(first.trajectory), example_of(second.trajectory))
    assert pair.chosen.prefix == pair.rejected.prefix == SPOKEN[0][0][0]


@given(st.lists(st.integers(0, 3), min_size=3, max_size=3))
def test_the_chosen_one_always_earned_more(rewards):
    for pairing in PAIRINGS:
        made = pairs_of([group(SPOKEN[0], rewards)], pairing)
        earned = {words: reward for (_, words), reward in zip(SPOKEN[0], rewards, strict=True)}
        assert all(earned[chosen] > earned[rejected] for chosen, rejected in said(made))
        assert bool(made) == (len(set(rewards)) > 1)


def test_pairs_are_of_one_seat_and_one_prompt():
    """Rows 0 and 1 are one seat's, row 2 another's; then two rows of one seat that were asked otherwise."""
    whole = group(SPOKEN[0], (0.0, 1.0, 9.0))
    seats = with_rows(whole, seat=["first", "first", "second"], episode=[0, 1, 0])
    (pair,) = pairs_of([seats], "best-worst")
    words = [each for _, each in SPOKEN[0]]
    assert said([pair]) == [(words[1], words[0])]
    trajectories = [row.trajectory for row in whole.rows]
    turns = trajectories[2].turns
    other = Trajectory((replace(turns[0], context_ids=(*turns[0].context_ids, 7)), *turns[1:]))
    asked = with_rows(whole, trajectory=[*trajectories[:2], other])
    assert said(pairs_of([asked], "best-worst")) == [(words[1], words[0])]
