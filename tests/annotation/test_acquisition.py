"""What to ask next: what a pair is worth, in numbers made by hand, and that the right ones are chosen."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.annotation.acquisition import WORTH, choose, disagreement, information, worth

MARGINS = st.lists(st.floats(-30, 30), min_size=2, max_size=6)


THREE_TO_ONE = math.log(3)  # the margin of a member that gives 3/4


def test_disagreement_is_the_variance_of_the_chances():
    assert disagreement([THREE_TO_ONE, -THREE_TO_ONE]) == pytest.approx(1 / 16)  # 3/4 and 1/4
    assert disagreement([THREE_TO_ONE, 0.0, -THREE_TO_ONE]) == pytest.approx(1 / 24)  # (1/16 + 0 + 1/16) / 3
    assert disagreement([1000.0, -1000.0]) == 0.25


def test_information_is_what_the_answer_tells_of_the_members():
    assert information([1000.0, -1000.0]) == pytest.approx(
        math.log(2)
    )  # sure and opposed: the answer says who is right
    # members of 3/4 and 1/4: ln 2 less the entropy of 3/4, 0.5623351
    assert information([THREE_TO_ONE, -THREE_TO_ONE]) == pytest.approx(0.6931472 - 0.5623351, abs=1e-7)
    # of 1/2 and 3/4: the entropy of 5/8, 0.6615632, less the mean of 0.6931472 and 0.5623351
    assert information([0.0, THREE_TO_ONE]) == pytest.approx(0.6615632 - 0.6277412, abs=1e-6)


def test_a_pair_on_which_all_are_unsure_tells_nothing_however_even_it_is():
    assert information([0.0, 0.0, 0.0]) == 0.0 and disagreement([0.0, 0.0]) == 0.0


def test_members_who_differ_only_in_how_sure_they_are_tell_little():
    sure, opposed = [3.0, 9.0], [-3.0, 3.0]
    for of in WORTH.values():
        assert of(sure) < of(opposed) / 10


@given(MARGINS)
def test_it_does_not_matter_which_answer_is_called_the_first(margins):
    for of in WORTH.values():
        assert of(margins) == pytest.approx(of([-m for m in margins]), abs=1e-9)
        assert of(margins) >= -1e-12


@given(MARGINS)
def test_no_answer_tells_more_than_one_bit(margins):
    assert information(margins) <= math.log(2) + 1e-12


def test_the_answers_to_a_prompt_are_worth_the_mean_of_their_pairs():
    first, second, third = (THREE_TO_ONE, 0.0), (0.0, 0.0), (0.0, THREE_TO_ONE)
    # chances of (3/4, 1/2), (3/4, 1/4) and (1/2, 1/4): variances of 1/64, 4/64, 1/64
    assert worth([first, second, third], "disagreement") == pytest.approx(1 / 32)
    scores = [first]
    assert worth(scores[:1], "disagreement") == 0.0


ITEMS = [[(0.0, 0.0), (s, -s)] for s in (0.5, 3.0, 0.0, 2.0)]


@pytest.mark.parametrize("by", WORTH)
def test_those_worth_most_come_first(by):
    worths = [worth(scores, by) for scores in ITEMS]
    assert choose(worths, 3) == [1, 3, 0]
    assert choose(worths, 9, seed=5) == [1, 3, 0, 2]


def test_what_is_worth_the_same_comes_in_an_order_of_chance():
    assert choose([0.5] * 4, 4, seed=1) == choose([0.0] * 4, 4, seed=1)
    assert len({tuple(choose([0.0] * 4, 4, seed=seed)) for seed in range(40)}) > 10
    assert {tuple(sorted(choose([2.0, 1.0, 2.0, 1.0], 3, seed=seed))) for seed in range(40)} == {(0, 1, 2), (0, 2, 3)}
