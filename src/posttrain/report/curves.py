"""Start and end of each metric's curve, and whether the difference is significant."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, variance
from typing import Any

from posttrain.report.finding import Thresholds

Rows = Sequence[Mapping[str, Any]]


class Curves:
    """The start and the end of each metric's curve."""

    def __init__(self, rows: Rows, limits: Thresholds) -> None:
        self.rows, self._limits = rows, limits

    def values(self, name: str) -> list[float]:
        """All finite values of a metric, in order."""
        found = [row[name] for row in self.rows if isinstance(row.get(name), int | float)]
        return [float(value) for value in found if math.isfinite(value)]

    def has(self, *names: str) -> bool:
        """Whether there are enough values of these metrics."""
        return all(len(self.values(name)) >= self._limits.min_steps for name in names)

    def start(self, name: str) -> float:
        """The mean of the first steps."""
        return fmean(self._windows(name)[0])

    def end(self, name: str) -> float:
        """The mean of the last steps."""
        return fmean(self._windows(name)[1])

    def gain(self, name: str) -> float:
        """How much the end is above the start in standard errors; 0 where there is no difference at all."""
        first, last = self._windows(name)
        difference = fmean(last) - fmean(first)
        error = math.sqrt(variance(first) / len(first) + variance(last) / len(last))
        return difference / error if error > 0 else math.copysign(math.inf, difference) if difference else 0.0

    def rose(self, name: str) -> bool:
        """Whether the end is above the start by more than noise."""
        return self.has(name) and self.gain(name) > self._limits.standard_errors

    def fell(self, name: str) -> bool:
        """Whether the end is below the start by more than noise."""
        return self.has(name) and self.gain(name) < -self._limits.standard_errors

    def outcome(self) -> str:
        """The metric of correctness, or else the reward."""
        return "accuracy" if self.has("accuracy") else "reward/mean"

    def change(self, name: str) -> str:
        """The start and the end as text."""
        return f"{name} went from {number(self.start(name))} to {number(self.end(name))}"

    def solved(self) -> bool:
        """Whether nearly all answers are right at the end."""
        return self.has("accuracy") and self.end("accuracy") >= self._limits.solved

    def _windows(self, name: str) -> tuple[list[float], list[float]]:
        values = self.values(name)
        size = max(2, round(len(values) * self._limits.window))
        return values[:size], values[-size:]


def number(value: float) -> str:
    """A number with three significant digits."""
    return f"{value:.3g}"


def percent(value: float) -> str:
    """A fraction in per cent."""
    return f"{100 * value:.0f} %"
