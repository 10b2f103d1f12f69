import doctest
import itertools
import math
import random
from statistics import pvariance

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain import statistics
from posttrain.statistics import (
    best_of_n,
    kendall_interval,
    kendall_tau,
    mean_interval,
    paired_difference_interval,
    pass_at_k,
    wilson_interval,
)

RATES = st.lists(st.floats(0, 1), min_size=1, max_size=30)


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_counts_the_subsets_that_hold_a_right_sample(n: int) -> None:
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        right = [True] * c + [False] * (n - c)
        subsets = list(itertools.combinations(right, k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_pass_at_k_is_stable_where_binomials_overflow() -> None:
    # C(9990, 5000) has 3000 digits; with 10 right of 10000 the chance that 5000 miss them all is about 2^-10.
    assert pass_at_k(10_000, 10, 5_000) == pytest.approx(1 - 2**-10, abs=1e-5)


def test_rank_correlation_by_hand_with_ties() -> None:
    assert kendall_tau([1, 2, 3, 4], [10, 20, 30, 40]) == 1.0 and kendall_tau([1, 2, 3], [3, 2, 1]) == -1.0
    # of 6 pairs 3 are in the same order, 2 are ties of the first alone, 1 of both
    assert kendall_tau([1, 1, 2, 1], [1, 2, 3, 2]) == pytest.approx(3 / math.sqrt(3 * 5))
    assert kendall_tau([1, 1], [1, 2]) is None and kendall_tau([], []) is None


def test_interval_of_a_rank_correlation_is_the_jackknifes() -> None:
    some, others = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0, 5.0], [2.0, 3.0, 3.5, 1.0, 4.0, 9.0, 1.0, 8.0, 2.0]
    taus = [kendall_tau(some[:i] + some[i + 1 :], others[:i] + others[i + 1 :]) or 0.0 for i in range(9)]
    half = 1.959964 * math.sqrt(8 * pvariance(taus))  # (n - 1)/n of a sum of squares
    tau = kendall_tau(some, others) or 0.0
    assert kendall_interval(some, others) == pytest.approx((tau - half, min(1.0, tau + half)), abs=1e-6)
    assert kendall_interval([1, 2, 3, 4], [1, 2, 3, 4]) == (1.0, 1.0)
    assert kendall_interval([1, 1], [1, 2]) == kendall_interval([], []) == (-1.0, 1.0)
    assert kendall_interval([1, 2], [1, 2]) == (-1.0, 1.0)  # nothing is left without one


def test_interval_of_a_rank_correlation_covers() -> None:
    """Of numbers that are as often in the same order as not, 95 of 100 intervals hold 0, within the chance of it."""
    chance = random.Random(0)
    held = 0
    for _ in range(400):
        low, high = kendall_interval(*[[chance.gauss(0, 1) for _ in range(30)] for _ in range(2)])
        held += low <= 0 <= high
    assert 0.91 <= held / 400 <= 0.98


def brute(proxy: list[float], gold: list[float], n: int) -> float:
    chosen: list[float] = []
    for some in itertools.combinations(range(len(proxy)), n):
        most = max(proxy[i] for i in some)
        best = [gold[i] for i in some if proxy[i] == most]
        chosen.append(sum(best) / len(best))
    return sum(chosen) / len(chosen)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 6])
def test_best_of_n_is_the_mean_over_all_choices(n: int) -> None:
    proxy, gold = [0.3, -1.0, 2.0, 0.5, 1.0, 0.7], [1.0, 4.0, 0.0, -2.0, 3.0, 2.5]
    assert best_of_n(proxy, gold, n) == pytest.approx(brute(proxy, gold, n))


def test_of_equal_proxies_all_count_alike() -> None:
    assert best_of_n([1.0, 1.0, 0.0], [4.0, 2.0, 9.0], 3) == pytest.approx(3.0)
    assert best_of_n([1.0] * 4, [1.0, 2.0, 3.0, 4.0], 2) == pytest.approx(2.5)
    with pytest.raises(ValueError, match="1 to 2 samples; got n=3"):
        best_of_n([1.0, 2.0], [0.0, 0.0], 3)


def test_pass_at_1_is_the_share_that_is_right() -> None:
    assert pass_at_k(8, 3, 1) == pytest.approx(3 / 8)


@pytest.mark.parametrize("n, c, k", [(4, 5, 1), (4, -1, 1), (4, 1, 0), (4, 1, 5), (0, 0, 1)])
def test_pass_at_k_refuses_what_cannot_be(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"n={n}, c={c}, k={k}"):
        pass_at_k(n, c, k)


@pytest.mark.parametrize(
    "successes, n, low, high",
    [
        # 0 of n: the interval is (0, z²/(n + z²)), z² = 3.8415.
        (0, 10, 0.0, 3.8415 / 13.8415),
        # 8 of 10: (0.8 + 0.19207 ± sqrt(3.8415 (0.016 + 0.0096036))) / 1.38415 = (0.99207 ± 0.31362) / 1.38415.
        (8, 10, 0.490162, 0.943318),
        # Brown, Cai and DasGupta 2001 call it good for small n: half of 2 is (0.0945, 0.9055).
        (1, 2, 0.094529, 0.905471),
    ],
)
def test_wilson_interval_by_hand(successes: int, n: int, low: float, high: float) -> None:
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=2e-5)


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_interval_solves_the_equation_it_comes_from(case: tuple[int, int]) -> None:
    """Each end p0 is a rate from which the observed rate is z standard deviations of p0 away."""
    successes, n = case
    low, high = wilson_interval(successes, n)
    assert 0 <= low <= successes / n <= high <= 1
    for end in (low, high):
        if 0 < end < 1:
            assert abs(successes / n - end) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / n), rel=1e-4)


