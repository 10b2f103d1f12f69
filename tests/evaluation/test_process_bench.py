"""ProcessBench's F1, by hand."""

import pytest

from posttrain.evaluation.process_bench import process_bench
from posttrain.statistics import wilson_interval


def test_the_f1_is_the_harmonic_mean_of_the_accuracies_of_wrong_and_of_right_solutions() -> None:
    # wrong ones: steps 0, 2, 5, 1; two are found, one is a step off, one called right. Right ones: 3 of 4 left alone.
    found = process_bench([0, 2, 5, 1, -1, -1, -1, -1], [0, 2, 4, -1, -1, -1, -1, 0])
    assert (found.wrong, found.right, found.n_wrong, found.n_right) == (0.5, 0.75, 4, 4)
    assert found.f1 == pytest.approx(0.6)  # 2 x 0.5 x 0.75 / 1.25
    (low, high), (low2, high2) = wilson_interval(2, 4), wilson_interval(3, 4)
    assert found.ci95 == pytest.approx((2 * low * low2 / (low + low2), 2 * high * high2 / (high + high2)))


@pytest.mark.parametrize(("said", "f1"), [([-1] * 4, 0.0), ([0] * 4, 0.0), ([None] * 4, 0.0), ([0, 3, -1, -1], 1.0)])
def test_one_answer_to_all_is_worth_nothing(said: list[int | None], f1: float) -> None:
    assert process_bench([0, 3, -1, -1], said).f1 == f1


def test_an_answer_that_was_not_found_is_wrong_of_every_solution() -> None:
    assert process_bench([0, -1, -1], [0, None, -1]).right == 0.5


@pytest.mark.parametrize("labels", [[0, 1], [-1, -1], []])
def test_both_kinds_of_solutions_are_needed(labels: list[int]) -> None:
    with pytest.raises(ValueError, match="solutions with a wrong step and solutions without"):
        process_bench(labels, list(labels))


def test_each_solution_has_an_answer() -> None:
    with pytest.raises(ValueError, match="got 1 of 2"):
        process_bench([0, -1], [0])
