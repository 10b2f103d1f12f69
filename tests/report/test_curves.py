import math

import pytest

from posttrain.report.curves import Curves, Thresholds


def curves(*values: float | None, name: str = "x", **limits) -> Curves:
    return Curves([{"step": i, name: value} for i, value in enumerate(values)], Thresholds(**limits))


def test_start_and_end_are_the_means_of_a_quarter() -> None:
    run = curves(1.0, 3.0, 5.0, *[9.0] * 6, 10.0, 20.0, 60.0)
    assert (run["x"].start, run["x"].end) == (3.0, 30.0)


def test_windows_have_two_values_at_least() -> None:
    assert curves(1.0, 3.0, 0.0, 7.0, 9.0, min_steps=5)["x"].start == 2.0


def test_gain_is_counted_in_standard_errors() -> None:
    # Windows (1, 3) and (11, 13): difference 10, each variance 2, error sqrt(2/2 + 2/2).
    assert curves(1, 3, 0, 0, 0, 0, 11, 13)["x"].gain() == pytest.approx(10 / math.sqrt(2))


def test_a_change_without_noise_is_certain_and_none_is_none() -> None:
    assert curves(*[1.0] * 4, *[2.0] * 4)["x"].gain() == math.inf
    assert curves(*[2.0] * 4, *[1.0] * 4)["x"].gain() == -math.inf
    assert curves(*[1.0] * 8)["x"].gain() == 0.0


def test_rose_and_fell_need_more_than_noise() -> None:
    # Differences of 2.8 and 2.9 at an error of sqrt(2) = 1.414: 1.98 and 2.05 standard errors.
    for gap, clear in ((2.8, False), (2.9, True)):
        values = [1.0, 3.0, 0.0, 0.0, 0.0, 0.0, 1.0 + gap, 3.0 + gap]
        assert curves(*values)["x"].rose is clear and not curves(*values)["x"].fell
        assert curves(*reversed(values))["x"].fell is clear and not curves(*reversed(values))["x"].rose


def test_values_that_are_not_numbers_are_left_out_and_too_few_are_not_judged() -> None:
    run = curves(1.0, None, math.nan, 2.0, math.inf, min_steps=2)
    assert run["x"].values == [1.0, 2.0] and run["x"].measured
    assert not curves(1.0, None, 2.0, min_steps=3)["x"].measured
    assert not run["y"].measured and not run["y"].rose and math.isnan(run["y"].end)


def test_solved_is_a_high_accuracy_at_the_end() -> None:
    assert curves(*[0.1] * 6, 0.95, 0.95, name="accuracy").solved
    assert not curves(*[1.0] * 6, 0.9, 0.9, name="accuracy").solved


def test_a_change_in_words() -> None:
    run = curves(*[1.0] * 4, *[2.0] * 4)
    assert run["x"].change == "x went from 1 to 2"


def test_dipped_compares_the_quarters_between_with_the_first() -> None:
    high, low = [1.0, 1.1], [0.1, 0.2]
    assert curves(*high, *low, *high, *high)["x"].dipped and curves(*high, *high, *low, *high)["x"].dipped
    assert not curves(*high, *high, *high, *low)["x"].dipped and not curves(*low, *high, *high, *low)["x"].dipped