def test_mean_interval_by_hand() -> None:
    # 0.5, 0.5 and 0, 0, 1, 1: mean 0.5, variance 4 * 0.25 / 5 = 0.2, half = 1.96 sqrt(0.2 / 6) = 0.35784.
    assert mean_interval([0.5, 0.5]) == pytest.approx((0.14216, 0.85784), abs=1e-5)
    # 0.25 and 0, 0, 1, 1: mean 0.45, squares 0.04 + 2 * 0.2025 + 2 * 0.3025 = 1.05, half = 1.96 sqrt(1.05 / 4 / 5).
    assert mean_interval([0.25]) == pytest.approx((0.45 - 0.44908, 0.45 + 0.44908), abs=1e-4)


def test_mean_interval_of_many_answers_is_the_textbook_interval() -> None:
    rates = [0.0] * 60_000 + [1.0] * 40_000
    assert mean_interval(rates) == pytest.approx((0.4 - 0.0030364, 0.4 + 0.0030364), abs=2e-5)


def test_mean_interval_narrows_when_problems_agree() -> None:
    """Every problem solved half of the time tells more than half of the problems solved always."""
    same, split = mean_interval([0.5] * 200), mean_interval([0.0, 1.0] * 100)
    assert same[1] - same[0] < 0.3 * (split[1] - split[0])


@given(RATES)
def test_mean_interval_holds_the_mean_and_mirrors(rates: list[float]) -> None:
    low, high = mean_interval(rates)
    assert 0 <= low <= math.fsum(rates) / len(rates) <= high <= 1
    mirrored = mean_interval([1 - rate for rate in rates])
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-9)


def coverage(draw, interval, truth: float, times: int = 400) -> float:
    return sum(low <= truth <= high for low, high in (interval(*draw()) for _ in range(times))) / times


@pytest.mark.parametrize("a, b", [(0.02, 2.0), (0.5, 1.0), (2.0, 2.0)])
def test_mean_interval_holds_the_truth_as_often_as_it_says(a: float, b: float) -> None:
    """100 problems, 8 samples of each; treating the 800 samples as independent would hold it in 65 to 85 of 100."""
    rng = np.random.default_rng(0)
    share = coverage(lambda: [rng.binomial(8, rng.beta(a, b, 100)) / 8], lambda r: mean_interval(list(r)), a / (a + b))
    assert 0.92 <= share <= 0.995


def test_paired_difference_interval_by_hand() -> None:
    # Agresti and Min with n12 = 3 (only after), n21 = 1 (only before), n = 10: N = 12, m = 2/12,
    # half = 1.95996 sqrt((3 + 1 + 1) - 4/12) / 12 = 0.35283.
    before = [1.0] + [0.0] * 9
    after = [0.0] + [1.0] * 3 + [0.0] * 6
    assert paired_difference_interval(before, after) == pytest.approx((1 / 6 - 0.35283, 1 / 6 + 0.35283), abs=1e-5)


def test_policies_that_agree_on_ten_problems_are_not_proven_equal() -> None:
    low, high = paired_difference_interval([0.0, 1.0] * 5, [0.0, 1.0] * 5)
    assert low == pytest.approx(-high) and high > 0.1


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30))
def test_paired_difference_changes_its_sign_with_the_order(pairs: list[tuple[float, float]]) -> None:
    before, after = ([pair[i] for pair in pairs] for i in (0, 1))
    low, high = paired_difference_interval(before, after)
    assert -1 <= low <= high <= 1
    assert paired_difference_interval(after, before) == pytest.approx((-high, -low), abs=1e-12)


def test_paired_difference_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)

    def draw():
        hardness = rng.random(60)
        return (hardness < 0.3) * 1.0, np.where(rng.random(60) < 0.8, hardness, rng.random(60)) < 0.4

    share = coverage(draw, lambda a, b: paired_difference_interval(list(a), list(b * 1.0)), 0.1)
    assert 0.92 <= share <= 0.99


def test_pairing_helps_when_both_find_the_same_problems_hard() -> None:
    before, after = [0.0] * 50 + [1.0] * 50, [0.0] * 45 + [1.0] * 55
    shuffled = after[1::2] + after[::2]
    paired, unrelated = (paired_difference_interval(before, other) for other in (after, shuffled))
    assert paired[0] > 0 > unrelated[0]


@pytest.mark.parametrize(
    "call",
    [
        lambda: wilson_interval(0, 0),
        lambda: wilson_interval(3, 2),
        lambda: mean_interval([]),
        lambda: mean_interval([0.5, 1.5]),
        lambda: mean_interval([0.5, math.nan]),
        lambda: paired_difference_interval([0.5], [0.5, 0.5]),
        lambda: paired_difference_interval([], []),
        lambda: paired_difference_interval([0.5], [-1.0]),
    ],
)
def test_impossible_input_is_refused(call) -> None:
    with pytest.raises(ValueError, match="got"):
        call()


def test_docstring_examples_run() -> None:
    results = doctest.testmod(statistics)
    assert results.failed == 0 and results.attempted >= 4
