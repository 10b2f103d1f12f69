"""Start and end of each metric's curve, and whether the difference is significant; bounds of what is normal."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Any

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Where a number becomes a finding."""

    window: float = 0.25
    """Fraction of the steps that is the start, or the end, of a run: enough to average, little enough to differ."""
    min_steps: int = 8
    """Windows of fewer than two steps each are noise."""
    standard_errors: float = 2.0
    """A change counts if it is this many standard errors of the two windows' means: by chance one in twenty does."""
    zero_advantage: float = 0.6
    """Fraction of groups whose completions all have the same reward: more than half of the samples have no gradient."""
    zero_advantage_dead: float = 0.9
    """Fewer than one group in ten has a gradient: the policy cannot learn, whatever the other curves show."""
    solved: float = 0.95
    """Accuracy from which low entropy and equal rewards are expected."""
    entropy: float = 0.05
    """Nats per token. The most likely token then has 99% on average, and all completions of a prompt are the same."""
    entropy_fall: float = 0.25
    """... and only below this fraction of the start: some tasks are nearly deterministic from the start."""
    repetition: float = 0.3
    """Fraction of repeated n-grams: prose and worked steps stay below 0.2, loops are far above."""
    repetition_rise: float = 0.1
    """... and only if it grew by this much: some tasks repeat themselves."""
    truncated: float = 0.2
    """Fraction of truncated completions, which are rarely right."""
    length_growth: float = 1.5
    """Ratio to the length at the start, without more reward: length itself is being learned."""
    kl: float = 0.5
    """Nats per token from the reference: a sentence of 20 tokens is e^10, 22000 times, as likely as it was."""
    kl_jump: float = 10.0
    """Ratio to the median of the run: a spike, mostly from one bad batch or too high a learning rate."""
    logprob_gap_mean: float = 0.03
    """Nats. Arithmetic in bfloat16 moves a logprob by 0.01 to 0.02 on average; more is another model or setting."""
    logprob_gap_max: float = 1.0
    """Nats: the ratio of one token is off by a factor of e before any learning, which no rounding does."""
    clip_fraction: float = 0.2
    """Fraction of clipped tokens: with one in five the update is much larger than the method allows for."""
    unparsed: float = 0.2
    """Fraction of completions without a parsed answer: the reward measures format, not correctness."""
    silent: float = 0.5
    """Fraction of completions that a reward does not apply to: what is optimised is mostly the sum of the others."""
    held_out_gain: float = 0.01
    """A change of held-out accuracy by less than a point counts as none."""
    gold_lost: float = 0.2
    """Fraction of the gain in gold reward that is lost again, if it is beyond its standard errors."""
    overfit: float = 0.05
    """Relative rise of the held-out loss above its lowest value: more than its noise."""
    displaced: float = 0.1
    """Relative fall of the chosen responses' logprob: with 10 of 100 nats one is e^10, 22000 times, less likely."""
    few_pairs: int = 30
    """Held-out pairs. With fewer the interval of an accuracy of 80% reaches 60%."""


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
        if not self.measured:
            return 0.0
        first, last = (self._windows()[i] for i in (0, window))
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
