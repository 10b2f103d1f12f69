import pytest

from posttrain.evaluation.pairs import correlations


def test_each_attribute_by_those_who_rated_it():
    foretold = [[1.0, 5.0, 1.0], [2.0, 4.0, 1.0], [4.0, 9.0, 1.0], [3.0, 1.0, 1.0]]
    rated = [{"a": 1.0, "b": 2.0, "c": 1.0}, {"a": 3.0, "b": 3.0, "c": 2.0}, {"a": 2.0}, {"b": 4.0}]
    found = correlations(["a", "b", "c", "d"], foretold, rated)
    # a: (1, 1), (2, 3), (4, 2), with deviations (-4/3, -1), (-1/3, 1), (5/3, 0)
    assert found == {"a": pytest.approx((4 / 3 - 1 / 3) / (42 / 9 * 2) ** 0.5), "b": pytest.approx(-0.9607689)}


def test_where_nothing_varies_there_is_no_correlation():
    assert correlations(["a"], [[1.0], [2.0]], [{"a": 3.0}, {"a": 3.0}]) == {}
    assert correlations(["a"], [[1.0], [1.0]], [{"a": 3.0}, {"a": 4.0}]) == {}
    assert correlations(["a"], [[1.0]], [{"a": 3.0}]) == {}
