"""How sure two numbers of an evaluation are: pass@k, and the difference between two policies on the same tasks."""

from statistics import fmean
from typing import NamedTuple

from posttrain.evaluation.accuracy import Accuracy
from posttrain.statistics import Interval, mean_interval, normal_interval, paired_difference_interval, pass_at_k


class Difference(NamedTuple):
    """pass@k of one policy minus that of another on the same tasks, with its 95% interval."""

    value: float
    ci95: Interval


def pass_at_interval(found: Accuracy, k: int) -> Interval:
    """The 95% interval of `found.pass_at[k]`, over tasks; of pass@1 it is `found.ci95`."""
    return found.ci95 if k == 1 else mean_interval(_pass_at_rates(found, k))


def difference(before: Accuracy, after: Accuracy, k: int = 1) -> Difference:
    """pass@k of `after` minus pass@k of `before`, paired by task, or how much more reward it earns.

    k is at most the number of samples per task.

    Raises:
        ValueError: the tasks or the measure differ, or the answers of one are greedy and those of the other sampled.
    """
    ids = [[group.task.id for group in found.groups] for found in (before, after)]
    if ids[0] != ids[1] or (before.greedy, before.measure) != (after.greedy, after.measure):
        raise ValueError("a paired difference needs the same tasks, in the same order, answered in the same way")
    if after.measure == "reward":
        gains = [b - a for a, b in zip(before.rates, after.rates, strict=True)]
        return Difference(fmean(gains), normal_interval(gains))
    rates_before, rates_after = _pass_at_rates(before, k), _pass_at_rates(after, k)
    return Difference(fmean(rates_after) - fmean(rates_before), paired_difference_interval(rates_before, rates_after))


def _pass_at_rates(found: Accuracy, k: int) -> list[float]:
    """pass@k of each task."""
    size = found.samples_per_task
    return [rate if k == 1 else pass_at_k(size, round(rate * size), k) for rate in found.rates]
