"""Win rates by hand, the regression by another optimiser, cycles."""

import itertools
import math
import random

import pytest

from posttrain.evaluation.arena import PENALTY, Compared, WinRate, cycles, length_controlled, win_rate
from posttrain.types import Message

NUMBERS = itertools.count()


def one(first, second, share, gap=0, prompt=None):
    asked = Message("user", str(next(NUMBERS)) if prompt is None else prompt)
    return Compared(first, second, share, ("x" * (10 + gap), "x" * 10), (asked,))


def test_a_win_rate_counts_both_orders():
    compared = [one("a", "b", 1.0), one("b", "a", 1.0), one("b", "a", 0.0), one("a", "b", 0.5), one("a", "c", 0.0)]
    found = win_rate("a", "b", compared)
    assert (found.rate, found.n) == (0.625, 4)
    assert win_rate("b", "a", compared).rate == 0.375
    assert win_rate("b", "a", compared).controlled == pytest.approx(1 - found.controlled)


def test_the_prompt_is_the_unit_where_it_was_compared_several_times():
    once = [one("a", "b", share, gap, prompt=name) for name, share, gap in (("x", 0.5, 3), ("y", 1.0, 5), ("z", 0, 0))]
    often = [one("a", "b", share, 3, prompt="x") for share in (1.0, 0.0, 1.0, 0.0)]
    assert win_rate("a", "b", [*often, *once[1:]]) == win_rate("a", "b", once)
    assert win_rate("a", "b", once).n == 3


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
    assert 0 < low < 0.5 < rate < high < 1  # always longer by as much: length may explain all
    rate, (low, high) = length_controlled([1.0] * 20, [0.0] * 20)
    assert rate == pytest.approx(21 / 22)
    # the score is 20 (1 - p) + 1 - 2p, with the prior's two comparisons; so are its squares in the error of theta
    error = math.sqrt(20 / 22**2 + 1 / 22**2 + (21 / 22) ** 2) / (22 * 21 / 22**2)
    ends = [1 / (1 + math.exp(-(math.log(21) + sign * 1.96 * error))) for sign in (-1, 1)]
    assert [low, high] == pytest.approx(ends)
    assert low < 0.75 and high > 0.99  # 0.98 in truth wins 20 of 20 in two of three times


@pytest.mark.parametrize("true", [0.5, 0.8, 0.95])
def test_the_interval_of_the_length_controlled_rate_holds_the_truth_as_often_as_it_says(true):
    rng, held = random.Random(3), 0
    for _ in range(400):
        gaps = [rng.gauss(0, 100) for _ in range(40)]
        low, high = length_controlled([float(rng.random() < true) for _ in gaps], gaps)[1]
        held += low <= true <= high
    assert held >= 0.92 * 400


def rate(policy, other, value):
    return WinRate(policy, other, value, (0, 1), value, (0, 1), 1)


def test_cycles_are_named_once():
    rates = [rate("a", "b", 0.6), rate("b", "c", 0.7), rate("a", "c", 0.2), rate("a", "d", 0.9), rate("d", "b", 0.5)]
    assert cycles(rates) == [("a", "b", "c")]
    assert cycles([rate("a", "b", 0.4), rate("b", "c", 0.3), rate("a", "c", 0.9)]) == [("a", "c", "b")]
    assert cycles([rate("a", "b", 0.6), rate("b", "c", 0.7), rate("a", "c", 0.5)]) == []
