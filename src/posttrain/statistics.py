"""pass@k, best-of-n, rank correlation, and confidence intervals clustered by problem.

Several samples of one problem are not independent: a hard problem fails them all. Eight samples of 200 problems are
200 observations of a rate, not 1600 of a coin. So an interval is taken over problems, from how much their rates differ.
"""

import math
from collections.abc import Sequence
from itertools import groupby, islice
from operator import itemgetter
from statistics import NormalDist

Interval = tuple[float, float]
"""The low and the high end."""
_Z95 = NormalDist().inv_cdf(0.975)  # standard deviations each side that hold 95% of a normal distribution: 1.96


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of `k` samples of a problem is right, from `n` samples of which `c` were.

        pass@k = 1 - C(n - c, k) / C(n, k)

    Chen et al. 2021, eq. 1 (https://arxiv.org/abs/2107.03374), in the form that cannot overflow. It is unbiased, which
    1 - (1 - c/n)^k is not. Raises `ValueError` unless 0 <= c <= n and 1 <= k <= n.

    Example:
        >>> round(pass_at_k(n=4, c=1, k=2), 3)  # 3 of the 6 pairs hold the right one
        0.5
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass_at_k needs 0 <= c <= n and 1 <= k <= n; got n={n}, c={c}, k={k}")
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def best_of_n(proxy: Sequence[float], gold: Sequence[float], n: int) -> float:
    """The mean gold reward of the best of n by the proxy, over all choices of n of these samples.

        R = sum_i [C(N - rank_i, n - 1) / C(N, n)] gold_i,   rank 1 the highest proxy

    The unbiased estimator of Nakano et al. 2021 (https://arxiv.org/abs/2112.09332), appendix I, as Gao et al.
    use it. Samples of equal proxy share their probability. 1 <= n <= N.

    Example:
        >>> best_of_n([0.0, 1.0, 2.0], [5.0, 1.0, 3.0], 3)
        3.0
    """
    size = len(proxy)
    if not 1 <= n <= size:
        raise ValueError(f"best_of_n chooses among 1 to {size} samples; got n={n}")
    worst_first = sorted(zip(proxy, gold, strict=True), key=itemgetter(0))  # i of them are below the i-th
    chances = iter([math.comb(below, n - 1) / math.comb(size, n) for below in range(size)])
    total = 0.0
    for _, samples in groupby(worst_first, key=itemgetter(0)):
        alike = [reward for _, reward in samples]
        total += math.fsum(islice(chances, len(alike))) * math.fsum(alike) / len(alike)
    return total


def kendall_tau(some: Sequence[float], others: Sequence[float]) -> float | None:
    """The rank correlation tau-b of two scores of the same things; None if either does not vary.

        tau_b = (C - D) / sqrt((P - T_x) (P - T_y))

    of P pairs C are in the same order in both, D in opposite orders, T_x and T_y are ties of each (Kendall 1945).

    Example:
        >>> kendall_tau([1, 2, 3], [1, 3, 2])  # two pairs agree, one does not
        0.3333333333333333
    """
    return _tau([sum(column) / 2 for column in zip(*_orders(some, others), strict=True)])


def kendall_interval(some: Sequence[float], others: Sequence[float]) -> Interval:
    """The 95% interval of `kendall_tau` by the jackknife: tau ± z sqrt((n - 1)/n sum_i (tau_-i - mean)^2).

    tau_-i is that of all but one (Quenouille 1956, Tukey 1958). (-1, 1) where one of these, or tau itself, does not
    exist.
    """
    rows = _orders(some, others)
    tau = _tau(whole := [sum(column) / 2 for column in zip(*rows, strict=True)])
    left = [_tau([total - own for total, own in zip(whole, row, strict=True)]) for row in rows]
    taus = [one for one in left if one is not None]
    if tau is None or len(taus) < len(rows):
        return -1.0, 1.0
    mean = math.fsum(taus) / len(taus)
    variance = (len(taus) - 1) / len(taus) * math.fsum((one - mean) ** 2 for one in taus)
    half = _Z95 * math.sqrt(variance)
    return max(-1.0, tau - half), min(1.0, tau + half)


def _orders(some: Sequence[float], others: Sequence[float]) -> list[tuple[int, int, int]]:
    """Of each thing C - D of its pairs with all others, and how many of these are no tie in the first, the second."""
    things = list(zip(some, others, strict=True))
    signs = ([(sign(a - c), sign(b - d)) for c, d in things] for a, b in things)
    return [(sum(x * y for x, y in row), sum(x != 0 for x, _ in row), sum(y != 0 for _, y in row)) for row in signs]


def _tau(orders: Sequence[float]) -> float | None:
    untied = math.prod(orders[1:]) if orders[1:] else 0
    return orders[0] / math.sqrt(untied) if untied else None


def sign(value: float) -> int:
    """-1, 0 or 1; 0 of NaN."""
    return (value > 0) - (value < 0)


def sigmoid(x: float) -> float:
    """1 / (1 + exp(-x)), of any size of x."""
    small = math.exp(-abs(x))
    return (1 if x >= 0 else small) / (1 + small)


def softplus(x: float) -> float:
    """log(1 + exp(x)), of any size of x: -log sigmoid(-x)."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def wilson_interval(successes: int, n: int) -> Interval:
    """The 95% interval of a rate from `successes` in `n` independent trials: one greedy answer to each of n problems.

        (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)

    Wilson 1927 (https://doi.org/10.1080/01621459.1927.10502953). Unlike p ± 1.96 standard errors it stays within
    0 to 1 and does not claim certainty after 0 of n. Raises `ValueError` unless 0 <= successes <= n and n >= 1.

    Example:
        >>> low, high = wilson_interval(0, 10)
        >>> round(low, 3), round(high, 3)
        (0.0, 0.278)
    """
    if not (n >= 1 and 0 <= successes <= n):
        raise ValueError(f"wilson_interval needs 0 <= successes <= n and n >= 1; got {successes} of {n}")
    z2 = _Z95**2
    p = successes / n
    centre = p + z2 / (2 * n)
    half = math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n)))
    # Exact where algebra says 0 or 1: a rounding error below 0 would look like a mistake in a table.
    low = 0.0 if successes == 0 else (centre - half) / (1 + z2 / n)
    high = 1.0 if successes == n else (centre + half) / (1 + z2 / n)
    return low, high


def mean_interval(rates: Sequence[float]) -> Interval:
    """The 95% interval of the mean over problems of something between 0 and 1: a problem's share of right samples.

    With r_1 ... r_n the problems' rates, and four problems added that nobody saw, two of rate 0 and two of rate 1:

        m ± z s / sqrt(n + 4),   m and s the mean and standard deviation of the n + 4 rates, cut to 0 to 1

    For rates of 0 and 1 this is Agresti and Coull's interval (1998, https://doi.org/10.1080/00031305.1998.10480550).
    The four are there for the ends of the scale. When all problems have rate 0, the plain t interval and a bootstrap
    over problems both answer (0, 0), as if 50 failures proved the impossible; at a true mean of 0.01, 200 problems and
    8 samples each, the t interval holds the truth in 86 of 100 experiments, this one in 97, and at means between
    0.05 and 0.95 in 95 to 97. With many problems it is the plain interval. No randomness, so no seed.
    A rate may also be pass@k of a problem. Raises `ValueError` for none, or one that is not between 0 and 1.

    Example:
        >>> low, high = mean_interval([0.0] * 100)
        >>> round(low, 3), round(high, 3)
        (0.0, 0.046)
    """
    _refuse_others("mean_interval", rates)
    low, high = normal_interval([*rates, 0.0, 0.0, 1.0, 1.0])
    return max(0.0, low), min(1.0, high)


def normal_interval(values: Sequence[float]) -> Interval:
    """The 95% interval of the mean of numbers without bounds, such as rewards: m ± z s / sqrt(n).

    Of a single number it is that number. Raises `ValueError` for none.

    Example:
        >>> low, high = normal_interval([1.0, 3.0, 1.0, 3.0])
        >>> round(low, 3), round(high, 3)
        (0.868, 3.132)
    """
    if not values:
        raise ValueError("normal_interval needs one number at least")
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
    half = _Z95 * math.sqrt(variance / len(values))
    return mean - half, mean + half


def paired_difference_interval(before: Sequence[float], after: Sequence[float]) -> Interval:
    """The 95% interval of mean(after) - mean(before), two policies' rates on the same problems in the same order.

    Both find the same problems hard, so differences problem by problem vary less than the rates themselves, and the
    interval is narrower than one from two separate intervals. With d_i = after_i - before_i and N = n + 2:

        m ± z sqrt((sum_i d_i² + 1 - N m²) / N²),   m = sum_i d_i / N, cut to -1 to 1

    For rates of 0 and 1 this is Agresti and Min's interval (2005, https://doi.org/10.1002/sim.1781): half a problem is
    added to each of the four outcomes, so that policies which agree on everything seen do not pass for equal. Raises
    `ValueError` where the lengths differ, and as `mean_interval`.

    Example:
        >>> low, high = paired_difference_interval([0.0] * 50, [1.0] * 25 + [0.0] * 25)
        >>> round(low, 3), round(high, 3)
        (0.34, 0.622)
    """
    if len(before) != len(after):
        raise ValueError(
            f"paired_difference_interval needs the same problems twice; got {len(before)} and {len(after)}"
        )
    for rates in (before, after):
        _refuse_others("paired_difference_interval", rates)
    differences = [b - a for a, b in zip(before, after, strict=True)]
    size = len(differences) + 2
    mean = math.fsum(differences) / size
    half = _Z95 * math.sqrt((math.fsum(d * d for d in differences) + 1 - size * mean * mean) / size**2)
    return max(-1.0, mean - half), min(1.0, mean + half)


def _refuse_others(what: str, rates: Sequence[float]) -> None:
    wrong = [rate for rate in rates if not 0 <= rate <= 1]
    if wrong or not rates:
        raise ValueError(f"{what} needs one rate between 0 and 1 per problem; got {wrong[0] if wrong else 'none'}")
