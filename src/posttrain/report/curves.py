"""Start and end of each metric's curve, and whether the difference is significant."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Any

from posttrain.report.finding import Thresholds

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric: its finite values, in order."""

    name: str
    values: Sequence[float]
    limits: Thresholds

    @property
    def measured(self) -> bool:
        """Whether there are enough values to judge."""
        return len(self.values) >= self.limits.min_steps

    @property
    def start(self) -> float:
        """The mean of the first steps; NaN if there are too few values."""
        return fmean(self._windows()[0]) if self.measured else math.nan

    @property
    def end(self) -> float:
        """The mean of the last steps; NaN if there are too few values."""
        return fmean(self._windows()[-1]) if self.measured else math.nan

    @property
    def rose(self) -> bool:
        """Whether the end is above the start by more than noise."""
        return self.gain() > self.limits.standard_errors

    @property
    def fell(self) -> bool:
        """Whether the end is below the start by more than noise."""
        return self.gain() < -self.limits.standard_errors

    @property
    def dipped(self) -> bool:
        """Whether the curve was below its start by more than noise after its first window or before its last."""
        return min(self.gain(1), self.gain(2)) < -self.limits.standard_errors

    @property
    def change(self) -> str:
        """The start and the end as text."""
        return f"{self.name} went from {self.start:.3g} to {self.end:.3g}"

    def gain(self, window: int = -1) -> float:
        """How much a window is above the first, in standard errors; 0 if they do not differ, or with too few values."""
        first, last = (self._windows()[i] for i in (0, window))
        if not self.measured:
            return 0.0
        difference = fmean(last) - fmean(first)
        error = math.sqrt(variance(first) / len(first) + variance(last) / len(last))
        return difference / error if error > 0 else math.copysign(math.inf, difference) if difference else 0.0

    def _windows(self) -> list[Sequence[float]]:
        """The first values, those that follow, those before the last, and the last."""
        size = max(2, round(len(self.values) * self.limits.window))
        ends = (size, 2 * size, len(self.values) - size, len(self.values))
        return [self.values[end - size : end] for end in ends]


class Curves(dict[str, Curve]):
    """The curve of each metric by name; of a metric that was not logged it is empty."""

    def __init__(self, rows: Rows, limits: Thresholds) -> None:
        self.rows, self._limits = rows, limits
        for name in dict.fromkeys(name for row in rows for name in row):
            found = [float(row[name]) for row in rows if isinstance(row.get(name), int | float)]
            self[name] = Curve(name, [value for value in found if math.isfinite(value)], limits)

    def __missing__(self, name: str) -> Curve:
        return Curve(name, (), self._limits)

    @property
    def solved(self) -> bool:
        """Whether nearly all answers are right at the end."""
        return self["accuracy"].end >= self._limits.solved
