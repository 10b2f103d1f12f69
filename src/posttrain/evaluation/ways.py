"""What more samples of a problem buy, by every way to choose among them, at what it costs."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from posttrain.evaluation.voting import SCORED, WAYS, Answered, accuracy_of, by_bins, by_difficulty, until_settled
from posttrain.statistics import Interval, mean_interval, paired_difference_interval

FIRST = 4  # samples that predict how hard a problem is


class Point(NamedTuple):
    """A way to choose, at what it costs."""

    way: str
    samples: float  # of a problem, on average
    tokens: float  # of a problem, on average: sampled, and read by a reward model
    accuracy: float
    ci95: Interval
    over_one: float  # the gain over one sample, paired by problem
    over_one_ci95: Interval


def points(
    problems: Sequence[Answered], searched: Mapping[str, Sequence[Sequence[Answered]]] = {}, *, certainty: float = 0.95
) -> list[Point]:
    """Every way at 1, 2, 4 and so on samples of each problem, those that spend samples where they help, and searches.

    The accuracy at n of N samples is the mean over sets of n (`accuracy_of`), their tokens n times the mean of all N.
    A search chooses by weighted votes among the answers that it found.
    """
    size = min(len(problem.answers) for problem in problems)
    ways = [way for way in WAYS if problems[0].scores or way not in SCORED]
    one = [fmean(problem.right) for problem in problems]
    found: list[Point] = []

    def add(
        way: str,
        samples: Sequence[int],
        rates: Sequence[float],
        of: Sequence[Answered] = problems,
        judged: bool = False,
    ) -> None:
        each = [fmean(problem.tokens) + (fmean(problem.read) if judged and problem.read else 0) for problem in of]
        spent = [n * tokens for n, tokens in zip(samples, each, strict=True)]
        gain = fmean(rates) - fmean(one)
        interval = paired_difference_interval(one, rates)
        found.append(Point(way, fmean(samples), fmean(spent), fmean(rates), mean_interval(rates), gain, interval))

    for way in ways:
        for n in doubled(1, size):
            if n > 1 or way == ways[0]:
                rates = one if n == 1 else [accuracy_of(way, problem, n) for problem in problems]
                add(way if n > 1 else "one sample", [n] * len(problems), rates, judged=way in SCORED)
    ends = [until_settled(problem, certainty) for problem in problems]
    add("majority, until settled", ends, _rates("majority", problems, ends))
    for mean in [n for n in doubled(1, size) if FIRST < n < size]:
        given = by_difficulty(problems, mean, FIRST)
        add("majority, by difficulty", given, _rates("majority", problems, given))
        for way in [way for way in ("majority", "weighted") if way in ways]:
            given = by_bins(way, problems, mean, FIRST)
            add(f"{way}, by bins", given, _rates(way, problems, given), judged=way in SCORED)
    for name, sizes in searched.items():
        for answers in sizes:
            beams = [len(problem.answers) for problem in answers]
            add(name, beams, _rates("weighted", answers, beams), answers, judged=True)
    return found


def _rates(way: str, problems: Sequence[Answered], samples: Sequence[int]) -> list[float]:
    """Whether `way` chooses a right answer among the first n samples of each problem."""
    return [float(WAYS[way](problem, range(n))) for problem, n in zip(problems, samples, strict=True)]


def doubled(first: int, last: int) -> list[int]:
    """Those from `first` that are twice the one before, and `last`."""
    return sorted({*(first * 2**i for i in range(last) if first * 2**i <= last), last})
