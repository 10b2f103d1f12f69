"""Policies compared in pairs: win rates, length-controlled ones, and cycles.

A comparison has the share p of the first: 1 where it wins, 0 where it loses, 1/2 for a tie; a judge may say any share.
"""

import math
from collections.abc import Sequence
from itertools import combinations, permutations
from statistics import fmean
from typing import NamedTuple

from posttrain.statistics import Interval, mean_interval, sigmoid
from posttrain.types import Message

PENALTY = 0.1  # half the weight of phi^2 in the length-controlled fit, in comparisons


class Compared(NamedTuple):
    """One comparison of two policies on a prompt."""

    first: str
    second: str
    share: float  # of the first
    texts: tuple[str, str]  # the answers
    prompt: tuple[Message, ...]

    def of(self, name: str) -> "Compared":
        """The same with this policy first."""
        if self.first == name:
            return self
        return Compared(self.second, self.first, 1 - self.share, (self.texts[1], self.texts[0]), self.prompt)


class WinRate(NamedTuple):
    """How often a policy wins against another, as it is and with lengths controlled."""

    policy: str
    other: str
    rate: float
    ci95: Interval
    controlled: float
    controlled_ci95: Interval
    n: int  # prompts


def win_rate(policy: str, other: str, compared: Sequence[Compared]) -> WinRate:
    """The win rate of two policies over the prompts on which they were compared, each with its mean if that was often.

    Several comparisons on a prompt are not independent, so that intervals are over prompts.
    """
    by_prompt: dict[tuple[Message, ...], list[Compared]] = {}
    for one in compared:
        if {one.first, one.second} == {policy, other}:
            by_prompt.setdefault(one.prompt, []).append(one.of(policy))
    shares = [fmean(one.share for one in some) for some in by_prompt.values()]
    gaps = [fmean(len(one.texts[0]) - len(one.texts[1]) for one in some) for some in by_prompt.values()]
    return WinRate(
        policy, other, fmean(shares), mean_interval(shares), *length_controlled(shares, gaps), len(by_prompt)
    )


def length_controlled(shares: Sequence[float], gaps: Sequence[float]) -> tuple[float, Interval]:
    """The win rate if both answers were equally long, and its 95% interval.

        P(first wins) = sigmoid(theta + phi tanh(gap / sd(gap))),   length-controlled win rate = sigmoid(theta)

    The regression of AlpacaEval 2 (Dubois et al. 2024, https://arxiv.org/abs/2404.04475) for two policies, without its
    term for how difficult an instruction is, which it fits on more than a hundred models. `gaps` are how much longer
    the first answer is, in any unit; `shares` its wins, 0 to 1. theta has the prior of two comparisons, one won and one
    lost, and phi a weak one, so that both are finite; errors are the sandwich's. (The paper could be read in summaries
    only, so that its penalty is not ours.)

    Example:
        >>> rate, _ = length_controlled([1.0, 1.0, 0.0, 0.0], [50, 50, -50, -50])
        >>> round(rate, 3)  # length explains all
        0.5
    """
    size = len(shares)
    mean = math.fsum(gaps) / size
    spread = math.sqrt(math.fsum((gap - mean) ** 2 for gap in gaps) / size) or 1.0
    rows = [(math.tanh(gap / spread), share) for gap, share in zip(gaps, shares, strict=True)]
    theta = phi = h01 = h11 = 0.0
    det, chances = 1.0, list[float]()
    for _ in range(50):  # Newton's method
        chances = [sigmoid(theta + phi * x) for x, _ in rows]
        own = sigmoid(theta)
        g0 = math.fsum(y - p for (_, y), p in zip(rows, chances, strict=True)) + 1 - 2 * own
        g1 = math.fsum(x * (y - p) for (x, y), p in zip(rows, chances, strict=True)) - 2 * PENALTY * phi
        h00 = math.fsum(p * (1 - p) for p in chances) + 2 * own * (1 - own)
        h01 = math.fsum(x * p * (1 - p) for (x, _), p in zip(rows, chances, strict=True))
        h11 = math.fsum(x * x * p * (1 - p) for (x, _), p in zip(rows, chances, strict=True)) + 2 * PENALTY
        det = h00 * h11 - h01 * h01
        theta, phi = theta + (h11 * g0 - h01 * g1) / det, phi + (h00 * g1 - h01 * g0) / det
        if abs(g0) + abs(g1) < 1e-10:
            break
    own = sigmoid(theta)  # below also of the two comparisons of the prior
    told = [*((x, y - p) for (x, y), p in zip(rows, chances, strict=True)), (0.0, 1 - own), (0.0, -own)]
    half = 1.96 * math.sqrt(math.fsum(((h11 - h01 * x) / det * e) ** 2 for x, e in told))
    return sigmoid(theta), (sigmoid(theta - half), sigmoid(theta + half))


def cycles(rates: Sequence[WinRate]) -> list[tuple[str, str, str]]:
    """Each three policies of which the first beats the second, that the third, and that the first.

    Where any policies beat each other in a circle and all were compared, three of them do.
    """
    beats = {(one.policy, one.other) for one in rates if one.rate > 0.5}
    beats |= {(one.other, one.policy) for one in rates if one.rate < 0.5}
    names = list(dict.fromkeys(name for one in rates for name in (one.policy, one.other)))
    rounds = ((a, b, c) for three in combinations(names, 3) for a, b, c in permutations(three) if a == three[0])
    return [(a, b, c) for a, b, c in rounds if {(a, b), (b, c), (c, a)} <= beats]
