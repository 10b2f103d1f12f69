"""Lengths of completions, and what a batch of them has."""

from itertools import islice
from statistics import fmean

import pytest

from posttrain.planning.cluster.workload import Workload, computed

WORK = Workload(64, 8, prompt_tokens=100, mean_tokens=500.0, spread=0.8, max_tokens=10**6, microbatch_tokens=4096)


def test_lengths_have_the_mean_that_is_asked_for():
    """Of 32,000 draws the mean is within 2%: their standard deviation is 0.95 of the mean, 0.5% of that of the mean."""
    drawn = [length for group in islice(WORK.groups(), 4000) for length in group]
    assert fmean(drawn) == pytest.approx(500, rel=0.02)
    squares = fmean(length**2 for length in drawn)
    assert squares / fmean(drawn) == pytest.approx(500 * 2.718281828**0.64, rel=0.08)  # mean exp(s^2)


def test_lengths_are_cut_and_without_spread_alike():
    cut = Workload(2, 4, 10, 500.0, 0.8, max_tokens=600, microbatch_tokens=4096)
    drawn = [length for group in islice(cut.groups(), 500) for length in group]
    assert max(drawn) == 600 and min(drawn) >= 1
    same = Workload(2, 4, 10, 500.0, 0.0, max_tokens=600, microbatch_tokens=4096)
    assert list(islice(same.groups(), 2)) == [(500,) * 4] * 2


def test_groups_repeat_themselves_with_a_seed():
    assert list(islice(WORK.groups(1), 3)) == list(islice(WORK.groups(1), 3)) != list(islice(WORK.groups(2), 3))


def test_a_sequence_under_way_is_met_at_its_middle_and_in_proportion_to_its_length():
    assert WORK.resident() == pytest.approx(100 + 500 * 2.718281828**0.64 / 2)
    assert Workload(1, 1, 10, 300.0, 0.0, 600, 4096).resident() == 10 + 150
    assert Workload(1, 1, 10, 300.0, 2.0, 600, 4096).resident() == 10 + 300  # no longer than the longest


def test_a_prompt_is_trained_once_for_its_group_and_read_by_every_completion():
    squares = (12**2 + 13**2 - 10**2) + (14**2 + 11**2 - 10**2)
    assert computed([(2, 3), (4, 1)], 10) == (2 * 10 + 10, squares)
