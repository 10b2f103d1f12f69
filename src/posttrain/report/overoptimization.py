"""Reward overoptimisation: proxy and gold reward as functions of KL."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

FEWEST = 4  # points that a law of two numbers is fitted to
PARTS = 10  # equal-width bins of the distance, with equal weights


class Point(NamedTuple):
    """A policy along a run."""

    distance: float  # d: the square root of its KL from the initial policy, in nats
    proxy: float  # the training reward, minus that of the initial policy
    gold: float  # the gold reward, minus that of the initial policy


class Law(NamedTuple):
    """Gao et al. 2022, eq. 1 (https://arxiv.org/abs/2210.10760): gold reward over the distance d = sqrt(KL).

    best of n   R(d) = d (alpha - beta d)
    rl          R(d) = d (alpha - beta log d)
    """

    form: str  # "best of n", or "rl"
    alpha: float
    beta: float
    error: float  # root of the mean squared residual, in units of the reward

    def __call__(self, d: float) -> float:
        """The gold reward that the law predicts at distance d."""
        if d <= 0:
            return 0.0
        return d * (self.alpha - self.beta * (math.log(d) if self.form == "rl" else d))

    @property
    def peak(self) -> float | None:
        """Where gold is highest: alpha / 2 beta, or e^(alpha / beta - 1). None if it has no maximum."""
        if self.beta <= 0:
            return None
        if self.form == "rl":
            exponent = self.alpha / self.beta - 1
            return math.exp(exponent) if exponent < 50 else None
        return max(0.0, self.alpha / (2 * self.beta))


def points_of(rows: Sequence[Mapping[str, Any]]) -> list[Point]:
    """The points that a run logged of its held-out tasks; empty without a gold reward."""
    kl, proxy, gold = names = ("evaluation/kl", "evaluation/reward", "evaluation/gold")
    read = [row for row in rows if row.keys() >= {*names}]
    return [Point(math.sqrt(max(0.0, row[kl])), row[proxy] - read[0][proxy], row[gold] - read[0][gold]) for row in read]


def fit(distances: Sequence[float], rewards: Sequence[float], form: str) -> Law | None:
    """The law with the least squared error; None for fewer than four distances above 0, or if all are the same.

    With x = d and y = -d log d (or -d^2) it is the linear R = alpha x + beta y.

    Example:
        >>> law = fit([1.0, 2.0, 3.0, 4.0], [3.0, 4.0, 3.0, 0.0], "best of n")
        >>> round(law.alpha, 6), round(law.beta, 6), round(law.peak, 6)
        (4.0, 1.0, 2.0)
    """
    import numpy  # here: --help needs none of it

    used = [(d, -d * (math.log(d) if form == "rl" else d), r) for d, r in zip(distances, rewards, strict=True) if d > 0]
    if len(used) < FEWEST:
        return None
    table = numpy.array(used)
    (alpha, beta), squares, rank, _ = numpy.linalg.lstsq(table[:, :2], table[:, 2], rcond=1e-5)
    if rank < 2:
        return None
    return Law(form, float(alpha), float(beta), math.sqrt(squares[0] / len(used)))


def tenths(points: Sequence[Point]) -> list[Point]:
    """The mean of the points in each of ten equal-width bins of the distance, without empty bins.

    A law is a function of the distance, but a run is evaluated at equal times. A policy that a KL penalty holds in
    place, or that has collapsed, is evaluated many times at one distance, which would outweigh all others.

    Example:
        >>> tenths([Point(1.0, 0.25, 0.5), Point(3.75, 1.0, 0.0), Point(4.0, 1.0, 1.0)])
        [Point(distance=1.0, proxy=0.25, gold=0.5), Point(distance=3.875, proxy=1.0, gold=0.5)]
    """
    far = max((point.distance for point in points), default=0.0)
    parts: dict[int, list[Point]] = {}
    for point in sorted(points):
        number = min(PARTS - 1, int(PARTS * point.distance / far)) if far else 0
        parts.setdefault(number, []).append(point)
    return [Point(*map(fmean, zip(*part, strict=True))) for part in parts.values()]


def together(runs: Sequence[Sequence[Point]]) -> list[Point]:
    """The mean over runs that were evaluated at the same times, such as seeds: of their rewards, and of their KL.

    A KL is a mean over prompts already, so d = sqrt(mean d^2) is that of all their prompts. Runs at different distances
    at one time move the peak of a law that they share to a slightly smaller distance, since it is concave.

    Example:
        >>> together([[Point(3.0, 1.0, 2.0)], [Point(4.0, 2.0, 1.0)]])
        [Point(distance=3.5355339059327378, proxy=1.5, gold=1.5)]
    """
    return [
        Point(math.sqrt(fmean(p.distance**2 for p in read)), fmean(p.proxy for p in read), fmean(p.gold for p in read))
        for read in zip(*runs, strict=True)
    ]


def observed_peak(points: Sequence[Point]) -> Point:
    """The point with the highest gold reward; of equal ones the first."""
    return max(points, key=lambda point: point.gold)


def curves(points: Sequence[Point]) -> list[tuple[str, list[tuple[float, float]]]]:
    """The curves over the distance of a run: both rewards as evaluated, and the law of RL fitted to gold.

    Also the maxima of gold and of the law, if the run reached them. The law is fitted to `tenths`.
    """
    if not points:
        return []
    by_distance = sorted(points)
    drawn = [
        ("training reward", [(p.distance, p.proxy) for p in by_distance]),
        ("gold", [(p.distance, p.gold) for p in by_distance]),
    ]
    even = tenths(points)
    law = fit([p.distance for p in even], [p.gold for p in even], "rl")
    far = by_distance[-1].distance
    if law is not None:
        drawn.append(("law of Gao et al., fitted to gold", [(far * i / 40, law(far * i / 40)) for i in range(41)]))
    top = observed_peak(points)
    drawn.append(("maximum of gold", [(top.distance, top.gold)]))
    if law is not None and law.peak is not None and law.peak <= far:
        drawn.append(("maximum of the law", [(law.peak, law(law.peak))]))
    return drawn


def best_of_n_kl(n: int) -> float:
    """The KL of best-of-n sampling from the policy that is sampled, in nats, at most: log n - (n - 1)/n.

    Stiennon et al. 2020, appendix G.3 (https://arxiv.org/abs/2009.01325), used as the distance by Gao et al. 2022.
    """
    return math.log(n) - (n - 1) / n
