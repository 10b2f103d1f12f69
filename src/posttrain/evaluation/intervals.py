"""How sure two numbers of an evaluation are: pass@k, and the difference between two policies on the same tasks."""

from statistics import fmean
from typing import NamedTuple

from posttrain.evaluation.accuracy import Accuracy
from posttrain.statistics import Interval, mean_interval, paired_difference_interval, pass_at_k


class Difference(NamedTuple):
    """Accuracy of one policy minus that of another, with its 95% interval."""

    value: float
    ci95: Interval


def pass_at_interval(found: Accuracy, k: int) -> Interval:
    """The 95% interval of `found.pass_at[k]`, over tasks; of pass@1 it is `found.ci95`."""
    if k == 1:
        return found.ci95
    size = found.samples_per_task
    return mean_interval([pass_at_k(size, round(rate * size), k) for rate in found.rates])


def difference(before: Accuracy, after: Accuracy) -> Difference:
    """How much more of the same tasks, in the same order, `after` solves.

    Raises:
        ValueError: the tasks are others, or the answers of one are greedy and those of the other sampled.
    """
    ids = [[group.task.id for group in found.groups] for found in (before, after)]
    if ids[0] != ids[1] or before.greedy != after.greedy:
        raise ValueError("a paired difference needs the same tasks, in the same order, answered in the same way")
    return Difference(fmean(after.rates) - fmean(before.rates), paired_difference_interval(before.rates, after.rates))
