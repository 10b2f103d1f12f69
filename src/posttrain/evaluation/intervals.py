"""Confidence intervals of pass@k, and of paired differences between two policies."""

from collections import Counter
from statistics import fmean
from typing import NamedTuple

from posttrain.evaluation.accuracy import Accuracy
from posttrain.statistics import Interval, mean_interval, normal_interval, paired_difference_interval, pass_at_k

Rates = dict[tuple[str, int], float]  # by a task's id, and how many tasks before it have the same


class Difference(NamedTuple):
    """pass@k of one policy minus that of another on the same tasks, with its 95% interval."""

    value: float
    ci95: Interval
    n: int  # tasks compared


def pass_at_interval(found: Accuracy, k: int) -> Interval:
    """The 95% interval of `found.pass_at[k]`, over tasks; of pass@1 it is `found.ci95`."""
    return found.ci95 if k == 1 else mean_interval(_pass_at_rates(found, k))


def difference(before: Accuracy, after: Accuracy, k: int = 1) -> Difference:
    """pass@k of `after` minus pass@k of `before`, paired by task, or the difference of rewards.

    k is at most the number of samples per task. A task that counts for one of them alone is left out: a reward may not
    apply to an answer of the other.

    Raises:
        ValueError: they have no task in common, the measure differs, or the answers of one are greedy and those of the
            other sampled.
    """
    rates = _common(_by_task(before, k), _by_task(after, k))
    if not rates or (before.greedy, before.measure) != (after.greedy, after.measure):
        raise ValueError("a paired difference needs the same tasks, answered in the same way")
    rates_before, rates_after = zip(*rates, strict=True)
    if after.measure == "reward":
        gains = [b - a for a, b in rates]
        return Difference(fmean(gains), normal_interval(gains), len(rates))
    interval = paired_difference_interval(rates_before, rates_after)
    return Difference(fmean(rates_after) - fmean(rates_before), interval, len(rates))


def _common(before: Rates, after: Rates) -> list[tuple[float, float]]:
    """The rates of the tasks of both, in the order of the first."""
    return [(rate, after[task]) for task, rate in before.items() if task in after]


def _by_task(found: Accuracy, k: int) -> Rates:
    """pass@k of each task, or its reward, by its id and how often that stood before it."""
    rates = found.rates if found.measure == "reward" else _pass_at_rates(found, k)
    seen: Counter[str] = Counter()
    by_task: Rates = {}
    for group, rate in zip(found.groups, rates, strict=True):
        by_task[group.task.id, seen[group.task.id]] = rate
        seen[group.task.id] += 1
    return by_task


def _pass_at_rates(found: Accuracy, k: int) -> list[float]:
    """pass@k of each task."""
    size = found.samples_per_task
    return [rate if k == 1 else pass_at_k(size, round(rate * size), k) for rate in found.rates]
