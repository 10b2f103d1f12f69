"""ProcessBench's measure: is the first wrong step of a solution found, and are right solutions left alone?"""

from collections.abc import Sequence
from typing import NamedTuple

from posttrain.statistics import Interval, wilson_interval

ALL_RIGHT = -1  # the label of a solution without a wrong step


class ProcessBench(NamedTuple):
    """The F1 with its interval, and the two accuracies that it is made of."""

    f1: float
    ci95: Interval
    wrong: float  # the share of the solutions with a wrong step whose first one was said
    right: float  # the share of the right solutions of which it was said that they are
    n_wrong: int
    n_right: int


def process_bench(first_wrong: Sequence[int], said: Sequence[int | None]) -> ProcessBench:
    """How well first wrong steps are found; steps count from 0, and -1 is for solutions whose steps are all right.

        F1 = 2 a b / (a + b),   a and b the accuracies among solutions with a wrong step and among right ones

    Zheng et al. 2024, section 3.1 (https://arxiv.org/abs/2412.06559). `said` None is where no answer was found; it is
    wrong of every solution. A critic that always says "all right" has an F1 of 0. The interval is from the F1 of the
    low ends to that of the high ends of both accuracies' Wilson intervals; F1 rises in both, so it holds at least 95%.

    Raises:
        ValueError: lengths differ, or solutions of one of the two kinds are missing.

    Example:
        >>> found = process_bench([2, 0, -1, -1], [2, 1, -1, None])
        >>> found.f1, found.wrong, found.right
        (0.5, 0.5, 0.5)
    """
    if len(first_wrong) != len(said):
        raise ValueError(f"process_bench needs one answer for each solution; got {len(said)} of {len(first_wrong)}")
    hits = [(label == ALL_RIGHT, answer == label) for label, answer in zip(first_wrong, said, strict=True)]
    found, left = ([hit for right, hit in hits if right is kind] for kind in (False, True))
    if not found or not left:
        raise ValueError("ProcessBench's F1 needs solutions with a wrong step and solutions without one")
    a, b = sum(found) / len(found), sum(left) / len(left)
    ends = zip(wilson_interval(sum(found), len(found)), wilson_interval(sum(left), len(left)), strict=True)
    low, high = (_harmonic(one, other) for one, other in ends)
    return ProcessBench(_harmonic(a, b), (low, high), a, b, len(found), len(left))


def _harmonic(a: float, b: float) -> float:
    return 2 * a * b / (a + b) if a + b else 0.0
