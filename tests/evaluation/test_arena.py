"""Win rates by hand, the regression by another optimiser, cycles."""

import math
import random

import pytest

from posttrain.evaluation.arena import PENALTY, Compared, WinRate, cycles, length_controlled, win_rate


def one(first, second, share, gap=0):
    return Compared(first, second, share, ("x" * (10 + gap), "x" * 10))


def test_a_win_rate_counts_both_orders():
    compared = [one("a", "b", 1.0), one("b", "a", 1.0), one("b", "a", 0.0), one("a", "b", 0.5), one("a", "c", 0.0)]
    found = win_rate("a", "b", compared)
    assert (found.rate, found.n) == (0.625, 4)
    assert win_rate("b", "a", compared).rate == 0.375
    assert win_rate("b", "a", compared).controlled == pytest.approx(1 - found.controlled)


def fitted(shares, gaps):
    """The same maximum by coordinate search, in plain floats."""
    mean = sum(gaps) / len(gaps)
    spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))

    def value(theta, phi):
        total = -PENALTY * phi * phi
        for y, gap in [*zip(shares, gaps, strict=True), (1.0, None), (0.0, None)]:
            z = theta + (0.0 if gap is None else phi * math.tanh(gap / spread))
            total += y * z - math.log1p(math.exp(z))
        return total

    theta = phi = 0.0
    step = 1.0
    while step > 1e-9:
        moves = [(theta + a * step, phi + b * step) for a, b in ((1, 0), (-1, 0), (0, 1), (0, -1))]
        best = max(moves, key=lambda move: value(*move))
        if value(*best) > value(theta, phi):
            theta, phi = best
        else:
            step /= 2
    return 1 / (1 + math.exp(-theta))


def test_the_length_controlled_rate_is_the_maximum_of_its_likelihood():
    rng = random.Random(0)
    gaps = [rng.gauss(40, 100) for _ in range(60)]
    shares = [float(rng.random() < 1 / (1 + math.exp(0.8 - gap / 60))) for gap in gaps]
    rate, (low, high) = length_controlled(shares, gaps)
    assert rate == pytest.approx(fitted(shares, gaps), abs=1e-6)
    assert low < rate < high and high - low < 0.4
    assert rate < sum(shares) / len(shares)  # longer answers won, and ours were longer


def test_nothing_but_wins_stays_finite():
    rate, (low, high) = length_controlled([1.0] * 20, [5.0] * 20)
    assert 0.5 < low <= rate <= high < 1


def rate(policy, other, value):
    return WinRate(policy, other, value, (0, 1), value, (0, 1), 1)


def test_cycles_are_named_once():
    rates = [rate("a", "b", 0.6), rate("b", "c", 0.7), rate("a", "c", 0.2), rate("a", "d", 0.9), rate("d", "b", 0.5)]
    assert cycles(rates) == [("a", "b", "c")]
    assert cycles([rate("a", "b", 0.4), rate("b", "c", 0.3), rate("a", "c", 0.9)]) == [("a", "c", "b")]
    assert cycles([rate("a", "b", 0.6), rate("b", "c", 0.7), rate("a", "c", 0.5)]) == []
