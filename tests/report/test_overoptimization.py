"""The laws of over-optimisation, their fit, and the KL of best-of-n, with planted truth."""

import math
import random

import pytest

from posttrain.report.overoptimization import (
    Point,
    best_of_n_kl,
    curves,
    fit,
    observed_peak,
    points_of,
    tenths,
    together,
)


def law(form: str, alpha: float, beta: float, d: float) -> float:
    return d * (alpha - beta * (math.log(d) if form == "rl" else d))


@pytest.mark.parametrize("form", ["best of n", "rl"])
def test_planted_numbers_are_found_with_noise(form):
    draw = random.Random(0)
    distances = [0.3 * i for i in range(1, 21)]
    rewards = [law(form, 1.2, 0.4, d) + draw.gauss(0, 0.02) for d in distances]
    found = fit(distances, rewards, form)
    assert (found.alpha, found.beta) == pytest.approx((1.2, 0.4), rel=0.05)
    assert found.error == pytest.approx(0.02, rel=0.4)
    peak = math.exp(1.2 / 0.4 - 1) if form == "rl" else 1.2 / 0.8
    assert found.peak == pytest.approx(peak, rel=0.1)
    assert found(2.0) == pytest.approx(law(form, found.alpha, found.beta, 2.0))
    for other in (found.peak * 0.9, found.peak * 1.1):
        assert found(found.peak) > found(other)
    assert found(0.0) == 0.0


def test_the_fit_has_the_least_squares():
    distances, rewards = [0.5, 1.0, 2.0, 3.0, 4.0], [0.4, 1.1, 1.2, 1.3, 0.7]
    found = fit(distances, rewards, "rl")

    def squares(alpha: float, beta: float) -> float:
        return sum((r - law("rl", alpha, beta, d)) ** 2 for d, r in zip(distances, rewards, strict=True))

    least = squares(found.alpha, found.beta)
    assert found.error == pytest.approx(math.sqrt(least / 5))
    for step in (-0.01, 0.01):
        assert squares(found.alpha + step, found.beta) > least and squares(found.alpha, found.beta + step) > least


def test_too_few_points_and_points_that_are_all_one_are_not_fitted():
    assert fit([0.0, 0.0, 1.0, 2.0, 3.0], [0.0] * 5, "rl") is None  # the policy before training says nothing of a law
    assert fit([2.0] * 5, [1.0] * 5, "rl") is None
    rising = fit([1.0, 2.0, 3.0, 4.0], [1.0, 2.1, 3.3, 4.6], "best of n")
    assert rising.beta < 0 and rising.peak is None
    falling = fit([1.0, 2.0, 3.0, 4.0], [-1.0, -2.1, -3.3, -4.6], "best of n")
    assert falling.beta > 0 and falling.peak == 0.0


def test_points_are_counted_from_the_first_and_need_all_three_numbers():
    row = {"evaluation/kl": 4.0, "evaluation/gold": 1.0, "evaluation/reward": 3.0}
    rows = [{"loss": 1.0}, row | {"evaluation/kl": -0.1}, {"evaluation/kl": 1.0}, row | {"evaluation/gold": 0.5}]
    rows.append(row | {"evaluation/kl": 9.0, "evaluation/reward": 5.0})
    assert points_of(rows) == [Point(0.0, 0.0, 0.0), Point(2.0, 0.0, -0.5), Point(3.0, 2.0, 0.0)]
    assert points_of(rows[:1]) == []
    assert observed_peak([Point(0.0, 0.0, 0.0), Point(1.0, 0.1, 0.3), Point(2.0, 0.5, 0.1)]).distance == 1.0


def test_curves_are_drawn_in_order_of_distance_with_the_law_where_it_can_be_fitted():
    points = [Point(d, d, law("rl", 1.0, 0.5, d) if d else 0.0) for d in (3.0, 0.0, 1.0, 4.0, 2.0)]
    found = dict(curves(points))
    assert [x for x, _ in found["gold"]] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert found["training reward"][-1] == (4.0, 4.0)
    drawn = found["law of Gao et al., fitted to gold"]
    assert drawn[0] == (0.0, 0.0) and drawn[-1] == pytest.approx((4.0, law("rl", 1.0, 0.5, 4.0)))
    assert found["maximum of gold"] == [(3.0, law("rl", 1.0, 0.5, 3.0))]
    assert found["maximum of the law"] == [pytest.approx((math.e, law("rl", 1.0, 0.5, math.e)))]
    assert len(curves(points[:3])) == 3  # too few for a law
    rising = [Point(d, d, law("rl", 1.0, 0.2, d) if d else 0.0) for d in (0.0, 1.0, 2.0, 3.0, 4.0)]
    assert len(curves(rising)) == 4  # its highest point, e^4, is out of reach


def test_each_tenth_of_the_way_counts_alike_for_the_law():
    """However often a policy was read where it stayed, while gold went up and down there."""
    way = [Point(d, d, law("rl", 1.0, 0.5, d) if d else 0.0) for d in (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5)]
    stayed = [Point(4.0, 4.0, law("rl", 1.0, 0.5, 4.0) - x) for x in (0.1, 0.5)]
    (once,), (often,) = (dict(curves([*way, *stayed * n]))["maximum of the law"] for n in (1, 50))
    assert often == pytest.approx(once) and 2.0 < once[0] < math.e


def test_runs_together_are_at_the_root_of_their_mean_kl():
    one = [Point(0.0, 0.0, 0.0), Point(1.0, 1.0, 2.0), Point(3.0, 2.0, 1.0)]
    other = [Point(0.0, 0.0, 0.0), Point(2.0, 3.0, 0.0), Point(1.0, 4.0, -1.0)]
    expected = [Point(0.0, 0.0, 0.0), Point(math.sqrt(2.5), 2.0, 1.0), Point(math.sqrt(5.0), 3.0, 0.0)]
    assert together([one, other]) == expected and together([one]) == one
    with pytest.raises(ValueError, match="shorter"):
        together([one, other[:2]])


def test_a_tenth_has_the_mean_of_its_points():
    points = [Point(2.0, 1.0, 0.0), Point(0.0, 0.0, 0.0), Point(0.1, 0.2, 0.4), Point(1.0, 0.5, 3.0)]
    assert tenths(points) == [Point(0.05, 0.1, 0.2), Point(1.0, 0.5, 3.0), Point(2.0, 1.0, 0.0)]
    assert tenths([]) == [] and tenths([Point(0.0, 0.0, 0.0)] * 2) == [Point(0.0, 0.0, 0.0)]


def test_the_kl_of_best_of_n_is_that_of_a_uniform_proxy():
    """The best of n uniform numbers has the density n x^(n-1): its KL from the uniform one, by the middle rule."""
    for n in (2, 5):
        cells = 100_000
        density = [n * ((i + 0.5) / cells) ** (n - 1) for i in range(cells)]
        assert best_of_n_kl(n) == pytest.approx(sum(p * math.log(p) for p in density) / cells, abs=1e-4)
