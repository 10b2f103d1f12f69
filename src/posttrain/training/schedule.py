"""Learning-rate schedules."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from posttrain.errors import unknown

SCHEDULES: Mapping[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}
"""Decay functions: from progress after warmup, 0 to 1, to a factor of the peak learning rate."""


def unreached(warmup: int, steps: int) -> list[str]:
    """Warn of a warmup that is not shorter than the run."""
    if warmup < steps or warmup <= 1:
        return []
    return [f"`warmup_steps={warmup}` of {steps} steps: the learning rate never leaves its warmup"]


def learning_rate(step: int, *, steps: int, peak: float, warmup: int, decay: str) -> float:
    """Learning rate of `step` (from 0): linear up over `warmup` steps, then down by `decay` until `steps`.

    The first step is not 0 and the last not quite: step s of the warmup has (s + 1) / warmup of the peak, and the
    decay of the n steps after it is taken at 0, 1/n, ... (n - 1)/n.

    Example:
        >>> [learning_rate(s, steps=6, peak=1.0, warmup=2, decay="linear") for s in range(6)]
        [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if decay not in SCHEDULES:
        raise unknown("decay", decay, SCHEDULES)
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * SCHEDULES[decay]((step - warmup) / max(1, steps - warmup))


@dataclass(frozen=True)
class LearningRate:
    """The learning rate of each step of a run: `learning_rate` of the steps after the first `delay`."""

    peak: float
    warmup: int  # steps until the peak
    decay: str  # a name in `SCHEDULES`
    steps: int  # of the whole run
    delay: int = 0  # initial steps without updates at this rate, such as the critic warmup

    def __call__(self, step: int) -> float:
        """Of `step`, from 0."""
        return self._of(steps=self.steps - self.delay)(max(0, step - self.delay))

    def _of(self, steps: int) -> Callable[[int], float]:
        return partial(learning_rate, steps=steps, peak=self.peak, warmup=self.warmup, decay=self.decay)

    def changed(self, before: int | None, done: int) -> list[str]:
        """Warn if a run of `before` steps is resumed with this schedule after `done` of them, which are not all."""
        if before in (None, self.steps) or not self.delay < done < self.steps:
            return []
        assert before is not None
        before, steps, done = (number - self.delay for number in (before, self.steps, done))
        planned = f"{steps} steps now, {before} when it began"
        if self.decay == "constant":
            return [f"{planned}: the learning rate is constant after its warmup, and does not change"]
        here, following = self._of(before)(done - 1), self._of(steps)(done)
        return [
            f"{planned}: the {self.decay} decay of the learning rate now ends after step {steps}, not {before}; it was "
            f"{here:.3g} at step {done} and is {following:.3g} at step {done + 1}"
        ]
