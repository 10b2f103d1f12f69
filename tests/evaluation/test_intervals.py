from dataclasses import replace

import pytest

from posttrain.evaluation.accuracy import Accuracy, difference, pass_at_interval
from posttrain.statistics import mean_interval, paired_difference_interval
from posttrain.types import Group, Task


def accuracy(rates, samples=4, greedy=False, ids="abcd", measure="accuracy") -> Accuracy:
    groups = tuple(Group(task=Task((), id=name), rows=()) for name in ids[: len(rates)])
    mean = sum(rates) / len(rates)
    return Accuracy(mean, (0.1, 0.9), len(rates), samples, greedy, {}, 0.0, 0.0, 5.0, tuple(rates), groups, measure)


def test_pass_at_k_of_each_task_from_its_rate():
    found = accuracy([0.25, 1.0, 0.0])
    # of 4 samples 1, 4 and 0 are right; of their pairs 3 of 6, 6 of 6 and 0 of 6 hold a right one
    assert pass_at_interval(found, 2) == pytest.approx(mean_interval([0.5, 1.0, 0.0]))
    assert pass_at_interval(found, 4) == pytest.approx(mean_interval([1.0, 1.0, 0.0]))


def test_rates_are_counts_again_whatever_rounding_did():
    assert 1 / 49 * 49 < 1
    found = accuracy([0.0, 1 / 49], samples=49)
    assert pass_at_interval(found, 49) == pytest.approx(mean_interval([0.0, 1.0]))


def test_pass_at_1_has_the_interval_of_the_accuracy():
    assert pass_at_interval(accuracy([0.5, 0.5]), 1) == (0.1, 0.9)


def test_the_difference_is_paired_and_signed():
    before, after = accuracy([0.0, 0.5, 1.0, 0.25]), accuracy([0.5, 0.5, 1.0, 1.0])
    found = difference(before, after)
    assert found.value == pytest.approx((0.5 + 0.75) / 4)
    assert found.ci95 == paired_difference_interval([0.0, 0.5, 1.0, 0.25], [0.5, 0.5, 1.0, 1.0])
    assert difference(after, before).value == -found.value


def test_the_difference_of_pass_at_k_pairs_the_tasks():
    before, after = accuracy([0.25, 0.0, 1.0]), accuracy([0.5, 0.25, 1.0])
    # of the 6 pairs of 4 samples those with a right one: 3, 0, 6 before; 5, 3, 6 after
    found = difference(before, after, 2)
    assert found.value == pytest.approx((5 / 6 + 3 / 6 + 1) / 3 - (3 / 6 + 0 + 1) / 3)
    assert found.ci95 == pytest.approx(paired_difference_interval([0.5, 0.0, 1.0], [5 / 6, 0.5, 1.0]))


@pytest.mark.parametrize("other", [{"ids": "cd"}, {"measure": "reward"}, {"greedy": True, "samples": 1}])
def test_other_tasks_or_other_ways_of_answering_cannot_be_paired(other):
    with pytest.raises(ValueError, match="same tasks"):
        difference(accuracy([0.0, 1.0]), accuracy([0.0, 1.0], **other))


def test_only_tasks_that_count_for_both_are_compared():
    """A reward may not apply to an answer of one model: that task is left out of its accuracy."""
    before, after = accuracy([0.0, 0.5, 1.0], ids="abd"), accuracy([0.25, 0.75, 0.5], ids="bcd")
    found = difference(before, after)
    assert found.n == 2 and found.value == pytest.approx((0.25 - 0.5 + 0.5 - 1.0) / 2)
    assert found.ci95 == paired_difference_interval([0.5, 1.0], [0.25, 0.5])
    earned = [replace(each, measure="reward") for each in (before, after)]
    assert difference(*earned).value == found.value and difference(*earned).n == 2
    assert difference(accuracy([0.0, 1.0], ids="ab"), accuracy([1.0, 0.0], ids="ba")).value == 0.0
    assert difference(accuracy([0.0, 0.5], ids="aa"), accuracy([1.0, 0.5], ids="aa")).n == 2  # a task twice


def test_the_numbers_of_samples_may_differ():
    assert difference(accuracy([0.0, 1.0]), replace(accuracy([1.0, 1.0]), samples_per_task=8)).value == 0.5
