"""What a suite is: tasks, prompt, reward and measures of a benchmark, in one short file each (`suites/`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar

from posttrain.statistics import Interval, normal_interval
from posttrain.types import Group


@dataclass(frozen=True)
class Measure:
    """A number of a suite besides its accuracy, with its 95% interval over tasks."""

    name: str
    ci95: Interval
    values: tuple[float, ...]  # one for each task; the measure is their mean
    rate: bool = True  # whether it is between 0 and 1, and so a difference between -1 and 1

    @property
    def value(self) -> float:
        """The measure."""
        return fmean(self.values)

    def over(self, before: "Measure") -> tuple[float, Interval]:
        """This measure minus that of another model on the same tasks, and its interval, paired by task.

        Of rates half a task is added to each side, as `statistics.paired_difference_interval` does.
        """
        gains = [now - was for was, now in zip(before.values, self.values, strict=True)]
        if not (self.rate and before.rate):
            return fmean(gains), normal_interval(gains)
        low, high = normal_interval([*gains, 0.5**0.5, -(0.5**0.5)])
        return fmean(gains), (max(-1.0, low), min(1.0, high))


def ratio(name: str, rates: Sequence[float], weights: Sequence[float]) -> Measure:
    """The mean of the tasks' rates by weight, such as by the number of questions that each has.

        m = sum_i w_i r_i / sum_i w_i,   with values m + w_i (r_i - m) / mean(w)

    Their mean is m, and their spread that of the ratio (linearised). The interval has the four tasks that nobody saw of
    `statistics.mean_interval`.

    Example:
        >>> round(ratio("instructions", [1.0, 0.5], [1, 3]).value, 3)
        0.625
    """
    mean = fmean(rates, weights)
    values = tuple(mean + weight * (rate - mean) / fmean(weights) for rate, weight in zip(rates, weights, strict=True))
    low, high = normal_interval([*values, 0.0, 0.0, 1.0, 1.0])
    return Measure(name, (max(0.0, low), min(1.0, high)), values)


class Suite:
    """Base of all suites, and what a suite of one's own overrides.

    The accuracy, which every suite has, is by the first verifier of its reward.
    """

    hub: ClassVar[str] = ""
    """Where the rows are, unless `dataset` says it: OWNER/NAME:CONFIG."""
    splits: ClassVar[Sequence[str]] = ("test",)
    """The splits that are read, in turn, so that `limit` takes as many of each."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Defaults of the options of `posttrain evaluate`, such as `reward` and `max_new_tokens`."""
    accuracy: ClassVar[str] = "accuracy"
    """What the accuracy is called."""

    def row(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The `prompt` of a row of the data, its `answer` and the columns of the reward; None if it is no task."""
        return row

    def kind(self, row: Mapping[str, Any]) -> Any:
        """What a row of the data is an example of: kinds are read in turn, as splits are."""
        return None

    def refusal(self, rows: Sequence[Mapping[str, Any]]) -> str:
        """Why these rows cannot be measured; "" if they can."""
        return ""

    def measures(self, groups: Sequence[Group], outcome: str) -> list[Measure]:
        """Further measures of the answers to all tasks; `outcome` is the reward that decides the accuracy."""
        return []
