"""Ties by hand and in another reading: what a margin tells of them, and up to which one to say so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.evaluation.pairs import ScoredPair, best_epsilon, ties_of


def scored(*margins, first=0):
    return [ScoredPair((margin,), (0.0,), prompt=number) for number, margin in enumerate(margins, first)]


def test_by_hand():
    pairs, ties = scored(3.0, 2.0, -1.0, 0.5), scored(0.2, -0.4, 1.5, 0.0, first=4)
    found = ties_of(pairs, ties)
    # sizes 3 2 1 .5 beside .2 .4 1.5 0: smaller in 4 + 4 + 2 + 4 of 16
    assert found.told == pytest.approx(14 / 16)
    # eps 0: 3 + 1 right; .2: 3 + 2; .4: 3 + 3; 1.5: 2 + 4. The smallest of the best is .4
    assert found.epsilon == best_epsilon(pairs, ties) == 0.4
    assert found.never == pytest.approx((3 + 1) / 8)
    # halves by prompt: pairs 3 -1 | 2 .5, ties .2 1.5 | -.4 0. Of the first eps is 1.5 (1 + 2), of the second .4
    # (2 + 2); the first at .4: 3, .2 right; the second at 1.5: 2, -.4, 0
    assert found.accuracy == pytest.approx((2 + 3) / 8)
    assert found.ci95[0] < found.accuracy < found.ci95[1] and (found.pairs, found.ties) == (4, 4)


def test_what_is_just_as_large_as_the_margin_of_a_tie_is_one():
    # eps of the second half (2, and a tie of -.5) is .5, and of the first (.5, and a tie of .1) it is .1
    assert ties_of(scored(0.5, 2.0), scored(0.1, -0.5, first=2)).accuracy == pytest.approx((0 + 1 + 1 + 0) / 4)


def test_prompts_weigh_the_same_and_are_in_one_half_with_all_they_have():
    pairs = [ScoredPair((2.0,), (0.0,), prompt=0)] * 9 + scored(-1.0, first=1)
    ties = [ScoredPair((0.5,), (0.0,), prompt=0), *scored(3.0, first=1)]
    found = ties_of(pairs, ties)
    # prompt 0 at the other's 3: nothing of nine pairs, its tie; prompt 1 at .5: no pair, no tie
    assert found.accuracy == pytest.approx((1 / 10 + 0) / 2)
    assert found.never == pytest.approx((9 / 10 + 0) / 2)


def test_equal_sizes_tell_half():
    assert ties_of(scored(1.0, -1.0), scored(1.0, first=2)).told == 0.5


def test_the_unit_of_the_interval_is_the_prompt():
    apart = ties_of(scored(*[1.0, -1.0] * 20), scored(*[0.1, 2.0] * 20, first=40))
    alike = [ScoredPair(pair.chosen, pair.rejected, prompt=0) for pair in scored(*[1.0, -1.0] * 20)]
    together = ties_of(alike, scored(*[0.1, 2.0] * 20, first=40))
    assert apart.ci95 != together.ci95


def test_few_pairs_are_judged_by_themselves():
    found = ties_of(scored(1.0), scored(0.5, first=1))
    assert (found.accuracy, found.epsilon) == (1.0, 0.5)


@pytest.mark.parametrize(("pairs", "ties"), [([], scored(1.0)), (scored(1.0), [])])
def test_one_alone_says_nothing(pairs, ties):
    with pytest.raises(ValueError, match="empty"):
        ties_of(pairs, ties)


NUMBERS = st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=8)


@given(pairs=NUMBERS, ties=NUMBERS)
def test_no_other_epsilon_is_better(pairs, ties):
    def right(epsilon):
        return sum(m > epsilon for m in pairs) + sum(abs(m) <= epsilon for m in ties)

    found = best_epsilon(scored(*pairs), scored(*ties, first=100))
    assert right(found) == max(right(n / 2) for n in range(10))
    assert all(right(n / 2) < right(found) for n in range(int(found * 2)))


@given(pairs=NUMBERS, ties=NUMBERS, factor=st.sampled_from([0.5, 2.0]))
def test_what_ties_are_told_by_does_not_depend_on_the_unit(pairs, ties, factor):
    found = ties_of(scored(*pairs), scored(*ties))
    scaled = ties_of(scored(*(m * factor for m in pairs)), scored(*(m * factor for m in ties)))
    assert scaled.accuracy == found.accuracy and scaled.told == found.told
    assert scaled.epsilon == pytest.approx(found.epsilon * factor)


def test_a_prompt_with_many_ties_does_not_outweigh_many_prompts():
    many = [ScoredPair((1.0,), (0.0,), prompt=0)] * 20
    assert best_epsilon(scored(*[0.5] * 5, first=1), many) == 0.0
    assert best_epsilon(scored(*[0.5] * 5, first=1), scored(*[1.0] * 20, first=6)) == 1.0
